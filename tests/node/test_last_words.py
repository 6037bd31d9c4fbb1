from pathlib import Path

import pytest

from winpod.cri.proto import api_pb2 as api
from winpod.node.last_words import last_words
from winpod.node.requests import MESSAGE_PATH, MESSAGE_POLICY

PATH = "/dev/termination-log"


def ended(tmp_path: Path, *, policy: str = "File", code: int = 1, said: str = "") -> str:
    file, log = tmp_path / "message", tmp_path / "0.log"
    file.write_text(said)
    times = "2026-07-01T12:00:00.000000000Z"
    log.write_text(f"{times} stdout F started\n{times} stderr F it broke\n")
    status = api.ContainerStatus(
        exit_code=code,
        annotations={MESSAGE_PATH: PATH, MESSAGE_POLICY: policy},
        mounts=[api.Mount(container_path=PATH, host_path=str(file))],
        log_path=str(log),
    )
    return last_words(status)


@pytest.mark.parametrize(
    ("policy", "code", "said", "words"),
    [
        ("File", 1, "no disk", "no disk"),
        ("File", 1, "", ""),
        ("FallbackToLogsOnError", 1, "no disk", "no disk"),
        ("FallbackToLogsOnError", 1, "", "started\nit broke\n"),
        ("FallbackToLogsOnError", 0, "", ""),
    ],
)
def test_a_container_says_why_it_ended(
    tmp_path: Path, policy: str, code: int, said: str, words: str
) -> None:
    assert ended(tmp_path, policy=policy, code=code, said=said) == words


def test_the_end_of_a_long_message_counts(tmp_path: Path) -> None:
    assert ended(tmp_path, said="x" * 9000 + "end") == "x" * 4093 + "end"


def test_what_the_runtime_says_comes_first() -> None:
    assert last_words(api.ContainerStatus(exit_code=128, message="no such file")) == "no such file"

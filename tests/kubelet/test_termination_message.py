from pathlib import Path

import pytest

from winpod.cri.proto import api_pb2 as api
from winpod.kubelet.cri_convert import (
    TERMINATION_MESSAGE_PATH_LABEL,
    TERMINATION_MESSAGE_POLICY_LABEL,
)
from winpod.kubelet.termination_message import termination_message

PATH = "/dev/termination-log"


def ended(tmp_path: Path, *, policy: str = "File", code: int = 1, said: str = "") -> str:
    file, log = tmp_path / "message", tmp_path / "0.log"
    file.write_text(said)
    times = "2026-07-01T12:00:00.000000000Z"
    log.write_text(f"{times} stdout F started\n{times} stderr F it broke\n")
    status = api.ContainerStatus(
        exit_code=code,
        annotations={
            TERMINATION_MESSAGE_PATH_LABEL: PATH,
            TERMINATION_MESSAGE_POLICY_LABEL: policy,
        },
        mounts=[api.Mount(container_path=PATH, host_path=str(file))],
        log_path=str(log),
    )
    return termination_message(status)


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
def test_termination_message_sources(
    tmp_path: Path, policy: str, code: int, said: str, words: str
) -> None:
    assert ended(tmp_path, policy=policy, code=code, said=said) == words


def test_long_message_keeps_its_tail(tmp_path: Path) -> None:
    assert ended(tmp_path, said="x" * 9000 + "end") == "x" * 4093 + "end"


def test_runtime_message_comes_first() -> None:
    assert (
        termination_message(api.ContainerStatus(exit_code=128, message="no such file"))
        == "no such file"
    )

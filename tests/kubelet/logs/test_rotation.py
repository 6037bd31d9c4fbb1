"""Log rotation: which files are removed or compressed."""

import gzip
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.cri_node import Node, create, run_sandbox, start
from tests.support.pushed_images import push
from tests.support.small_node import pulled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.kubelet.logs.rotation import LogRotation, RotationPlan, plan_rotation
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.runtime_client import RuntimeClient

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ([], RotationPlan((), ())),
        (["0.log.20260131-110000"], RotationPlan((), ("0.log.20260131-110000",))),
        (
            ["0.log.1.gz", "0.log.2.gz", "0.log.3.gz", "0.log.4"],
            RotationPlan(("0.log.1.gz",), ("0.log.4",)),
        ),
        (
            ["0.log.1.gz", "0.log.1", "0.log.2.gz.tmp"],
            RotationPlan(("0.log.2.gz.tmp", "0.log.1"), ()),
        ),
        (["1.log", "1.log.1", "0.log"], RotationPlan((), ())),
    ],
)
def test_oldest_logs_are_removed_and_others_compressed(
    beside: list[str], expected: RotationPlan
) -> None:
    assert plan_rotation("0.log", beside, 5) == expected


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[CriClient]:
    async with Node(tmp_path).running() as client:
        yield client


@pytest.fixture
async def container(client: CriClient, home: Path, registry: str, tmp_path: Path) -> str:
    image = await pulled(client, await push(home, f"{registry}/app:1", "2022"))
    sandbox = await run_sandbox(client, log_directory=str(tmp_path / "logs"))
    container = await create(client, sandbox, image, log_path="0.log")
    await start(client, container)
    return container


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def test_long_log_is_rotated_and_older_ones_compressed(
    client: CriClient, container: str, tmp_path: Path
) -> None:
    del container
    logs = tmp_path / "logs"
    write(logs / "0.log.20260131-100000", "older\n")
    rotation = LogRotation(
        RuntimeClient(client, KubeletMetrics()), max_bytes=10, max_files=3, clock=lambda: NOON
    )
    await rotation.rotate_all()
    assert names(logs) == ["0.log", "0.log.20260131-100000.gz", "0.log.20260131-120000"]
    assert gzip.decompress(read(logs / "0.log.20260131-100000.gz")) == b"older\n"
    assert b"opened again" in read(logs / "0.log")


async def test_short_log_is_kept_and_missing_one_reopened(
    client: CriClient, container: str, tmp_path: Path
) -> None:
    del container
    log = tmp_path / "logs/0.log"
    rotation = LogRotation(RuntimeClient(client, KubeletMetrics()), max_bytes=1000)
    await rotation.rotate_all()
    assert names(log.parent) == ["0.log"]
    remove(log)
    await rotation.rotate_all()
    assert b"opened again" in read(log)


async def test_log_is_moved_back_if_reopen_fails(
    client: CriClient, container: str, tmp_path: Path
) -> None:
    rotation = LogRotation(
        RuntimeClient(client, KubeletMetrics()), max_bytes=10, clock=lambda: NOON
    )
    before = read(tmp_path / "logs/0.log")
    await client.call("StopContainer", api.StopContainerRequest(container_id=container))
    with pytest.raises(RemoteError, match="CONTAINER_EXITED"):
        await rotation.rotate_if_needed(container, tmp_path / "logs/0.log")
    assert read(tmp_path / "logs/0.log").startswith(before)


def read(file: Path) -> bytes:
    return file.read_bytes()


def remove(file: Path) -> None:
    file.unlink()

"""Logs are kept small: which files go, and what a reader still finds."""

import gzip
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cri.test_images import push
from tests.cri.test_life import Node, create, run_sandbox, start
from tests.node.small_node import pulled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.node.log_rotation import LogRotation, Tidying, tidying

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ([], Tidying((), ())),
        (["0.log.20260131-110000"], Tidying((), ("0.log.20260131-110000",))),
        (
            ["0.log.1.gz", "0.log.2.gz", "0.log.3.gz", "0.log.4"],
            Tidying(("0.log.1.gz",), ("0.log.4",)),
        ),
        (["0.log.1.gz", "0.log.1", "0.log.2.gz.tmp"], Tidying(("0.log.2.gz.tmp", "0.log.1"), ())),
        (["1.log", "1.log.1", "0.log"], Tidying((), ())),
    ],
)
def test_the_oldest_go_and_the_others_are_compressed(beside: list[str], expected: Tidying) -> None:
    assert tidying("0.log", beside, 5) == expected


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with Node(tmp_path).running() as client:
        yield client


@pytest.fixture
async def container(client: Client, home: Path, registry: str, tmp_path: Path) -> str:
    image = await pulled(client, await push(home, f"{registry}/app:1", "2022"))
    sandbox = await run_sandbox(client, log_directory=str(tmp_path / "logs"))
    container = await create(client, sandbox, image, log_path="0.log")
    await start(client, container)
    return container


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def test_a_long_log_is_moved_aside_and_older_ones_compressed(
    client: Client, container: str, tmp_path: Path
) -> None:
    del container
    logs = tmp_path / "logs"
    write(logs / "0.log.20260131-100000", "older\n")
    rotation = LogRotation(client, max_bytes=10, max_files=3, clock=lambda: NOON)
    await rotation.look()
    assert names(logs) == ["0.log", "0.log.20260131-100000.gz", "0.log.20260131-120000"]
    assert gzip.decompress(read(logs / "0.log.20260131-100000.gz")) == b"older\n"
    assert b"opened again" in read(logs / "0.log")


async def test_a_short_log_stays_and_a_missing_one_is_made(
    client: Client, container: str, tmp_path: Path
) -> None:
    del container
    log = tmp_path / "logs/0.log"
    rotation = LogRotation(client, max_bytes=1000)
    await rotation.look()
    assert names(log.parent) == ["0.log"]
    remove(log)
    await rotation.look()
    assert b"opened again" in read(log)


async def test_a_log_whose_writer_ends_meanwhile_goes_back_to_its_place(
    client: Client, container: str, tmp_path: Path
) -> None:
    rotation = LogRotation(client, max_bytes=10, clock=lambda: NOON)
    before = read(tmp_path / "logs/0.log")
    await client.call("StopContainer", api.StopContainerRequest(container_id=container))
    with pytest.raises(RemoteError, match="CONTAINER_EXITED"):
        await rotation.look_at(container, tmp_path / "logs/0.log")
    assert read(tmp_path / "logs/0.log").startswith(before)


def read(file: Path) -> bytes:
    return file.read_bytes()


def remove(file: Path) -> None:
    file.unlink()

"""Started containers are watched and can be stopped on a full disk."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cri_node import Node, create, run_sandbox, start, status
from tests.support.full_disk import fill
from tests.support.pushed_images import push
from winpod.compute.simulated import SimulatedBackend
from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import Phase, RuntimeState


class FillingBackend(SimulatedBackend):
    """Simulated backend whose containers fill the disk when they start."""

    def __init__(self, ballast: Path) -> None:
        super().__init__()
        self._ballast = ballast

    async def start(self, container: str) -> None:
        await super().start(container)
        fill(self._ballast)


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small") as small:
        yield small


async def test_container_that_fills_the_disk_on_start_can_be_stopped(
    small: Path, home: Path, registry: str
) -> None:
    name = await push(home, f"{registry}/app:1", "2022")
    ballast = small / "ballast"
    node = Node(small, FillingBackend(ballast))
    async with node.running() as client:
        await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=name)))
        sandbox = await run_sandbox(client)
        stopped, kept = [await create(client, sandbox, name, each) for each in ("one", "two")]
        await start(client, stopped)
        assert (await status(client, stopped)).state == api.CONTAINER_RUNNING
        await client.call("StopContainer", api.StopContainerRequest(container_id=stopped))
        assert (await status(client, stopped)).state == api.CONTAINER_EXITED
        remove(ballast)
        await start(client, kept)
    remove(ballast)
    assert phase_of(small, kept) is Phase.STARTING, "the disk had room"
    async with node.running() as client:
        assert (await status(client, kept)).state == api.CONTAINER_RUNNING
        assert (await status(client, stopped)).state == api.CONTAINER_EXITED


def remove(ballast: Path) -> None:
    ballast.unlink()


def phase_of(root: Path, container: str) -> Phase:
    state = RuntimeState(root / "state.db")
    try:
        return state.containers[container].phase
    finally:
        state.close()

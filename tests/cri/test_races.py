"""Concurrent calls for the same object, and cancelled calls, with a backend that can block."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.cri_node import Node, create, image, run_sandbox, start, status
from winpod.compute.backend import ContainerConfig, ExitStatus
from winpod.compute.resources import ResourceLimits
from winpod.compute.simulated import SimulatedBackend
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError

__all__ = ["image"]


class HeldBackend(SimulatedBackend):
    """Simulated backend whose operations block until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()
        self.starts = 0
        self.blind = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        self.free.clear()
        self.begun.clear()
        yield
        self.free.set()

    async def _pass(self) -> None:
        self.begun.set()
        await self.free.wait()

    async def create_container(self, config: ContainerConfig) -> None:
        await self._pass()
        await super().create_container(config)

    async def start(self, container: str) -> None:
        self.starts += 1
        await self._pass()
        await super().start(container)

    async def update(self, container: str, limits: ResourceLimits) -> None:
        await asyncio.sleep(0.02)
        await super().update(container, limits)

    async def remove_sandbox(self, sandbox: str) -> None:
        await self._pass()
        await super().remove_sandbox(sandbox)

    async def wait(self, container: str) -> ExitStatus:
        end = await super().wait(container)
        if self.blind:
            raise ValueError("it left no number")
        return end


@pytest.fixture
async def backend() -> HeldBackend:
    return HeldBackend()


@pytest.fixture
async def client(tmp_path: Path, backend: HeldBackend) -> AsyncIterator[CriClient]:
    node = Node(tmp_path)
    node.backend = backend
    async with node.running() as client:
        yield client


def soon(call: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(call)


async def everything(client: CriClient) -> tuple[int, int]:
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    containers = await client.call("ListContainers", api.ListContainersRequest())
    return len(sandboxes.items), len(containers.containers)


async def name_is_free(client: CriClient, sandbox: str, image: str) -> bool:
    """Try to create a container; return whether it succeeded."""
    try:
        await create(client, sandbox, image)
    except RemoteError as error:
        if error.status == grpc.StatusCode.ALREADY_EXISTS:
            return False
        raise
    return True


async def remove(client: CriClient, sandbox: str) -> None:
    await client.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))


async def test_concurrent_starts_start_once(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    container = await create(client, await run_sandbox(client), image)
    outcomes = await asyncio.gather(
        *(start(client, container) for _ in range(5)), return_exceptions=True
    )
    refused = [one.status for one in outcomes if isinstance(one, RemoteError)]
    assert refused == [grpc.StatusCode.FAILED_PRECONDITION] * 4
    assert backend.starts == 1
    assert (await status(client, container)).state == api.CONTAINER_RUNNING


async def test_pod_removal_removes_containers_being_created(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    sandbox = await run_sandbox(client)
    async with backend.held():
        creating = soon(create(client, sandbox, image))
        await backend.begun.wait()
        removing = soon(remove(client, sandbox))
        await asyncio.sleep(0.05)
    await asyncio.gather(creating, removing, return_exceptions=True)
    assert await everything(client) == (0, 0)
    assert backend.describe()["containers"] == 0


async def test_stopping_pod_rejects_new_containers(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    sandbox = await run_sandbox(client)
    container = await create(client, sandbox, image)
    async with backend.held():
        request = api.StopPodSandboxRequest(pod_sandbox_id=sandbox)
        stopping = soon(client.call("StopPodSandbox", request))
        await backend.begun.wait()
        for call in (start(client, container), create(client, sandbox, image, "late")):
            with pytest.raises(RemoteError, match="not running") as caught:
                await call
            assert caught.value.status == grpc.StatusCode.FAILED_PRECONDITION
    await stopping
    assert (await status(client, container)).state == api.CONTAINER_CREATED
    await remove(client, sandbox)
    assert await everything(client) == (0, 0)


async def test_stop_during_start_stops_the_container(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    container = await create(client, await run_sandbox(client), image)
    async with backend.held():
        starting = soon(start(client, container))
        await backend.begun.wait()
        stop = api.StopContainerRequest(container_id=container, timeout=0)
        stopping = soon(client.call("StopContainer", stop))
        await asyncio.sleep(0.05)
    await asyncio.gather(starting, stopping)
    assert (await status(client, container)).state == api.CONTAINER_EXITED


async def test_cancelled_create_leaves_nothing(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    sandbox = await run_sandbox(client)
    async with backend.held():
        creating = soon(create(client, sandbox, image))
        await backend.begun.wait()
        creating.cancel()
        await asyncio.wait((creating,))
        await everything(
            client
        )  # sent after the disconnect, so it is answered after that was handled
    async with asyncio.timeout(120):
        while not await name_is_free(client, sandbox, image):  # noqa: ASYNC110 - the wait is the purpose
            await asyncio.sleep(0.01)
    assert await everything(client) == (1, 1)
    assert backend.describe()["containers"] == 1


async def test_cancelled_start_completes(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    container = await create(client, await run_sandbox(client), image)
    async with backend.held():
        starting = soon(start(client, container))
        await backend.begun.wait()
        starting.cancel()
        await asyncio.wait((starting,))
    await client.call("StopContainer", api.StopContainerRequest(container_id=container))
    assert (await status(client, container)).state == api.CONTAINER_EXITED


async def test_unreadable_exit_status_is_an_exit(
    client: CriClient, image: str, backend: HeldBackend
) -> None:
    container = await create(client, await run_sandbox(client), image)
    await start(client, container)
    backend.blind = True
    await client.call("StopContainer", api.StopContainerRequest(container_id=container))
    ended = await status(client, container)
    assert (ended.state, ended.exit_code, ended.reason) == (api.CONTAINER_EXITED, 255, "Unknown")
    assert "it left no number" in ended.message


async def test_concurrent_resource_updates_are_all_applied(client: CriClient, image: str) -> None:
    container = await create(client, await run_sandbox(client), image)
    changes = (
        api.WindowsContainerResources(memory_limit_in_bytes=1 << 28),
        api.WindowsContainerResources(cpu_maximum=5000),
    )
    await asyncio.gather(
        *(
            client.call(
                "UpdateContainerResources",
                api.UpdateContainerResourcesRequest(container_id=container, windows=change),
            )
            for change in changes
        )
    )
    windows = (await status(client, container)).resources.windows
    assert (windows.memory_limit_in_bytes, windows.cpu_maximum) == (1 << 28, 5000)

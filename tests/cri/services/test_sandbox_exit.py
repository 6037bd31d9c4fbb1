"""Stopping a sandbox when its network, containers or microVM fail."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.cri_node import Node, create, run_sandbox, start, status
from tests.support.guest_backend import GuestBackend
from tests.support.pushed_images import push
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import WinpodError
from winpod.labels import RUN_LABEL
from winpod.windows.handlers import BUILTIN_HANDLERS, HYPERVISOR_HANDLER

BROKEN = WinpodError("the plugin of the network failed.")


class MortalBackend(GuestBackend):
    """Simulated backend whose microVMs can exit."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = asyncio.Event()

    async def wait_sandbox_exit(self, sandbox: str) -> None:
        del sandbox
        await self.dead.wait()


async def state_of(client: CriClient, sandbox: str) -> int:
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
    return int((await client.call("PodSandboxStatus", request)).status.state)


async def stop(client: CriClient, sandbox: str) -> None:
    await client.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox))


async def remove(client: CriClient, sandbox: str) -> None:
    await client.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))


async def listening(client: CriClient) -> Any:
    """Subscribe to events and wait until the subscription is active."""
    events = client.stream("GetContainerEvents", api.GetEventsRequest())
    first, number = asyncio.ensure_future(anext(events)), 0
    while not (await asyncio.wait((first,), timeout=0.1))[0]:
        await run_sandbox(client, f"early-{number}")
        number += 1
    return events


async def until_stopped(events: Any, sandbox: str) -> None:
    async with asyncio.timeout(60):
        async for event in events:
            kind = event.container_event_type
            if (event.container_id, kind) == (sandbox, api.CONTAINER_STOPPED_EVENT):
                return


async def test_failed_stop_leaves_a_sandbox_that_is_not_ready(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    async with node.running() as client:
        sandbox = await run_sandbox(client)
        events = await listening(client)
        node.networks.stuck = BROKEN
        with pytest.raises(RemoteError, match="the plugin of the network failed"):
            await stop(client, sandbox)
        assert await state_of(client, sandbox) == api.SANDBOX_NOTREADY
        await until_stopped(events, sandbox)
        with pytest.raises(RemoteError, match="the plugin of the network failed"):
            await stop(client, sandbox)
        node.networks.stuck = None
        assert sandbox in node.networks.connected
        await stop(client, sandbox)
        assert sandbox not in node.networks.connected


async def test_removal_completes_a_failed_stop(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.running() as client:
        sandbox = await run_sandbox(client)
        node.networks.stuck = BROKEN
        for call in (stop, remove):
            with pytest.raises(RemoteError, match="the plugin of the network failed"):
                await call(client, sandbox)
        assert await state_of(client, sandbox) == api.SANDBOX_NOTREADY
        node.networks.stuck = None
        await remove(client, sandbox)
        assert node.networks.connected == {}
        assert not (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items


async def test_next_start_completes_a_failed_stop(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.running() as client:
        sandbox = await run_sandbox(client)
        node.networks.stuck = BROKEN
        with pytest.raises(RemoteError):
            await stop(client, sandbox)
    async with node.running() as client:  # it fails again, and the runtime starts
        assert await state_of(client, sandbox) == api.SANDBOX_NOTREADY
    node.networks.stuck = None
    async with node.running() as client:
        assert await state_of(client, sandbox) == api.SANDBOX_NOTREADY
        assert node.networks.connected == {}


async def test_sandbox_without_microvm_is_not_ready_if_network_teardown_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = MortalBackend()
    node = Node(tmp_path, backend, BUILTIN_HANDLERS, Accelerator.EMULATION)
    async with node.running() as client:
        sandbox = await run_sandbox(client, handler=HYPERVISOR_HANDLER.name)
        events = await listening(client)
        node.networks.stuck = BROKEN
        with caplog.at_level(logging.WARNING):
            backend.dead.set()
            await until_stopped(events, sandbox)
            assert await state_of(client, sandbox) == api.SANDBOX_NOTREADY
        assert "Failed to stop sandbox" in caplog.text
        node.networks.stuck = None
        await stop(client, sandbox)
        assert sandbox not in node.networks.connected


async def test_exited_run_pod_is_not_ready_if_network_teardown_fails(
    tmp_path: Path, home: Path, registry: str
) -> None:
    name = await push(home, f"{registry}/app:1", "2022")
    node = Node(tmp_path)
    async with node.running() as client:
        await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=name)))
        request = api.RunPodSandboxRequest(
            config=api.PodSandboxConfig(
                metadata=api.PodSandboxMetadata(name="run"), labels={RUN_LABEL: "run"}
            )
        )
        sandbox = (await client.call("RunPodSandbox", request)).pod_sandbox_id
        container = await create(client, sandbox, name)
        await start(client, container)
        events = await listening(client)
        node.networks.stuck = BROKEN
        await client.call("StopContainer", api.StopContainerRequest(container_id=container))
        await until_stopped(events, sandbox)
        assert await state_of(client, sandbox) == api.SANDBOX_NOTREADY
        assert (await status(client, container)).state == api.CONTAINER_EXITED
    node.networks.stuck = None
    async with node.running():
        assert sandbox not in node.networks.connected

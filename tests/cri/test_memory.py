"""The runtime that is in memory only answers as the server does."""

import asyncio

import grpc
import pytest

from winpod.cri.memory import MemoryRuntime
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError, Unimplemented

POD = api.PodSandboxConfig(
    metadata=api.PodSandboxMetadata(name="web", namespace="shop", uid="uid-1"),
    labels={"io.kubernetes.pod.uid": "uid-1"},
)


async def told_subnet(runtime: MemoryRuntime) -> None:
    network = api.NetworkConfig(pod_cidr="10.7.0.0/24")
    config = api.RuntimeConfig(network_config=network)
    request = api.UpdateRuntimeConfigRequest(runtime_config=config)
    await runtime.call("UpdateRuntimeConfig", request)


async def run(runtime: MemoryRuntime, *command: str) -> tuple[str, str]:
    made = await runtime.call("RunPodSandbox", api.RunPodSandboxRequest(config=POD))
    config = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="app"),
        image=api.ImageSpec(image="app:1"),
        command=command,
    )
    created = await runtime.call(
        "CreateContainer",
        api.CreateContainerRequest(pod_sandbox_id=made.pod_sandbox_id, config=config),
    )
    start = api.StartContainerRequest(container_id=created.container_id)
    await runtime.call("StartContainer", start)
    return made.pod_sandbox_id, created.container_id


async def state_of(runtime: MemoryRuntime, container: str) -> api.ContainerStatus:
    request = api.ContainerStatusRequest(container_id=container)
    status: api.ContainerStatus = (await runtime.call("ContainerStatus", request)).status
    return status


async def test_it_has_no_network_until_a_subnet_is_told() -> None:
    runtime = MemoryRuntime()
    before = await runtime.call("Status", api.StatusRequest())
    await told_subnet(runtime)
    after = await runtime.call("Status", api.StatusRequest())
    assert [c.status for c in before.status.conditions] == [True, False]
    assert [c.status for c in after.status.conditions] == [True, True]
    assert "runhcs-wcow-process" in {handler.name for handler in after.runtime_handlers}


async def test_a_pod_lives_from_its_sandbox_to_its_removal() -> None:
    runtime = MemoryRuntime()
    await told_subnet(runtime)
    sandbox, container = await run(runtime, "app.exe")
    assert (await state_of(runtime, container)).state == api.CONTAINER_RUNNING
    wanted = api.PodSandboxFilter(label_selector={"io.kubernetes.pod.uid": "uid-1"})
    listed = await runtime.call("ListPodSandbox", api.ListPodSandboxRequest(filter=wanted))
    assert [item.id for item in listed.items] == [sandbox]
    status = await runtime.call(
        "PodSandboxStatus", api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
    )
    assert status.status.network.ip.startswith("10.7.0.")
    await runtime.call("StopContainer", api.StopContainerRequest(container_id=container))
    ended = await state_of(runtime, container)
    assert (ended.state, ended.exit_code, ended.reason) == (api.CONTAINER_EXITED, 0, "Completed")
    remove = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
    await runtime.call("RemovePodSandbox", remove)
    await runtime.call("RemovePodSandbox", remove)
    left = await runtime.call("ListContainers", api.ListContainersRequest())
    assert not left.containers
    with pytest.raises(RemoteError) as caught:
        await state_of(runtime, container)
    assert caught.value.status is grpc.StatusCode.NOT_FOUND


async def test_a_container_ends_by_itself_when_its_command_says_so_and_tells() -> None:
    runtime = MemoryRuntime()
    await told_subnet(runtime)
    events = runtime.stream("GetContainerEvents", api.GetEventsRequest())
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    _, container = await run(runtime, "simulate", "3", "0.01")
    assert (await first).container_event_type == api.CONTAINER_STARTED_EVENT
    async with asyncio.timeout(120):
        async for event in events:
            if event.container_event_type == api.CONTAINER_STOPPED_EVENT:
                break
    assert (await state_of(runtime, container)).exit_code == 3


async def test_what_it_does_not_do_it_says() -> None:
    with pytest.raises(Unimplemented):
        await MemoryRuntime().call("Exec", api.ExecRequest())

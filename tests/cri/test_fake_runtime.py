"""FakeRuntime answers as the CRI server does."""

import asyncio
from pathlib import Path

import grpc
import pytest

from winpod.cri.fake_runtime import FakeRuntime
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError, Unimplemented
from winpod.windows.builds import parse_build

HOST = parse_build("2022")
POD = api.PodSandboxConfig(
    metadata=api.PodSandboxMetadata(name="web", namespace="shop", uid="uid-1"),
    labels={"io.kubernetes.pod.uid": "uid-1"},
)


async def told_subnet(runtime: FakeRuntime) -> None:
    network = api.NetworkConfig(pod_cidr="10.7.0.0/24")
    config = api.RuntimeConfig(network_config=network)
    request = api.UpdateRuntimeConfigRequest(runtime_config=config)
    await runtime.call("UpdateRuntimeConfig", request)


async def run(runtime: FakeRuntime, *command: str) -> tuple[str, str]:
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


async def state_of(runtime: FakeRuntime, container: str) -> api.ContainerStatus:
    request = api.ContainerStatusRequest(container_id=container)
    status: api.ContainerStatus = (await runtime.call("ContainerStatus", request)).status
    return status


async def test_network_is_not_ready_without_pod_cidr() -> None:
    runtime = FakeRuntime(HOST)
    before = await runtime.call("Status", api.StatusRequest())
    await told_subnet(runtime)
    after = await runtime.call("Status", api.StatusRequest())
    assert [c.status for c in before.status.conditions] == [True, False]
    assert [c.status for c in after.status.conditions] == [True, True]
    assert "runhcs-wcow-process" in {handler.name for handler in after.runtime_handlers}


async def test_pod_lifecycle() -> None:
    runtime = FakeRuntime(HOST)
    await told_subnet(runtime)
    sandbox, container = await run(runtime, "app.exe")
    assert (await state_of(runtime, container)).state == api.CONTAINER_RUNNING
    filter_ = api.PodSandboxFilter(label_selector={"io.kubernetes.pod.uid": "uid-1"})
    listed = await runtime.call("ListPodSandbox", api.ListPodSandboxRequest(filter=filter_))
    assert [item.id for item in listed.items] == [sandbox]
    status = await runtime.call(
        "PodSandboxStatus", api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
    )
    assert status.status.network.ip.startswith("10.7.0.")
    await runtime.call("StopContainer", api.StopContainerRequest(container_id=container, timeout=5))
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


async def test_scripted_container_exits_with_an_event() -> None:
    runtime = FakeRuntime(HOST)
    await told_subnet(runtime)
    events = runtime.stream("GetContainerEvents", api.GetEventsRequest())
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    _, container = await run(runtime, "simulate", "3", "0.01")
    assert (await first).container_event_type == api.CONTAINER_CREATED_EVENT
    async with asyncio.timeout(120):
        async for event in events:
            if event.container_event_type == api.CONTAINER_STOPPED_EVENT:
                break
    assert (await state_of(runtime, container)).exit_code == 3


async def test_unsupported_calls_are_unimplemented() -> None:
    with pytest.raises(Unimplemented):
        await FakeRuntime(HOST).call("Exec", api.ExecRequest())


async def test_container_is_created_without_a_log_and_its_name_is_reserved(tmp_path: Path) -> None:
    runtime = FakeRuntime(HOST)
    await told_subnet(runtime)
    pod = api.PodSandboxConfig()
    pod.CopyFrom(POD)
    pod.log_directory = str(tmp_path)
    made = await runtime.call("RunPodSandbox", api.RunPodSandboxRequest(config=pod))
    with pytest.raises(RemoteError, match="it is taken by another sandbox") as caught:
        await runtime.call("RunPodSandbox", api.RunPodSandboxRequest(config=pod))
    assert caught.value.status is grpc.StatusCode.ALREADY_EXISTS
    config = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="app"),
        image=api.ImageSpec(image="app:1"),
        log_path="app.log",
    )
    request = api.CreateContainerRequest(pod_sandbox_id=made.pod_sandbox_id, config=config)
    container = (await runtime.call("CreateContainer", request)).container_id
    await runtime.call("StartContainer", api.StartContainerRequest(container_id=container))
    assert (await state_of(runtime, container)).log_path == ""
    assert request.config.log_path == "app.log"
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240
    await runtime.close()

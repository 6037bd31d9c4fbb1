"""Sandboxes and containers over gRPC, with simulated compute and network."""

import asyncio
import itertools
import json
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.cri_node import (
    Node,
    client,
    create,
    image,
    node,
    run_sandbox,
    sandbox_config,
    start,
    status,
)
from tests.support.pushed_images import push
from winpod.compute.simulated import SimulatedBackend
from winpod.config import DEFAULT_SUBNETS
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import WinpodError

__all__ = ["client", "image", "node"]


async def test_pod_lifecycle(client: CriClient, image: str, tmp_path: Path) -> None:
    sandbox = await run_sandbox(client, log_directory=str(tmp_path / "logs"))
    container = await create(client, sandbox, image, log_path="app/0.log")
    assert (await status(client, container)).state == api.CONTAINER_CREATED
    await start(client, container)
    running = await status(client, container)
    assert running.state == api.CONTAINER_RUNNING
    assert running.started_at >= running.created_at > 0
    assert running.finished_at == 0
    assert (tmp_path / "logs/app/0.log").read_text().endswith('cmd /c "echo hello"\n')
    await client.call("StopContainer", api.StopContainerRequest(container_id=container, timeout=5))
    stopped = await status(client, container)
    assert (stopped.state, stopped.exit_code, stopped.reason) == (
        api.CONTAINER_EXITED,
        0,
        "Completed",
    )
    for name in ("StopPodSandbox", "RemovePodSandbox"):
        request = getattr(api, f"{name}Request")(pod_sandbox_id=sandbox)
        await client.call(name, request)
        await client.call(name, request)
    with pytest.raises(RemoteError) as caught:
        await status(client, container)
    assert caught.value.status is grpc.StatusCode.NOT_FOUND


async def test_killed_container_has_windows_exit_code(client: CriClient, image: str) -> None:
    container = await create(client, await run_sandbox(client), image)
    await start(client, container)
    await client.call("StopContainer", api.StopContainerRequest(container_id=container, timeout=0))
    assert (await status(client, container)).exit_code == -1073741510


@pytest.mark.parametrize(
    "name", ["StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer"]
)
async def test_stop_and_remove_of_missing_objects_succeed(client: CriClient, name: str) -> None:
    field = "pod_sandbox_id" if "Sandbox" in name else "container_id"
    await client.call(name, getattr(api, f"{name}Request")(**{field: "nobody"}))


@pytest.mark.parametrize(
    ("handler", "windows", "code", "sentence"),
    [
        ("runsc", {}, "NOT_FOUND", 'no runtime for "runsc" is configured'),
        ("runhcs-wcow-hypervisor-17763", {}, "FAILED_PRECONDITION", "hypervisor isolation"),
        ("", {"host_process": True}, "FAILED_PRECONDITION", "no Windows host to run on"),
    ],
)
async def test_invalid_sandbox_is_rejected_and_leaves_nothing(
    client: CriClient, node: Node, handler: str, windows: dict[str, Any], code: str, sentence: str
) -> None:
    security = api.WindowsSandboxSecurityContext(**windows)
    windows_config = api.WindowsPodSandboxConfig(security_context=security)
    with pytest.raises(RemoteError, match=sentence) as caught:
        await run_sandbox(client, handler=handler, windows=windows_config)
    assert caught.value.status is grpc.StatusCode[code]
    assert node.networks.connected == {}
    assert not (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items


async def test_network_failure_leaves_no_sandbox_and_is_in_the_status(
    client: CriClient, node: Node
) -> None:
    node.networks.failure = WinpodError("the bridge is broken.")
    with pytest.raises(RemoteError, match="the bridge is broken"):
        await run_sandbox(client)
    assert not (await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items
    answer = await client.call("Status", api.StatusRequest())
    conditions = {c.type: (c.status, c.reason) for c in answer.status.conditions}
    assert conditions == {
        "RuntimeReady": (True, ""),
        "NetworkReady": (False, "NetworkPluginNotReady"),
    }
    node.networks.failure = None
    await run_sandbox(client)


async def test_names_are_unique(client: CriClient, image: str) -> None:
    sandbox = await run_sandbox(client)
    with pytest.raises(RemoteError, match='failed to reserve sandbox name "web_shop_uid-web_0"'):
        await run_sandbox(client)
    await create(client, sandbox, image)
    with pytest.raises(RemoteError, match="failed to reserve container name"):
        await create(client, sandbox, image)


async def test_missing_image_is_reported(client: CriClient) -> None:
    sandbox = await run_sandbox(client)
    with pytest.raises(RemoteError, match='failed to resolve image "gone:1"'):
        await create(client, sandbox, "gone:1")
    assert not (await client.call("ListContainers", api.ListContainersRequest())).containers


async def test_lists_are_filtered_and_streamed(client: CriClient, image: str) -> None:
    first, second = await asyncio.gather(run_sandbox(client, "a"), run_sandbox(client, "b"))
    container = await create(client, first, image)
    await client.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=second))

    async def sandboxes(**fields: Any) -> set[str]:
        request = api.ListPodSandboxRequest(filter=api.PodSandboxFilter(**fields))
        return {item.id for item in (await client.call("ListPodSandbox", request)).items}

    async def containers(**fields: Any) -> set[str]:
        request = api.ListContainersRequest(filter=api.ContainerFilter(**fields))
        return {item.id for item in (await client.call("ListContainers", request)).containers}

    assert await sandboxes() == {first, second}
    ready = api.PodSandboxStateValue(state=api.SANDBOX_READY)
    assert await sandboxes(state=ready) == {first}
    assert await sandboxes(label_selector={"app": "b"}) == {second}
    assert await sandboxes(id=first[:13]) == {first}
    assert await containers(pod_sandbox_id=first) == {container}
    assert await containers(pod_sandbox_id=second) == set()
    assert await containers(label_selector={"container": "app"}) == {container}
    pages = client.stream("StreamPodSandboxes", api.StreamPodSandboxesRequest())
    assert {item.id async for page in pages for item in page.pod_sandboxes} == {first, second}


async def test_labels_annotations_and_namespaces_are_returned_unchanged(client: CriClient) -> None:
    options = api.NamespaceOption(network=api.POD, pid=api.CONTAINER)
    security = api.LinuxSandboxSecurityContext(namespace_options=options)
    sandbox = await run_sandbox(
        client,
        annotations={"a": "b"},
        linux=api.LinuxPodSandboxConfig(security_context=security),
    )
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
    answer = (await client.call("PodSandboxStatus", request)).status
    assert (dict(answer.labels), dict(answer.annotations)) == ({"app": "web"}, {"a": "b"})
    assert answer.linux.namespaces.options == options
    assert ip_address(answer.network.ip) in DEFAULT_SUBNETS[0]


async def test_resource_update_is_atomic(client: CriClient, image: str) -> None:
    container = await create(client, await run_sandbox(client), image)
    await start(client, container)

    async def update(**resources: Any) -> None:
        windows = api.WindowsContainerResources(**resources)
        request = api.UpdateContainerResourcesRequest(container_id=container, windows=windows)
        await client.call("UpdateContainerResources", request)

    await update(memory_limit_in_bytes=1 << 20, cpu_maximum=50)
    with pytest.raises(RemoteError, match="are mutually exclusive"):
        await update(cpu_count=1, cpu_shares=5, memory_limit_in_bytes=7)
    await update(cpu_count=1)
    resources = (await status(client, container)).resources.windows
    assert (resources.cpu_count, resources.cpu_maximum) == (1, 0)
    assert resources.memory_limit_in_bytes == 1 << 20


async def test_disk_size_cannot_be_updated(client: CriClient, image: str) -> None:
    resources = api.WindowsContainerResources(rootfs_size_in_bytes=1 << 30)
    windows = api.WindowsContainerConfig(resources=resources)
    container = await create(client, await run_sandbox(client), image, windows=windows)
    for size, is_taken in ((1 << 30, True), (2 << 30, False)):
        change = api.WindowsContainerResources(
            rootfs_size_in_bytes=size, memory_limit_in_bytes=size
        )
        request = api.UpdateContainerResourcesRequest(container_id=container, windows=change)
        if is_taken:
            await client.call("UpdateContainerResources", request)
        else:
            with pytest.raises(RemoteError, match="cannot be resized") as caught:
                await client.call("UpdateContainerResources", request)
            assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
        seen = (await status(client, container)).resources.windows
        assert (seen.rootfs_size_in_bytes, seen.memory_limit_in_bytes) == (1 << 30, 1 << 30)


async def test_linux_resource_fields_are_converted(client: CriClient, image: str) -> None:
    container = await create(client, await run_sandbox(client), image)

    async def update(**resources: Any) -> None:
        linux = api.LinuxContainerResources(**resources)
        request = api.UpdateContainerResourcesRequest(container_id=container, linux=linux)
        await client.call("UpdateContainerResources", request)

    await update(memory_limit_in_bytes=1 << 20, cpu_quota=50_000)
    resources = (await status(client, container)).resources.windows
    assert resources.memory_limit_in_bytes == 1 << 20
    assert resources.cpu_maximum == 5_000 // len(os.sched_getaffinity(0))
    for fields in ({"cpu_shares": 512}, {"cpuset_cpus": "0"}, {"cpu_quota": -1}):
        with pytest.raises(RemoteError, match="Windows container") as caught:
            await update(**fields)
        assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_events_are_sent_to_listeners(client: CriClient, image: str) -> None:
    events = client.stream("GetContainerEvents", api.GetEventsRequest())
    first = asyncio.ensure_future(anext(events))
    for number in itertools.count():  # until the subscription is active
        await run_sandbox(client, f"early-{number}")
        if (await asyncio.wait((first,), timeout=0.1))[0]:
            break
    sandbox = await run_sandbox(client)
    container = await create(client, sandbox, image)
    await start(client, container)
    seen: list[Any] = []
    while len(seen) < 4:
        event = await anext(events)
        seen += [event] if event.container_id in (sandbox, container) else []
    assert [e.container_event_type for e in seen] == [0, 1, 0, 1]
    assert seen[3].container_id == container
    assert seen[3].pod_sandbox_status.metadata.name == "web"


async def test_exec_requires_a_running_container(client: CriClient, image: str) -> None:
    container = await create(client, await run_sandbox(client), image)
    request = api.ExecSyncRequest(container_id=container, cmd=["ver"], timeout=5)
    with pytest.raises(RemoteError, match="container is in CONTAINER_CREATED state"):
        await client.call("ExecSync", request)
    await start(client, container)
    assert (await client.call("ExecSync", request)).stdout == b"simulated: ver\r\n"


async def test_version_is_accepted_by_the_kubelet(client: CriClient) -> None:
    answer = await client.call("Version", api.VersionRequest())
    assert (answer.version, answer.runtime_api_version) == ("0.1.0", "v1")
    assert answer.runtime_name
    assert answer.runtime_version
    answer = await client.call("Status", api.StatusRequest())
    assert [h.name for h in answer.runtime_handlers] == ["", "runhcs-wcow-process"]
    await client.call("UpdateRuntimeConfig", api.UpdateRuntimeConfigRequest())
    await client.call("RuntimeConfig", api.RuntimeConfigRequest())
    with pytest.raises(RemoteError) as caught:
        await client.call("CheckpointContainer", api.CheckpointContainerRequest())
    assert caught.value.status is grpc.StatusCode.UNIMPLEMENTED


async def test_pods_outlive_the_server(node: Node, home: Path, registry: str) -> None:
    name = await push(home, f"{registry}/app:1", "2022")
    async with node.running() as client:
        await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=name)))
        sandbox = await run_sandbox(client)
        container = await create(client, sandbox, name)
        await start(client, container)
    async with node.running() as client:
        assert (await status(client, container)).state == api.CONTAINER_RUNNING
        request = api.StopContainerRequest(container_id=container, timeout=1)
        await client.call("StopContainer", request)
        assert (await status(client, container)).state == api.CONTAINER_EXITED
    node.backend = SimulatedBackend()  # simulates a reboot
    async with node.running() as client:
        assert (await status(client, container)).exit_code == 0
        listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
        assert [item.id for item in listed.items] == [sandbox]


async def test_pod_annotations_apply_to_containers(client: CriClient, image: str) -> None:
    key = "io.microsoft.container.processor.count"
    sandbox = await run_sandbox(client, annotations={key: "1"})
    counts = []
    for name, own in (("one", {}), ("two", {key: "2"})):
        container = await create(client, sandbox, image, name, annotations=own)
        request = api.ContainerStatusRequest(container_id=container, verbose=True)
        info = json.loads((await client.call("ContainerStatus", request)).info["info"])
        counts.append(info["plan"]["asked"]["cpu_count"])
    assert counts == [1, 2]


async def test_pod_annotations_select_the_image_build(
    client: CriClient, home: Path, registry: str
) -> None:
    older, newer = "10.0.20348.1", "10.0.20348.2113"
    name = await push(home, f"{registry}/narrow:1", older, newer)
    chosen = {}
    for version in (older, newer):
        config = sandbox_config(f"wants-{version}", annotations={"winpod.dev/os-version": version})
        request = api.PullImageRequest(image=api.ImageSpec(image=name), sandbox_config=config)
        pulled = (await client.call("PullImage", request)).image_ref
        run = api.RunPodSandboxRequest(config=config)
        sandbox = (await client.call("RunPodSandbox", run)).pod_sandbox_id
        seen = await status(client, await create(client, sandbox, name))
        assert seen.image_id == pulled
        chosen[version] = pulled
    assert chosen[older] != chosen[newer]


async def test_pods_get_addresses_from_the_pod_cidr(node: Node) -> None:
    async with node.running() as client:
        network = api.NetworkConfig(pod_cidr="10.244.9.0/24")
        request = api.UpdateRuntimeConfigRequest(
            runtime_config=api.RuntimeConfig(network_config=network)
        )
        await client.call("UpdateRuntimeConfig", request)
        sandbox = await run_sandbox(client)
        found = await client.call(
            "PodSandboxStatus", api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        )
        assert found.status.network.ip.startswith("10.244.9.")
        network.pod_cidr = "10.244.9.1/24"
        with pytest.raises(RemoteError, match="invalid pod CIDR"):
            await client.call(
                "UpdateRuntimeConfig",
                api.UpdateRuntimeConfigRequest(
                    runtime_config=api.RuntimeConfig(network_config=network)
                ),
            )

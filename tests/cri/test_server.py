"""The CRI server: all calls, start-up, and listen addresses."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from tests.support.cri_node import (
    LoopbackNetworks,
    Node,
    client,
    create,
    image,
    node,
    run_sandbox,
    start,
    status,
)
from winpod.compute.simulated import SimulatedBackend
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import IMAGE, MESSAGE_LIMIT, RUNTIME, CriClient, RemoteError
from winpod.cri.server import CriServer, ListenFailed, ServerComponents, is_remote_address
from winpod.cri.state import RuntimeState
from winpod.errors import WinpodError
from winpod.field_reader import Field
from winpod.images.pull.puller import Puller
from winpod.images.store.store import Store
from winpod.windows.builds import parse_build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers

__all__ = ["client", "image", "node"]

NEVER = {"CheckpointContainer", "CheckpointPod", "RestorePod"}
ENDLESS = {"GetContainerEvents"}


@asynccontextmanager
async def made(root: Path, handlers: Handlers = BUILTIN_HANDLERS) -> AsyncIterator[CriServer]:
    host = parse_build("2022")
    state = RuntimeState(root / "state.db")
    backend, networks = SimulatedBackend(), LoopbackNetworks()
    with Store(root / "images", host=host, handlers=handlers) as store:
        async with Puller(store) as puller:
            server = CriServer(
                ServerComponents(state, store, puller, backend, networks, host, handlers)
            )
            yield server
            await server.stop()
            state.close()


@pytest.mark.parametrize("method", [*RUNTIME.methods, *IMAGE.methods], ids=lambda m: str(m.name))
async def test_only_checkpoint_calls_are_unimplemented(client: CriClient, method: Any) -> None:
    if method.name in ENDLESS:
        return
    request = GetMessageClass(method.input_type)()
    code = grpc.StatusCode.OK
    try:
        if method.server_streaming:
            async for _ in client.stream(method.name, request):
                pass
        else:
            await client.call(method.name, request)
    except RemoteError as error:
        code = error.status
    assert (code is grpc.StatusCode.UNIMPLEMENTED) == (method.name in NEVER)
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


class SlowNetworks(LoopbackNetworks):
    """Network whose recovery blocks until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.going_on = asyncio.Event(), asyncio.Event()

    async def remove_unknown(self, known: Collection[str]) -> list[str]:
        self.reached.set()
        await self.going_on.wait()
        return await super().remove_unknown(known)


async def test_calls_before_recovery_are_unavailable(tmp_path: Path) -> None:
    networks = SlowNetworks()
    opening = asyncio.create_task(_enter(Node(tmp_path, networks=networks)))
    early = CriClient(f"unix:{tmp_path}/cri.sock")
    await networks.reached.wait()
    for name in ("Version", "ImageFsInfo", "ListPodSandbox"):
        with pytest.raises(RemoteError, match="server is not initialized yet") as caught:
            await early.call(name, getattr(api, f"{name}Request")())
        assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(RemoteError, match="server is not initialized yet"):
        await anext(early.stream("GetContainerEvents", api.GetEventsRequest()))
    networks.going_on.set()
    leave = await opening
    await early.call("Version", api.VersionRequest())
    await early.close()
    await leave()


async def _enter(node: Node) -> Callable[[], Any]:
    context = node.running()
    await context.__aenter__()
    return lambda: context.__aexit__(None, None, None)


async def test_server_listens_on_tcp(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with made(tmp_path) as server:
        await server.start(f"unix:{tmp_path}/cri.sock", f"127.0.0.1:{port}")
        for target in (f"unix:{tmp_path}/cri.sock", f"127.0.0.1:{port}"):
            client = CriClient(target)
            assert (await client.call("Version", api.VersionRequest())).runtime_name == "winpod"
            await client.close()
    assert (tmp_path / "cri.sock").exists() is False


async def test_socket_is_accessible_by_its_owner_only(tmp_path: Path) -> None:
    async with made(tmp_path) as server:
        await server.start(f"unix:{tmp_path}/deep/cri.sock")
        assert (tmp_path / "deep/cri.sock").stat().st_mode & 0o777 == 0o600


async def test_invalid_listen_address_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", "nowhere", f"unix:{tmp_path}/file/cri.sock"):
            async with made(tmp_path) as server:
                with pytest.raises(ListenFailed, match="cannot listen on") as caught:
                    await server.start(address)
                assert address in str(caught.value)


async def test_too_large_message_is_reported(client: CriClient) -> None:
    request = api.RunPodSandboxRequest()
    request.config.annotations["large"] = "x" * MESSAGE_LIMIT
    with pytest.raises(RemoteError, match="RunPodSandbox is larger than the limit of 16 MiB") as e:
        await client.call("RunPodSandbox", request)
    assert e.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    for name in ("one", "other"):
        await run_sandbox(client, name, annotations={"some": "x" * (MESSAGE_LIMIT // 2)})
    with pytest.raises(RemoteError, match="ListPodSandbox is larger than the limit") as e:
        await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    assert e.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_verbose_status_describes_the_runtime(tmp_path: Path) -> None:
    table = {"fast": {"isolation": "process"}, "old": {"isolation": "hypervisor"}}
    async with made(tmp_path, BUILTIN_HANDLERS.with_configuration(Field(table))) as server:
        await server.start(f"unix:{tmp_path}/cri.sock")
        client = CriClient(f"unix:{tmp_path}/cri.sock")
        answer = await client.call("Status", api.StatusRequest(verbose=True))
        brief = await client.call("Status", api.StatusRequest())
        await client.close()
    names = [handler.name for handler in answer.runtime_handlers]
    assert names == ["", "runhcs-wcow-process", "fast"]
    assert not brief.info
    info = {name: json.loads(text) for name, text in answer.info.items()}
    assert info["host"]["build"] == "10.0.20348"
    assert info["compute"]["kind"] == info["network"]["kind"] == "simulated"
    assert info["versions"]["winpod"]
    handlers = {handler["name"]: handler for handler in info["handlers"]}
    assert handlers["old"] == {
        "name": "old",
        "isolation": "hypervisor",
        "build": "10.0.20348",
        "can_start": False,
    }
    assert handlers["runhcs-wcow-hypervisor-17763"]["build"] == "10.0.17763"


CREDENTIAL_SPEC = json.dumps(
    {"ActiveDirectoryConfig": {"GroupManagedServiceAccounts": [{"Name": "web", "Scope": "shop"}]}}
)


async def test_verbose_container_status_has_the_spec(client: CriClient, image: str) -> None:
    sandbox = await run_sandbox(client)
    security = api.WindowsContainerSecurityContext(credential_spec=CREDENTIAL_SPEC)
    windows = api.WindowsContainerConfig(security_context=security)
    container = await create(client, sandbox, image, windows=windows)
    await start(client, container)
    change = api.UpdateContainerResourcesRequest(
        container_id=container, windows=api.WindowsContainerResources(cpu_count=1)
    )
    await client.call("UpdateContainerResources", change)
    request = api.ContainerStatusRequest(container_id=container, verbose=True)
    info = json.loads((await client.call("ContainerStatus", request)).info["info"])
    plan = info["plan"]
    assert info["sandbox"] == sandbox
    assert plan["command_line"] == 'cmd /c "echo hello"'
    assert (plan["asked"]["cpu_count"], plan["limits"]["processors"]) == (1, 1)
    assert plan["credential_spec"] == json.loads(CREDENTIAL_SPEC)
    assert "Wine does not support domain logon" in plan["credential_spec_note"]
    of_sandbox = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
    answer = await client.call("PodSandboxStatus", of_sandbox)
    details = json.loads(answer.info["info"])
    assert details["handler"] == "runhcs-wcow-process"
    assert details["isolation"] == "process"
    assert details["addresses"] == [answer.status.network.ip]
    assert not (await status(client, container)).message


async def test_status_is_answered_if_the_network_fails(client: CriClient, node: Node) -> None:
    node.networks.failure = WinpodError("the bridge is broken.")
    answer = await client.call("Status", api.StatusRequest(verbose=True))
    assert answer.status.conditions[1].message == "the bridge is broken."


@pytest.mark.parametrize(
    ("address", "others"),
    [
        ("127.0.0.1:5000", False),
        ("127.9.9.9:5000", False),
        ("[::1]:5000", False),
        ("localhost:5000", False),
        ("0.0.0.0:5000", True),
        ("[::]:5000", True),
        ("10.0.0.1:5000", True),
        ("node.example:5000", True),
    ],
)
def test_remote_addresses_are_detected(address: str, others: bool) -> None:
    assert is_remote_address(address) == others

"""Runtime with Wine, and its containers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cri_node import run_sandbox, start, status
from tests.support.pushed_images import push
from winpod.compute.process.driver import ProcessIsolation
from winpod.compute.silo_pool import SiloPool
from winpod.compute.wine.backend import WineBackend
from winpod.config import Subnet
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.cri.server import CriServer, ServerComponents
from winpod.cri.state import RuntimeState
from winpod.images.base.builder import Base
from winpod.images.pull.puller import Puller
from winpod.images.store.store import Store
from winpod.network.attachments import Attachment, AttachResult, Dns
from winpod.network.cni import Cni
from winpod.network.netns import InterfaceCounters, NetworkNamespaces, read_counters
from winpod.network.sandbox_network import CniSandboxNetwork
from winpod.windows.builds import parse_build
from winpod.windows.isolation import Isolation

LOOKS = 6000


class LonelyNetworks:
    """Stand-in for CNI: the network namespaces are real and have only loopback."""

    def __init__(self, directory: Path) -> None:
        self.namespaces = NetworkNamespaces(directory)

    async def connect(
        self, attachment: Attachment, netns: Path | None, opened: Callable[[], None]
    ) -> AttachResult:
        self.namespaces.create(attachment.sandbox_id, netns)
        opened()
        return AttachResult("lonely", ("127.0.0.1",), Dns(), {})

    async def disconnect(self, sandbox_id: str) -> None:
        self.namespaces.remove(sandbox_id)

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        nowhere = self.namespaces.directory / "nowhere"
        networks = CniSandboxNetwork(self.namespaces, Cni(nowhere, (), nowhere))
        return await networks.dial(sandbox_id, port, addresses)

    def is_connected(self, sandbox_id: str) -> bool:
        return self.namespaces.exists(sandbox_id)

    def set_subnets(self, subnets: Sequence[Subnet]) -> None:
        del subnets

    async def remove_unknown(self, known: Collection[str]) -> list[str]:
        for name in self.namespaces.names():
            if name not in known:
                self.namespaces.remove(name)
        return []

    def netns(self, sandbox_id: str) -> Path:
        return self.namespaces.path(sandbox_id)

    def counters(self, sandbox_id: str) -> list[InterfaceCounters]:
        return read_counters(self.netns(sandbox_id))

    async def unavailable_reason(self) -> str:
        return ""

    def describe(self) -> dict[str, object]:
        return {"kind": "lonely"}


class Node:
    """Runtime that can be stopped like by a crash, and started again with the same root."""

    def __init__(self, root: Path, base: Base, warm: int = 0, host: str = "2022") -> None:
        self.root = root
        self.warm = warm
        self.host = parse_build(host)
        self.base = base
        self.networks = LonelyNetworks(root / "netns")

    async def __aenter__(self) -> CriClient:
        host = self.host
        self._state = RuntimeState(self.root / "state.db")
        self._store = Store(self.root / "images", host=host)
        self._puller = Puller(self._store)
        self._shells = SiloPool(self.root, self.base, host, self.warm)
        house = ProcessIsolation(self.root, self._shells, host, self.networks.namespaces.path)
        backend = WineBackend(self.root, self.base, {Isolation.PROCESS: house})
        parts = ServerComponents(
            self._state, self._store, self._puller, backend, self.networks, host
        )
        self._server = CriServer(parts)
        target = f"unix:{self.root}/cri.sock"
        await self._server.start(target)
        self._client = CriClient(target)
        return self._client

    async def until_warm(self) -> None:
        for _ in range(LOOKS):
            if len(self._shells.idle_silos) >= self.warm:
                return
            await asyncio.sleep(0.05)
        raise TimeoutError("the warm pool is empty")

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._server.stop()
        await self._puller.__aexit__(None, None, None)
        self._store.close()
        self._state.close()


@pytest.fixture
async def node(base: Base, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path, base)
    yield node
    async with node as client:
        listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
        for item in listed.items:
            request = api.RemovePodSandboxRequest(pod_sandbox_id=item.id)
            await client.call("RemovePodSandbox", request)
    assert list((tmp_path / "containers").glob("*")) == []
    assert node.networks.namespaces.names() == []


async def pulled(client: CriClient, home: Path, registry: str, *versions: str) -> str:
    name = await push(home, f"{registry}/app:1", *(versions or ("10.0.20348.2113",)))
    await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=name)))
    return name


async def ended(client: CriClient, container: str) -> Any:
    for _ in range(LOOKS):
        seen = await status(client, container)
        if seen.state == api.CONTAINER_EXITED:
            return seen
        await asyncio.sleep(0.05)
    raise TimeoutError(container)


def said(log: str, stream: str) -> str:
    """Return the output of a stream, with partial log lines joined."""
    text = ""
    for line in log.splitlines():
        _, where, kind, content = line.split(" ", 3)
        if where == stream:
            text += content.rstrip("\r") + ("\n" if kind == "F" else "")
    return text


async def run(
    client: CriClient, image: str, folder: Path, *command: str, name: str = "app", **more: Any
) -> tuple[Any, str]:
    """Run a container in its own pod until it exits; return its status and its log."""
    sandbox = await run_sandbox(client, name, log_directory=str(folder / "logs"))
    config = {"log_path": f"{name}.log", **more}
    container = await create_with(client, sandbox, image, command, name, config)
    await start(client, container)
    return await ended(client, container), (folder / f"logs/{name}.log").read_text()


async def create_with(
    client: CriClient,
    sandbox: str,
    image: str,
    command: tuple[str, ...],
    name: str,
    more: dict[str, Any],
) -> str:
    config = api.ContainerConfig(
        metadata=api.ContainerMetadata(name=name),
        image=api.ImageSpec(image=image),
        command=command,
        **more,
    )
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
    return str((await client.call("CreateContainer", request)).container_id)

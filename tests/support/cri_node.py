"""CRI server with simulated containers, and calls of its clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.pushed_images import push
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.simulated import SimulatedBackend
from winpod.config import DEFAULT_SUBNETS
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.cri.server import CriServer, ServerComponents
from winpod.cri.state import RuntimeState
from winpod.errors import WinpodError
from winpod.images.pull.puller import Puller
from winpod.images.store.store import Store
from winpod.network.attachments import Attachment, AttachResult
from winpod.network.simulated import SimulatedSandboxNetwork
from winpod.windows.builds import parse_build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers


class LoopbackNetworks(SimulatedSandboxNetwork):
    """Simulated network that can fail; pod ports are those of this machine."""

    def __init__(self) -> None:
        super().__init__(DEFAULT_SUBNETS)
        self.failure: WinpodError | None = None
        self.stuck: WinpodError | None = None

    async def connect(
        self,
        attachment: Attachment,
        netns: Path | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> AttachResult:
        if self.failure:
            raise self.failure
        return await super().connect(attachment, netns, opened)

    async def disconnect(self, sandbox_id: str) -> None:
        if self.stuck:
            raise self.stuck
        await super().disconnect(sandbox_id)

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert sandbox_id in self.connected
        assert addresses
        return await asyncio.open_connection("127.0.0.1", port)

    async def unavailable_reason(self) -> str:
        return str(self.failure or "")


class Node:
    """Runtime that can be abandoned like by a kill, and started again."""

    def __init__(
        self,
        root: Path,
        backend: SimulatedBackend | None = None,
        handlers: Handlers = BUILTIN_HANDLERS,
        accelerator: Accelerator | None = None,
        networks: LoopbackNetworks | None = None,
    ) -> None:
        self.root = root
        self.networks = networks or LoopbackNetworks()
        self.backend = backend or SimulatedBackend()
        self._guests = (handlers, accelerator)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CriClient]:
        host = parse_build("2022")
        state = RuntimeState(self.root / "state.db")
        handlers, accelerator = self._guests
        with Store(self.root / "images", host=host, handlers=handlers) as store:
            async with Puller(store) as puller:
                own = (self.backend, self.networks, host, handlers, accelerator)
                server = CriServer(ServerComponents(state, store, puller, *own))
                target = f"unix:{self.root}/cri.sock"
                await server.start(target)
                client = CriClient(target)
                try:
                    yield client
                finally:
                    await client.close()
                    await server.stop()
                    state.close()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
async def client(node: Node) -> AsyncIterator[CriClient]:
    async with node.running() as client:
        yield client


@pytest.fixture
async def image(client: CriClient, home: Path, registry: str) -> str:
    name = await push(home, f"{registry}/app:1", "2022")
    await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=name)))
    return name


def sandbox_config(name: str = "web", **more: Any) -> api.PodSandboxConfig:
    metadata = api.PodSandboxMetadata(name=name, namespace="shop", uid=f"uid-{name}")
    return api.PodSandboxConfig(metadata=metadata, hostname=name, labels={"app": name}, **more)


async def run_sandbox(client: CriClient, name: str = "web", handler: str = "", **more: Any) -> str:
    request = api.RunPodSandboxRequest(config=sandbox_config(name, **more), runtime_handler=handler)
    return str((await client.call("RunPodSandbox", request)).pod_sandbox_id)


async def create(
    client: CriClient, sandbox: str, image: str, name: str = "app", **more: Any
) -> str:
    config = api.ContainerConfig(
        metadata=api.ContainerMetadata(name=name),
        image=api.ImageSpec(image=image),
        command=["cmd", "/c", "echo hello"],
        labels={"container": name},
        **more,
    )
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
    return str((await client.call("CreateContainer", request)).container_id)


async def start(client: CriClient, container: str) -> None:
    await client.call("StartContainer", api.StartContainerRequest(container_id=container))


async def status(client: CriClient, container: str) -> Any:
    request = api.ContainerStatusRequest(container_id=container)
    return (await client.call("ContainerStatus", request)).status

"""Windows containers through the CRI: a real image, a real Wine, a real log."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cri.services.test_images import push
from tests.cri.test_container_lifecycle import create, run_sandbox, start, status
from tests.support.registries import home, registry

from winpod.compute.process.driver import ProcessIsolation
from winpod.compute.silo_pool import SiloPool
from winpod.compute.wine.backend import WineBackend
from winpod.config import Subnet
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
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

__all__ = ["home", "registry"]

LOOKS = 6000


class LonelyNetworks:
    """A stand-in for CNI: namespaces are real and lead nowhere but to themselves."""

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
    """A runtime that can be stopped, as a crash would, and started again over the same root."""

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
        raise TimeoutError("no shell waits")

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
    """What a program wrote to a stream, its parts joined as readers of the log join them."""
    text = ""
    for line in log.splitlines():
        _, where, kind, content = line.split(" ", 3)
        if where == stream:
            text += content.rstrip("\r") + ("\n" if kind == "F" else "")
    return text


async def run(
    client: CriClient, image: str, folder: Path, *command: str, name: str = "app", **more: Any
) -> tuple[Any, str]:
    """One container in a pod of its own, to its end; its status and its log."""
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


async def test_a_windows_program_runs_and_its_log_and_exit_code_are_kept(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        seen, log = await run(
            client, image, tmp_path, "cmd", "/c", "type app.txt & ver & echo no>&2 & exit 1060"
        )
    assert seen.exit_code == 1060
    assert seen.reason == "Error"
    assert "Microsoft Windows 10.0.20348" in said(log, "stdout")
    assert "app" in said(log, "stdout")
    assert said(log, "stderr").strip() == "no"


async def test_mounts_and_variables_reach_the_program(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/in.txt").write_text("from the host")
    (tmp_path / "one.txt").write_text("one file")
    mounts = [
        api.Mount(host_path=str(tmp_path / "data"), container_path="C:\\Data"),
        api.Mount(host_path=str(tmp_path / "one.txt"), container_path="/etc/one", readonly=True),
    ]
    async with node as client:
        image = await pulled(client, home, registry)
        line = "type c:\\DATA\\in.txt & type C:\\etc\\one & echo %who%>C:\\data\\out.txt"
        envs = [api.KeyValue(key="WHO", value=b"winpod")]
        seen, log = await run(client, image, tmp_path, "cmd", "/c", line, mounts=mounts, envs=envs)
    assert seen.exit_code == 0, log
    assert "from the host" in log
    assert "one file" in log
    assert (tmp_path / "data/out.txt").read_text().strip() == "winpod"


async def test_a_volume_may_be_of_one_container_of_a_pod_and_not_of_the_other(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/in.txt").write_text("from the host")
    mount = api.Mount(host_path=str(tmp_path / "data"), container_path="C:\\data")
    line = ("cmd", "/c", "if exist C:\\data\\in.txt (exit 7) else (exit 8)")
    codes = {}
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        for name, mounts in (("has", [mount]), ("lacks", [])):
            container = await create_with(client, sandbox, image, line, name, {"mounts": mounts})
            await start(client, container)
            codes[name] = (await ended(client, container)).exit_code
    assert codes == {"has": 7, "lacks": 8}


async def test_pods_with_a_handler_and_without_one_run_on_one_node(
    node: Node, home: Path, registry: str
) -> None:
    handlers = {"plain": "", "named": "runhcs-wcow-process"}
    async with node as client:
        image = await pulled(client, home, registry)
        containers = {}
        for name, handler in handlers.items():
            sandbox = await run_sandbox(client, name, handler)
            line = ("cmd", "/c", "exit 7")
            containers[name] = await create_with(client, sandbox, image, line, name, {})
        for container in containers.values():
            await start(client, container)
        codes = [(await ended(client, c)).exit_code for c in containers.values()]
    assert codes == [7, 7]


async def test_a_program_that_is_not_there_fails_in_windows_words(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        container = await create_with(client, sandbox, image, ("gone.exe",), "app", {})
        with pytest.raises(RemoteError, match="The system cannot find the file specified"):
            await start(client, container)
        seen = await status(client, container)
    assert (seen.exit_code, seen.reason) == (128, "StartError")
    assert "cannot find the file" in seen.message
    del tmp_path


async def test_the_container_goes_on_while_the_runtime_is_away(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client, log_directory=str(tmp_path))
        container = await create(client, sandbox, image, log_path="long.log")
        line = ("cmd", "/c", "for /l %i in (1,1,4000) do @(echo %i & ping -n 2 127.0.0.1 >nul)")
        container = await create_with(
            client, sandbox, image, line, "long", {"log_path": "long.log"}
        )
        await start(client, container)
    before = (tmp_path / "long.log").read_text()
    async with node as client:
        assert (await status(client, container)).state == api.CONTAINER_RUNNING
        request = api.ExecSyncRequest(container_id=container, cmd=["cmd", "/c", "echo in"])
        answer = await client.call("ExecSync", request)
        assert (answer.stdout, answer.exit_code) == (b"in\r\n", 0)
        stop = api.StopContainerRequest(container_id=container, timeout=1)
        await client.call("StopContainer", stop)
        assert (await status(client, container)).state == api.CONTAINER_EXITED
    assert len((tmp_path / "long.log").read_text()) >= len(before)


async def test_an_exec_that_takes_too_long_is_ended(node: Node, home: Path, registry: str) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        line = ("cmd", "/c", "ping -n 100 127.0.0.1 >nul")
        container = await create_with(client, sandbox, image, line, "app", {})
        await start(client, container)
        request = api.ExecSyncRequest(container_id=container, cmd=list(line), timeout=1)
        with pytest.raises(RemoteError, match="timed out"):
            await client.call("ExecSync", request)


def limit(node: Node, controller: str, container: str, name: str) -> int:
    group = (node.root / "containers" / container / "shell/id").read_text()
    return int(Path(f"/sys/fs/cgroup/{controller}/winpod/{group}/{name}").read_text())


async def test_limits_are_set_and_changed_while_the_container_runs(
    node: Node, home: Path, registry: str
) -> None:
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        asked = api.WindowsContainerResources(cpu_count=1, memory_limit_in_bytes=512 << 20)
        windows = api.WindowsContainerConfig(resources=asked)
        line = ("cmd", "/c", "ping -n 100 127.0.0.1 >nul")
        container = await create_with(client, sandbox, image, line, "app", {"windows": windows})
        await start(client, container)
        assert limit(node, "memory", container, "memory.limit_in_bytes") == 512 << 20
        assert limit(node, "cpu", container, "cpu.cfs_quota_us") == 100_000
        assert limit(node, "pids", container, "pids.max") > 0
        more = api.WindowsContainerResources(memory_limit_in_bytes=768 << 20)
        change = api.UpdateContainerResourcesRequest(container_id=container, windows=more)
        await client.call("UpdateContainerResources", change)
        assert limit(node, "memory", container, "memory.limit_in_bytes") == 768 << 20

"""Instances for operator tests: stand-ins that respond from memory, with their kubelets.

SSH servers and files are real, at separate loopback addresses, in a thread of this process. The
kubelet of a host runs while its service runs. For other Windows behaviour see
tests/e2e/windows_host.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from tests.support.e2e.fake_kubelet import run_kubelet
from tests.support.payloads import GO_BUILD, program
from tests.support.scripted_windows import ScriptedService, ScriptedWindows
from tests.support.ssh_server import AUTHORIZED, USER, SshServer, ssh_server
from winpod.instances.software.payload import make_payload
from winpod.instances.software.programs import REQUIRED
from winpod.instances.ssh.authorized_keys import public_line

BUILD = "10.0.20348"
_POLL_SECONDS = 0.05
_TIMEOUT = 300
T = TypeVar("T")


@dataclass
class Instance:
    """Host; `kubelet` is the task of its kubelet stand-in, while its service runs."""

    address: str
    port: int
    windows: ScriptedWindows
    server: SshServer
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    kubelet: asyncio.Task[None] | None = None
    is_dead: bool = False

    @property
    def node(self) -> str:
        return self.windows.hostname.lower()

    @property
    def entry(self) -> str:
        return f"username={USER},port={self.port}"

    @property
    def services(self) -> dict[str, str]:
        return {name: one.state for name, one in self.windows.services.items()}

    def path(self, path: str) -> Path:
        return self.windows.local(path)

    @property
    def files(self) -> list[str]:
        drive = self.windows.folder / "C:"
        found = (one.relative_to(drive).as_posix() for one in drive.rglob("*") if one.is_file())
        return sorted(found)


class Fleet:
    """Hosts that are all opened with `key`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.instances: dict[str, Instance] = {}
        self._loop = asyncio.new_event_loop()
        self._numbers = iter(range(11, 250))

    def add(self, name: str, port: int = 0, **windows: Any) -> Instance:
        return self.do(self._add(name, port, windows))

    def add_on_docker(self, name: str, kubeconfig: Path) -> Instance:
        """Add a host set up by an older operator: a node whose kubelet depends on Docker."""
        services = {
            "docker": ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING"),
            "kubelet": ScriptedService(
                r"C:\k\kubelet.exe --windows-service", depends=["docker"], state="RUNNING"
            ),
        }
        instance = self.do(self._add(name, 0, {"services": {}, "features": dict(READY)}))
        instance.path(r"C:\k").mkdir()
        instance.path(r"C:\k\kubeconfig").write_bytes(kubeconfig.read_bytes())
        instance.path(r"C:\k\kubelet.exe").write_bytes(b"MZ old")
        instance.windows.services = services
        return instance

    def remove(self, name: str) -> None:
        """Remove a host, like a deleted machine."""
        self.do(self._remove(self.instances.pop(name)))

    def change_host_key(self, name: str) -> None:
        """Replace the host key, as if another machine responds or this one was reinstalled."""
        instance = self.instances[name]
        self.do(self._reopen(instance))

    def die(self, name: str) -> None:
        """Stop responding."""
        instance = self.instances[name]
        instance.is_dead = True
        self.do(self._remove(instance))

    def come_back(self, name: str) -> None:
        """Respond again, like a machine that was switched on."""
        instance = self.instances[name]
        instance.windows.hangs_at = ""
        instance.windows.reboot()
        self.do(self._reopen(instance, instance.server.host_key))
        instance.is_dead = False

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT)

    async def _add(self, name: str, port: int, windows: dict[str, Any]) -> Instance:
        folder = self.folder / name
        address = f"127.0.77.{next(self._numbers)}"
        scripted = ScriptedWindows(
            folder, hostname=name.upper(), next_hostname=name.upper(), **windows
        )
        stack = AsyncExitStack()
        server = await stack.enter_async_context(
            ssh_server(folder, scripted.reply, address=address, port=port)
        )
        allowed = scripted.local(AUTHORIZED)
        allowed.parent.mkdir(parents=True)
        allowed.write_text(f"{public_line(self.key)} operator\r\n")
        self.instances[name] = Instance(address, server.port, scripted, server, stack)
        return self.instances[name]

    async def _reopen(self, instance: Instance, host_key: asyncssh.SSHKey | None = None) -> None:
        await instance.closing.aclose()
        windows, address, port = instance.windows, instance.address, instance.port
        instance.server = await instance.closing.enter_async_context(
            ssh_server(windows.folder, windows.reply, address=address, port=port, host_key=host_key)
        )

    async def _remove(self, instance: Instance) -> None:
        await _stop(instance)
        await instance.closing.aclose()

    async def _run_kubelets(self) -> None:
        while True:
            for instance in list(self.instances.values()):
                await _run_kubelet(instance)
            await asyncio.sleep(_POLL_SECONDS)

    async def _end(self) -> None:
        for instance in list(self.instances.values()):
            await self._remove(instance)

    @contextmanager
    def running(self) -> Iterator["Fleet"]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        kubelets = asyncio.run_coroutine_threadsafe(self._run_kubelets(), self._loop)
        try:
            yield self
        finally:
            kubelets.cancel()
            self.do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(_TIMEOUT)


READY = {"Containers": "Enabled"}


async def _run_kubelet(instance: Instance) -> None:
    service = instance.windows.services.get("kubelet")
    runs = service is not None and service.state == "RUNNING" and not instance.is_dead
    if instance.kubelet and instance.kubelet.done():
        with contextlib.suppress(Exception):
            instance.kubelet.result()
        instance.kubelet = None
    if service and runs and instance.kubelet is None:
        runtime = "docker" if "docker" in service.depends else "containerd"
        drive = instance.windows.folder / "C:"
        build = f"10.0.{instance.windows.build}"
        kubelet = run_kubelet(drive, instance.node, instance.address, build, runtime)
        instance.kubelet = asyncio.create_task(kubelet)
    elif not runs:
        await _stop(instance)


async def _stop(instance: Instance) -> None:
    if task := instance.kubelet:
        instance.kubelet = None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def payload(folder: Path, version: str) -> Path:
    """Write program stubs; all of them differ between versions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in REQUIRED:
        more = GO_BUILD if name == "containerd.exe" else name.encode()
        (folder / name).write_bytes(program(extra=more + version.encode()))
    make_payload(folder, version)
    return folder


def config_map(namespace: str, entries: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "windows-instances", "namespace": namespace},
        "data": entries,
    }


def key_secret(namespace: str, key: asyncssh.SSHKey) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "cloud-private-key", "namespace": namespace},
        "stringData": {"private-key.pem": key.export_private_key().decode()},
    }

"""`winpod runtime` on a test machine: killed, restarted and inspected.

Its network is a namespace that stands for the machine's; all other state is below one directory,
whose name identifies leftovers on the real machine.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.cri_node import sandbox_config
from tests.support.e2e.microvms import link_kit
from tests.support.e2e.windows_container import link_base
from tests.support.e2e.windows_programs import c_program, cache
from winpod.cli.main import app
from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.compute.hypervisor.assets import build_assets
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import WinpodError
from winpod.images.base.builder import Base

PROGRAM = "hostile.exe"
PATIENCE = 300.0
LEFT_WITHIN = 60.0
_GROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/dev/shm")


class DidNotStart(AssertionError):
    """A runtime exited at its start; the message is its log."""


class RuntimeProcess:
    """Runtime with its `root`; `image` was pulled from an OCI layout next to it.

    Its pods have `handler`, and are microVMs if that is one of hypervisor isolation.
    """

    def __init__(self, folder: Path, base: Base, warm: int = 0, handler: str = "") -> None:
        self.folder = folder
        self.root = folder / "root"
        self.own = self.root / "runtime"
        self.socket = folder / "cri.sock"
        self.log = folder / "runtime.log"
        self.data = folder / "data"
        self.image = ""
        self.handler = handler
        self.config = folder / "config.toml"
        self.client = CriClient(f"unix:{self.socket}")
        self.pid = 0
        for place in (self.root, self.data):
            place.mkdir(exist_ok=True)
        link_base(self.root, base)
        if handler:
            build_assets(cache() / "root")
            link_kit(self.root)
        self.config.write_text(f"[runtime]\nwarm_shells = {warm}\n")
        self._ids = folder / "ids"
        self._ids.touch()
        script = (
            f"ip link set lo up && exec {sys.executable} -m tests.support.e2e.runtime_crash_points"
        )
        command = ["unshare", "--net", "sh", "-c", script]
        self._launcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @classmethod
    @asynccontextmanager
    async def running(
        cls, folder: Path, base: Base, warm: int = 0, handler: str = ""
    ) -> AsyncIterator[Self]:
        """Start a runtime and pull its image; at the end, stop it and assert no leftovers."""
        machine = cls(folder, base, warm, handler)
        try:
            machine.pack()
            await machine.start()
            await machine.pull()
            yield machine
            if not machine.lives():
                await machine.restart()
            await machine.remove_all()
            await machine.end(signal.SIGTERM)
            assert machine.leftovers() == {}
        finally:
            await machine.close()

    def pack(self) -> None:
        content = self.folder / "content"
        content.mkdir()
        shutil.copy(c_program("hostile"), content / PROGRAM)
        arguments = ["image", "pack", str(content), "-t", f"oci:{self.folder}/images:app"]
        arguments += ["--os-version", "2022"]
        app(arguments, standalone_mode=False)

    def spawn(self, die_at: int = 0, **environment: str) -> None:
        """Fork a runtime, which may fail to start."""
        wanted = {
            "WINPOD_CONFIG": str(self.config),
            "WINPOD_ROOT": str(self.root),
            "WINPOD_LOG": str(self.log),
            "WINPOD_DIE": str(self.folder / "die.sock"),
            "WINPOD_IDS": str(self._ids),
            **({"WINPOD_DIE_AT": str(die_at)} if die_at else {}),
            **({ALLOW: "1"} if self.handler else {}),
            **environment,
        }
        arguments = ["runtime", "--socket", str(self.socket)]
        line = json.dumps({"arguments": arguments, "environment": wanted})
        assert self._launcher.stdin
        assert self._launcher.stdout
        self._launcher.stdin.write(line + "\n")
        self._launcher.stdin.flush()
        self.pid = int(self._launcher.stdout.readline())

    async def start(self, die_at: int = 0, **environment: str) -> CriClient:
        self.spawn(die_at, **environment)
        deadline = time.monotonic() + PATIENCE
        while self.lives() and time.monotonic() < deadline:
            if self._listens():
                await self.client.close()
                self.client = CriClient(f"unix:{self.socket}")
                if await self._answers():
                    return self.client
            await asyncio.sleep(0.01)
        raise DidNotStart(self.log.read_text()[-3000:])

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.socket)) == 0

    async def _answers(self) -> bool:
        """Return whether it responds, which is after its recovery."""
        while self.lives():
            try:
                await self.client.call("Version", api.VersionRequest())
            except WinpodError:
                await asyncio.sleep(0.01)
            else:
                return True
        return False

    def lives(self) -> bool:
        return bool(self.pid) and Path(f"/proc/{self.pid}").exists() and not _is_zombie(self.pid)

    def die_at(self, number: int) -> None:
        """Kill it at this effect from now on."""
        self._send(str(number))

    def effects(self) -> int:
        """Return the number of effects since then."""
        return int(self._send("0"))

    def _send(self, text: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.folder / "die.sock"))
            connection.send(text.encode())
            return connection.recv(100).decode()

    async def ended(self) -> None:
        """Wait until the process has exited."""
        assert self._launcher.stdout
        line = await asyncio.to_thread(self._launcher.stdout.readline)
        assert line == "ended\n"
        self.pid = 0

    async def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.pid:  # it may have exited already
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)
            await self.ended()

    async def restart(self) -> CriClient:
        await self.end()
        return await self.start()

    async def close(self) -> None:
        """Remove the test machine and everything on it."""
        await self.end()
        self.power_off()
        await self.client.close()
        assert self._launcher.stdin
        self._launcher.stdin.close()
        self._launcher.wait(PATIENCE)
        assert self._launcher.stdout
        self._launcher.stdout.close()

    # CRI calls

    async def pull(self) -> None:
        spec = api.ImageSpec(image=f"oci:{self.folder}/images:app", runtime_handler=self.handler)
        self.image = (await self.call(api.PullImageRequest(image=spec))).image_ref

    async def call(self, request: Any) -> Any:
        return await self.client.call(type(request).__name__.removesuffix("Request"), request)

    async def run_pod(self, name: str = "pod", **more: Any) -> str:
        config = sandbox_config(name, log_directory=str(self.folder / "logs"), **more)
        request = api.RunPodSandboxRequest(config=config, runtime_handler=self.handler)
        return str((await self.call(request)).pod_sandbox_id)

    def container_request(
        self, sandbox: str, *words: str, name: str = "app", **more: Any
    ) -> api.CreateContainerRequest:
        mount = api.Mount(host_path=str(self.data), container_path="C:\\data")
        config = api.ContainerConfig(
            metadata=api.ContainerMetadata(name=name),
            image=api.ImageSpec(image=self.image),
            command=[f"C:\\{PROGRAM}", *words],
            log_path=f"{name}.log",
            mounts=[mount],
            **more,
        )
        return api.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)

    async def create(self, sandbox: str, *words: str, name: str = "app", **more: Any) -> str:
        request = self.container_request(sandbox, *words, name=name, **more)
        return str((await self.call(request)).container_id)

    async def begin(self, sandbox: str, *words: str, name: str = "app", **more: Any) -> str:
        """Create and start a container of the test program."""
        container = await self.create(sandbox, *words, name=name, **more)
        await self.call(api.StartContainerRequest(container_id=container))
        return container

    async def status(self, container: str) -> Any:
        return (await self.call(api.ContainerStatusRequest(container_id=container))).status

    async def until_exited(self, container: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while (seen := await self.status(container)).state != api.CONTAINER_EXITED:
            assert time.monotonic() < deadline, f"{container} still runs"
            await asyncio.sleep(0.02)
        return seen

    async def until_not_ready(self, sandbox: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while sandbox in (pod.id for pod in await self.pods() if pod.state == api.SANDBOX_READY):
            assert time.monotonic() < deadline, f"{sandbox} is still ready"
            await asyncio.sleep(0.02)

    async def until_said(self, text: str, name: str = "app") -> str:
        deadline = time.monotonic() + PATIENCE
        while text not in (log := self.said(name)):
            assert time.monotonic() < deadline, f"{text!r} is not in {log[-500:]!r}"
            await asyncio.sleep(0.02)
        return log

    def said(self, name: str = "app") -> str:
        log = self.folder / f"logs/{name}.log"
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        return "".join(line.split(" ", 3)[3] + "\n" for line in lines)

    async def pods(self) -> list[Any]:
        return list((await self.call(api.ListPodSandboxRequest())).items)

    async def containers(self) -> list[Any]:
        return list((await self.call(api.ListContainersRequest())).containers)

    async def stop(self, container: str, seconds: int = 0) -> None:
        await self.call(api.StopContainerRequest(container_id=container, timeout=seconds))

    async def remove(self, container: str) -> None:
        await self.call(api.RemoveContainerRequest(container_id=container))

    async def stop_pod(self, sandbox: str) -> None:
        await self.call(api.StopPodSandboxRequest(pod_sandbox_id=sandbox))

    async def remove_pod(self, sandbox: str) -> None:
        await self.call(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    async def remove_all(self) -> None:
        for pod in await self.pods():
            await self.remove_pod(pod.id)
        for container in await self.containers():
            await self.remove(container.id)

    async def until_warm(self, count: int) -> None:
        """Wait until the warm pool has this many silos."""
        deadline = time.monotonic() + PATIENCE
        while await self._warm_count() < count:
            assert time.monotonic() < deadline, "the warm pool was not filled"
            await asyncio.sleep(0.02)

    async def _warm_count(self) -> int:
        status = await self.call(api.StatusRequest(verbose=True))
        return int(json.loads(status.info["compute"])["warm_shells"]["waiting"])

    # State of the machine

    def folder_of(self, container: str) -> Path:
        return self.own / "containers" / container

    def leftovers(self, *kinds: str, besides: Sequence[str] = ()) -> dict[str, list[str]]:
        """Return everything that pods left behind, except warm silos; empty if nothing is left.

        `besides` are patterns to ignore. Waits, because the kernel and the runtime remove some of
        it asynchronously.
        """
        deadline = time.monotonic() + LEFT_WITHIN
        while found := self._find_leftovers():
            found = {kind: names for kind, names in found.items() if not kinds or kind in kinds}
            found = _exclude(found, besides)
            if not found or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return found

    def until_cleared(self) -> None:
        """Wait until the deferred deletes are done, or the runtime has exited."""
        while self.lives() and _names(self.own, "leavings/*"):
            time.sleep(0.01)

    def _find_leftovers(self) -> dict[str, list[str]]:
        waiting = set(self._warm_silo_ids())
        found = {
            "containers": _names(self.own, "containers/*"),
            "sandboxes": _names(self.own, "sandboxes/*"),
            "leavings": _names(self.own, "leavings/*"),
            "namespaces": _names(self.own, "netns/*"),
            "runc": [name for name in _names(self.own, "oci/*") if name not in waiting],
            "leases": [n for n in _names(self.own, "cni/leases/*/*") if n[0].isdigit()],
            "cache": _names(self.own, "cni/cache/results/*"),
            "links": self.links(),
            "rules": self.rules(),
            "mounts": [place for place in self.mounts() if not _is_warm_silo(place)],
            "disks": [file for file in self.disks() if not _is_warm_silo(file)],
            "processes": [text for text in self.processes() if not _is_warm_silo(text)],
            "groups": [group.name for group in self._groups() if group.name not in waiting],
            "memory": [name for name in _names(_MEMORY, "winpod-*") if name in self._memories()],
        }
        return {kind: names for kind, names in found.items() if names}

    def _warm_silo_ids(self) -> Iterator[str]:
        for shell in (*self.own.glob("warm/*/id"), *self.own.glob("sandboxes/*/shell/id")):
            with contextlib.suppress(FileNotFoundError):
                yield shell.read_text()

    def _run_in_netns(self, *command: str) -> str:
        inside = ["nsenter", f"--net=/proc/{self._launcher.pid}/ns/net", *command]
        return subprocess.run(inside, check=True, capture_output=True, text=True).stdout

    def links(self) -> list[str]:
        links = json.loads(self._run_in_netns("ip", "-json", "link", "show"))
        return [link["ifname"] for link in links if link["ifname"].startswith("veth")]

    def rules(self) -> list[str]:
        rules = self._run_in_netns("iptables-save").splitlines()
        of_one = [r for r in rules if "id: " in r or r.startswith(":CNI-")]
        return [rule for rule in of_one if "HOSTPORT" not in rule]

    def mounts(self) -> list[str]:
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        places = (line.split()[4] for line in table)
        return [place for place in places if place.startswith(str(self.root))]

    def disks(self) -> list[str]:
        files = []
        for file in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                files.append(file.read_text().strip())
        return [file for file in files if file.startswith(str(self.root))]

    def processes(self) -> list[str]:
        """Return processes of containers, and those with the root in their command line."""
        return [f"{pid} {line[:200]} {place}" for pid, line, place in self._processes()]

    def _processes(self) -> Iterator[tuple[int, str, str]]:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = os.fsdecode((folder / "cmdline").read_bytes()).replace("\0", " ")
                prefix = _prefix(folder)
                own = f"{self.own}/"
                is_own = own in line or prefix.startswith(own) or _is_rooted_in(folder, own)
                if is_own and int(folder.name) != self.pid:
                    yield int(folder.name), line, prefix

    def _groups(self) -> list[Path]:
        names = set(self._ids.read_text().split())
        found = (*_GROUPS.glob("winpod/*"), *_GROUPS.glob("*/winpod/*"))
        return [group for group in found if group.name in names]

    def _memories(self) -> set[str]:
        """Return the names of its microVMs' memory files."""
        names = self._ids.read_text().split()
        return {f"winpod-{name[3:]}" for name in names if name.startswith("vm-")}

    def power_off(self) -> None:
        """Remove what a machine loses with its power: processes, mounts, cgroups."""
        while found := list(self._processes()):
            for at_once in (signal.SIGSTOP, signal.SIGKILL):  # none may react
                for pid, _, _ in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, at_once)
            time.sleep(0.02)
        for place in sorted(self.mounts(), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=True)
        for file in self.own.glob("*/**/shell.pid"):
            for group in _GROUPS.glob(f"*/winpod/{(file.parent / 'id').read_text()}"):
                _remove_group(group)
        for group in self._groups():
            if group.name.startswith("vm-"):
                _remove_group(group)
        for name in self._memories():
            (_MEMORY / name).unlink(missing_ok=True)
        shutil.rmtree(self.own / "oci", ignore_errors=True)


def _exclude(found: dict[str, list[str]], stay: Sequence[str]) -> dict[str, list[str]]:
    others = {
        kind: [name for name in names if not any(re.search(one, name) for one in stay)]
        for kind, names in found.items()
    }
    return {kind: names for kind, names in others.items() if names}


def _is_warm_silo(text: str) -> bool:
    """Return whether the text names a silo that waits for its pod or its first container."""
    return "/warm/" in text or re.search("/sandboxes/[^/]+/shell", text) is not None


def _is_rooted_in(process: Path, folder: str) -> bool:
    """Return whether a process has its cwd or root there, like QEMU and virtiofsd."""
    places = (str((process / link).readlink()) for link in ("cwd", "root"))
    return any(place.startswith(folder) for place in places)


def _prefix(process: Path) -> str:
    """Return the path of the Wine prefix of a container's process on this machine."""
    if (process / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
        return ""
    rows = (line.split() for line in (process / "mountinfo").read_text().splitlines())
    return next((row[3] for row in rows if row[4] == "/prefix"), "")


def _remove_group(group: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)


def _names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

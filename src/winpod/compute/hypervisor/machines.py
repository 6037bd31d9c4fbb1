"""A pod's microVM: a clone of the template, with the pod's own directories, network and memory.

Everything of it is in one directory. QEMU and the two servers of its files run without this
process, in one control group, and are found again by their names; what ends QEMU ends the pod. What
a guest makes them say has no end, so it goes to pipes, which keep the first of it and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from winpod.compute import cgroups
from winpod.compute.errors import MachineFailed, MachineGone
from winpod.compute.hypervisor.arguments import (
    CONSOLE,
    CONTROL,
    KEPT_WORDS,
    SOCKETS,
    qemu_arguments,
    virtiofsd_arguments,
)
from winpod.compute.hypervisor.asked import OVERHEAD, MachineAsked
from winpod.compute.hypervisor.guest import PATIENCE, Guest
from winpod.compute.hypervisor.guest_disks import GuestDisks
from winpod.compute.hypervisor.qmp import Qmp
from winpod.compute.hypervisor.shares import SHARES, clear_shares, mount_share, open_shares
from winpod.compute.hypervisor.sizing import Size, Sizing, most_here, refuse_beyond
from winpod.compute.hypervisor.template import Template
from winpod.compute.processes import is_about, read_pid, until_gone

_MEMORY = Path("/dev/shm")  # noqa: S108 - memory is what it is for
_MOST_SAID = 1 << 16
_SHOWN = 500
_CONSOLE_SECONDS = 5.0
_log = logging.getLogger(__name__)
_IN_GROUP = 'for file in $1; do echo $$ >"$file" || exit 1; done; shift; exec "$@"'


class PodMachine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guest = Guest(folder / CONTROL)
        self.disks = GuestDisks(folder, self.guest)
        self.size = Sizing(folder, self.guest, self.group)
        self._saying: dict[str, int] = {}

    @property
    def group(self) -> str:
        return f"vm-{self.folder.parent.name}"

    @property
    def pid(self) -> int | None:
        """Of QEMU, while it lives."""
        pid = read_pid(self.folder / "qemu.pid")
        return pid if is_about(pid, self._memory) else None

    @property
    def _memory(self) -> Path:
        return _MEMORY / f"winpod-{self.folder.parent.name}"

    async def clone(self, template: Template, asked: MachineAsked) -> None:
        """Returns when the guest answers, of the size asked for; else nothing of it runs."""
        refuse_beyond(Size(asked.memory), most_here())
        await asyncio.to_thread(open_shares, self.folder)
        try:
            await self._run(template, asked)
            await self.size.begin(asked)
        except BaseException:
            await asyncio.shield(self.end())
            raise
        finally:
            while self._saying:
                os.close(self._saying.popitem()[1])

    async def _run(self, template: Template, asked: MachineAsked) -> None:
        await asyncio.to_thread(cgroups.make_group, self.group, asked.memory + OVERHEAD)
        await self._start(
            "memory", ["cp", "--sparse=always", str(template.memory), str(self._memory)]
        )
        for share, changes in SHARES.items():
            words = virtiofsd_arguments(Path(f"{share}.sock"), Path(share), changes=changes)
            await self._start(share, template.kit.virtiofsd(*words))
        words = qemu_arguments(template.machine(self._memory), waits=True, reserved=asked.reserved)
        await self._start("qemu", [*_powerless(asked), *template.kit.qemu(*words)])
        await self._resume(template)
        self._memory.unlink()
        await self._greet()

    async def _start(self, name: str, command: Sequence[str]) -> None:
        files = " ".join(map(str, cgroups.member_files(self.group)))
        said = self._saying[name] = _lasting_pipe(self.folder / f"{name}.log")
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", _IN_GROUP, "sh", files, *command),
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        (self.folder / f"{name}.pid").write_text(str(process.pid))
        if name == "memory" and await process.wait():
            raise MachineFailed(f"its memory could not be copied: {self._said(name)}")

    async def _resume(self, template: Template) -> None:
        """What the template was, and then the devices of the pod's own."""
        await self._until_listens("qemu", "qmp")
        for share in SHARES:
            await self._until_listens(share, f"{share}.sock")
        async with Qmp(self.folder / "qmp") as qmp:
            shared = [{"capability": "x-ignore-shared", "state": True}]
            await qmp.do("migrate-set-capabilities", capabilities=shared)
            await qmp.do("migrate-incoming", uri=f"file:{template.devices}")
            while (status := (await qmp.do("query-migrate")).get("status")) != "completed":
                if status == "failed":
                    raise MachineFailed(f"it could not be resumed: {self._said('qemu')}")
                await asyncio.sleep(0.005)
            for share in SHARES:
                address = {"type": "unix", "data": {"path": f"{share}.sock"}}
                backend = {"type": "socket", "data": {"addr": address, "server": False}}
                await qmp.do("chardev-add", id=share, backend=backend)
                device = {"driver": "vhost-user-fs-pci", "id": f"fs-{share}", "chardev": share}
                place = f"root{SOCKETS[share]}"
                await qmp.do("device_add", **device, tag=share, bus=place)
            await qmp.do("cont")

    async def _until_listens(self, name: str, socket: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / socket).exists():
            if time.monotonic() > deadline or not self._lives(name):
                raise MachineFailed(f"its server {name} did not start: {self._said(name)}")
            await asyncio.sleep(0.005)

    async def _greet(self) -> None:
        """A clone has the template's clock and its random numbers, until it is told better."""
        await self.guest.until_up(PATIENCE, lambda: self._lives("qemu"))
        await self.guest.ask("clock", f"{time.time():.6f}")
        await self.guest.ask("stir", secrets.token_hex(64))
        for share in SHARES:
            await mount_share(self.guest, share)

    def _lives(self, name: str) -> bool:
        pid = read_pid(self.folder / f"{name}.pid")
        return pid is not None and Path(f"/proc/{pid}").exists()

    def _said(self, name: str) -> str:
        try:
            said = os.read(self._saying[name], _MOST_SAID)
        except BlockingIOError:
            return "nothing"
        return said.decode(errors="replace")[-_SHOWN:].strip()

    async def add_port(self, name: str) -> None:
        """A way to a further shell, at the socket of that name."""
        async with Qmp(self.folder / "qmp") as qmp:
            address = {"type": "unix", "data": {"path": name}}
            backend = {"type": "socket", "data": {"addr": address, "server": True, "wait": False}}
            await qmp.do("chardev-add", id=name, backend=backend)
            port = {"driver": "virtserialport", "bus": "serial.0", "chardev": name, "name": name}
            await qmp.do("device_add", **port, id=f"port-{name}")

    async def remove_port(self, name: str) -> None:
        async with Qmp(self.folder / "qmp") as qmp:
            with contextlib.suppress(MachineFailed):
                await qmp.do("device_del", id=f"port-{name}")
                await qmp.do("chardev-remove", id=name)
        (self.folder / name).unlink(missing_ok=True)

    async def plug_network(self, tap: int, mac: str, mtu: int) -> None:
        async with Qmp(self.folder / "qmp") as qmp:
            await qmp.hand_over("tap", tap)
            await qmp.do("netdev_add", type="tap", id="network", fd="tap")
            device = {"driver": "virtio-net-pci", "netdev": "network", "id": "network-card"}
            place = f"root{SOCKETS['network']}"
            await qmp.do("device_add", **device, mac=mac, host_mtu=mtu, bus=place)

    @property
    def is_whole(self) -> bool:
        return len(self._own()) > len(SHARES)

    def _own(self) -> list[int]:
        """The processes without which there is no guest, those of them that live."""
        found = (read_pid(self.folder / f"{name}.pid") for name in ("qemu", *SHARES))
        return [pid for pid in found if pid and self._is_own(pid)]

    async def until_dead(self) -> None:
        """Until QEMU has ended, or a server of its files, or the guest answers nobody any more: a
        guest that waits for one, or does nothing, is no use, and nothing of it runs afterwards."""
        ends = [asyncio.ensure_future(until_gone(pid)) for pid in self._own()]
        if len(ends) > len(SHARES):
            silence = asyncio.ensure_future(self.guest.until_silent())
            ends.append(silence)
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            if silence.done():
                said = await self._console()
                _log.warning(
                    "the microVM in %s answers nothing; its console: %r", self.folder, said
                )
        await self.kill()

    async def _console(self) -> str:
        """The last of what the guest's kernel said."""
        try:
            async with asyncio.timeout(_CONSOLE_SECONDS), Qmp(self.folder / "qmp") as qmp:
                said: str = await qmp.do("ringbuf-read", device=CONSOLE, size=KEPT_WORDS)
        except (MachineFailed, MachineGone, TimeoutError):
            return ""
        return said[-_SHOWN:]

    async def kill(self) -> None:
        """All that runs of it."""
        self.guest.close()
        for name in ("qemu", *SHARES, "memory"):
            pid = read_pid(self.folder / f"{name}.pid")
            if pid and self._is_own(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                await until_gone(pid)

    def _is_own(self, pid: int) -> bool:
        try:
            return self.group in Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            return False

    async def end(self) -> None:
        """However much of it there is; its directory stays."""
        await self.kill()
        await asyncio.to_thread(cgroups.remove_group, self.group)
        self._memory.unlink(missing_ok=True)
        await asyncio.to_thread(clear_shares, self.folder)


def _lasting_pipe(path: Path) -> int:
    """Both ends of it: who writes never waits for a reader, nor is ended by there being none."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _powerless(asked: MachineAsked) -> list[str]:
    """Whoever breaks out of a guest has no capability, but to lock memory where that is needed."""
    kept = ",+ipc_lock" if asked.reserved else ""
    return ["setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all", "--no-new-privs"]

"""A pod's microVM: a clone of the template with the pod's shares, network and memory.

All state is in one directory. QEMU and the two virtiofsd run without the daemon, in one cgroup, and
are found again by their pid files; if QEMU ends, the pod ends. A guest can make them write endless
output, so that goes to pipes that are never read, which keep only the first of it.
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
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.errors import MicroVmFailed, MicroVmGone
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, GuestClient
from winpod.compute.hypervisor.guest_disks import GuestDisks
from winpod.compute.hypervisor.hotplug import Hotplug, MicroVmSize, host_capacity, require_capacity
from winpod.compute.hypervisor.qemu import (
    CONSOLE,
    CONSOLE_BUFFER_BYTES,
    CONTROL,
    PCIE_ROOT_PORTS,
    QmpClient,
    qemu_arguments,
    virtiofsd_arguments,
)
from winpod.compute.hypervisor.template import Template
from winpod.compute.hypervisor.virtiofs import (
    SHARES,
    create_share_directories,
    mount_share,
    remove_all_shares,
)
from winpod.compute.hypervisor.vm_annotations import MEMORY_OVERHEAD, MicroVmRequest
from winpod.concurrency import run_to_completion
from winpod.subprocesses import is_process_of, read_pid, wait_process_exit

_MEMORY = Path("/dev/shm")  # noqa: S108 - memory is what it is for
_MAX_OUTPUT = 1 << 16
_SHOWN_OUTPUT = 500
_CONSOLE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class MicroVm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guest = GuestClient(folder / CONTROL)
        self.disks = GuestDisks(folder, self.guest)
        self.size = Hotplug(folder, self.guest, self.cgroup)
        self._output_pipes: dict[str, int] = {}

    @property
    def cgroup(self) -> str:
        return f"vm-{self.folder.parent.name}"

    @property
    def pid(self) -> int | None:
        """The pid of QEMU, while it lives."""
        pid = read_pid(self.folder / "qemu.pid")
        return pid if is_process_of(pid, self._memory) else None

    @property
    def _memory(self) -> Path:
        return _MEMORY / f"winpod-{self.folder.parent.name}"

    async def clone(self, template: Template, request: MicroVmRequest) -> None:
        """Clone the template and resize the guest. Destroys the microVM on failure."""
        require_capacity(MicroVmSize(request.memory), host_capacity())
        await asyncio.to_thread(create_share_directories, self.folder)
        try:
            await self._run(template, request)
            await self.size.start(request)
        except BaseException:
            await run_to_completion(self.destroy())
            raise
        finally:
            while self._output_pipes:
                os.close(self._output_pipes.popitem()[1])

    async def _run(self, template: Template, request: MicroVmRequest) -> None:
        await asyncio.to_thread(
            cgroups.create_cgroup, self.cgroup, request.memory + MEMORY_OVERHEAD
        )
        await self._start(
            "memory", ["cp", "--sparse=always", str(template.memory), str(self._memory)]
        )
        for share, host_writes in SHARES.items():
            arguments = virtiofsd_arguments(
                Path(f"{share}.sock"), Path(share), host_writes=host_writes
            )
            await self._start(share, template.assets.virtiofsd(*arguments))
        arguments = qemu_arguments(
            template.machine(self._memory), is_clone=True, reserved=request.reserved
        )
        await self._start("qemu", [*_drop_capabilities(request), *template.assets.qemu(*arguments)])
        await self._resume(template)
        self._memory.unlink()
        await self._initialize_guest()

    async def _start(self, name: str, command: Sequence[str]) -> None:
        output = self._output_pipes[name] = _persistent_pipe(self.folder / f"{name}.log")
        process = await asyncio.create_subprocess_exec(
            *cgroups.in_cgroup(self.cgroup, command),
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        (self.folder / f"{name}.pid").write_text(str(process.pid))
        if name == "memory" and await process.wait():
            raise MicroVmFailed(f"its memory could not be copied: {self._output(name)}")

    async def _resume(self, template: Template) -> None:
        """Restore the state of the template, and plug in the pod's shares."""
        await self._wait_socket("qemu", "qmp")
        for share in SHARES:
            await self._wait_socket(share, f"{share}.sock")
        async with QmpClient(self.folder / "qmp") as qmp:
            shared = [{"capability": "x-ignore-shared", "state": True}]
            await qmp.execute("migrate-set-capabilities", capabilities=shared)
            await qmp.execute("migrate-incoming", uri=f"file:{template.devices}")
            while (status := (await qmp.execute("query-migrate")).get("status")) != "completed":
                if status == "failed":
                    raise MicroVmFailed(f"it could not be resumed: {self._output('qemu')}")
                await asyncio.sleep(0.005)
            for share in SHARES:
                address = {"type": "unix", "data": {"path": f"{share}.sock"}}
                backend = {"type": "socket", "data": {"addr": address, "server": False}}
                await qmp.execute("chardev-add", id=share, backend=backend)
                device = {"driver": "vhost-user-fs-pci", "id": f"fs-{share}", "chardev": share}
                root_port = f"root{PCIE_ROOT_PORTS[share]}"
                await qmp.execute("device_add", **device, tag=share, bus=root_port)
            await qmp.execute("cont")

    async def _wait_socket(self, name: str, socket: str) -> None:
        deadline = time.monotonic() + GUEST_TIMEOUT
        while not (self.folder / socket).exists():
            if time.monotonic() > deadline or not self._is_running(name):
                raise MicroVmFailed(f"its process {name} did not start: {self._output(name)}")
            await asyncio.sleep(0.005)

    async def _initialize_guest(self) -> None:
        """Set the clock, reseed random numbers, which are the template's, and mount shares."""
        await self.guest.wait_ready(GUEST_TIMEOUT, lambda: self._is_running("qemu"))
        await self.guest.request(GuestCommand.SET_CLOCK, f"{time.time():.6f}")
        await self.guest.request(GuestCommand.ADD_ENTROPY, secrets.token_hex(64))
        for share in SHARES:
            await mount_share(self.guest, share)

    def _is_running(self, name: str) -> bool:
        pid = read_pid(self.folder / f"{name}.pid")
        return pid is not None and Path(f"/proc/{pid}").exists()

    def _output(self, name: str) -> str:
        try:
            output = os.read(self._output_pipes[name], _MAX_OUTPUT)
        except BlockingIOError:
            return "no output"
        return output.decode(errors="replace")[-_SHOWN_OUTPUT:].strip()

    async def add_port(self, name: str) -> None:
        """Add a virtio port for a silo, at the socket of that name."""
        async with QmpClient(self.folder / "qmp") as qmp:
            address = {"type": "unix", "data": {"path": name}}
            backend = {"type": "socket", "data": {"addr": address, "server": True, "wait": False}}
            await qmp.execute("chardev-add", id=name, backend=backend)
            port = {"driver": "virtserialport", "bus": "serial.0", "chardev": name, "name": name}
            await qmp.execute("device_add", **port, id=f"port-{name}")

    async def remove_port(self, name: str) -> None:
        async with QmpClient(self.folder / "qmp") as qmp:
            with contextlib.suppress(MicroVmFailed):
                await qmp.execute("device_del", id=f"port-{name}")
                await qmp.execute("chardev-remove", id=name)
        (self.folder / name).unlink(missing_ok=True)

    async def plug_network(self, tap: int, mac: str, mtu: int) -> None:
        async with QmpClient(self.folder / "qmp") as qmp:
            await qmp.send_fd("tap", tap)
            await qmp.execute("netdev_add", type="tap", id="network", fd="tap")
            device = {"driver": "virtio-net-pci", "netdev": "network", "id": "network-card"}
            root_port = f"root{PCIE_ROOT_PORTS['network']}"
            await qmp.execute("device_add", **device, mac=mac, host_mtu=mtu, bus=root_port)

    @property
    def is_complete(self) -> bool:
        return len(self._required_processes()) > len(SHARES)

    def _required_processes(self) -> list[int]:
        """Return the pids of QEMU and virtiofsd that are running."""
        pids = (read_pid(self.folder / f"{name}.pid") for name in ("qemu", *SHARES))
        return [pid for pid in pids if pid and cgroups.is_running_in(pid, self.cgroup)]

    async def wait_dead(self) -> None:
        """Wait until QEMU or virtiofsd exits, or the guest stops responding; then kill all.

        A guest without its shares hangs.
        """
        exits = [
            asyncio.ensure_future(wait_process_exit(pid)) for pid in self._required_processes()
        ]
        if len(exits) > len(SHARES):
            unresponsive = asyncio.ensure_future(self.guest.wait_unresponsive())
            exits.append(unresponsive)
            try:
                await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for exit_ in exits:
                    exit_.cancel()
            if unresponsive.done():
                output = await self._console()
                _log.warning(
                    "MicroVM %s is unresponsive; last console output: %r", self.folder, output
                )
        await self.kill()

    async def _console(self) -> str:
        """Return the end of the guest's console output."""
        try:
            async with asyncio.timeout(_CONSOLE_SECONDS), QmpClient(self.folder / "qmp") as qmp:
                output: str = await qmp.execute(
                    "ringbuf-read", device=CONSOLE, size=CONSOLE_BUFFER_BYTES
                )
        except (MicroVmFailed, MicroVmGone, TimeoutError):
            return ""
        return output[-_SHOWN_OUTPUT:]

    async def kill(self) -> None:
        """Kill all processes of the microVM."""
        self.guest.close()
        for name in ("qemu", *SHARES, "memory"):
            pid = read_pid(self.folder / f"{name}.pid")
            if pid and cgroups.is_running_in(pid, self.cgroup):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                await wait_process_exit(pid)

    async def destroy(self) -> None:
        """Remove the microVM, also a partially created one; keep its directory."""
        await self.kill()
        await asyncio.to_thread(cgroups.remove_cgroup, self.cgroup)
        self._memory.unlink(missing_ok=True)
        await asyncio.to_thread(remove_all_shares, self.folder)


def _persistent_pipe(path: Path) -> int:
    """Open both ends of a pipe, so that writers neither block nor get SIGPIPE."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _drop_capabilities(request: MicroVmRequest) -> list[str]:
    """Drop all capabilities of QEMU, except to lock memory where that is needed."""
    kept = ",+ipc_lock" if request.reserved else ""
    return ["setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all", "--no-new-privs"]

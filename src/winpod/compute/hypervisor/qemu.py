"""Command lines of QEMU and virtiofsd, and a client of QMP.

A template and its clones must be the same machine, down to the order of devices; a pod's own
devices are hotplugged. The serial console of a template goes to a file, because only winpod's own
programs run in it. A pod could write without end, so of a clone's console QEMU keeps only the last
in memory.

QMP has one JSON object per line on a Unix socket. QEMU accepts one connection at a time.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winpod.compute.agent.client import short_socket_path
from winpod.compute.errors import MicroVmFailed, MicroVmGone
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT

MEMORY = 512 << 20
"""Memory that a guest boots with; more is hotplugged."""
MAX_MEMORY = 64 << 30
DEFAULT_CPUS = 2
"""As Hyper-V gives a pod by default. The template has them online, so clones need not start any."""
CONTROL, WARM = "control", "warm"
"""Ports of every guest: that of its first process, and that of the silo in the template."""
CONSOLE = "console"
CONSOLE_BUFFER_BYTES = 1 << 16

PCIE_ROOT_PORTS = {"drives": 0, "volumes": 1, "network": 2, "memory": 3}
"""The PCIe root ports of the pod's own devices."""
_ROOT_PORTS = 16
DISK_ROOT_PORTS = range(len(PCIE_ROOT_PORTS), _ROOT_PORTS)
"""The root ports of disks that containers mount."""
_EMULATION = "tcg,thread=single,tb-size=256"
"""With one thread per processor a guest sometimes missed an end of interrupt soon after it was
cloned: the processor ignored interrupts from then on, and the guest hung."""
_KERNEL = (
    f"console=ttyS0 quiet panic=-1 reboot=t maxcpus={DEFAULT_CPUS} mitigations=off nokaslr "
    "random.trust_cpu=on memhp_default_state=online memory_hotplug.online_policy=auto-movable"
)
"""The auto-movable policy keeps some hotplugged memory for the kernel, which needs it to manage the
rest."""
_EMULATED = "tsc=reliable init_on_alloc=1 TIMER_SLACK=25000000"
"""tsc: the kernel's other clock wraps after 4.7 s, so a guest that gets no CPU time for so long
hangs. init_on_alloc: pages are cleared before use, because the emulator does not notice that
virtiofsd writes to pages with translated code. TIMER_SLACK: timers may be late by that many
nanoseconds; Windows' own are by up to 15 ms."""


@dataclass(frozen=True, slots=True)
class QemuConfig:
    """The files of a machine, which is started in the directory of its sockets."""

    memory: Path
    kernel: Path
    initial: Path
    base: Path
    accelerator: Accelerator
    processors: int


def qemu_arguments(machine: QemuConfig, *, is_clone: bool, reserved: bool = False) -> list[str]:
    """Return QEMU's arguments. A clone waits for the saved state of the template.

    `reserved` memory is allocated at the start and never paged out.
    """
    with_kvm = machine.accelerator is Accelerator.KVM
    arguments = ["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"]
    arguments += ["-M", "q35,usb=off,smm=off,vmport=off,hpet=off,memory-backend=ram"]
    arguments += [
        "-accel",
        "kvm" if with_kvm else _EMULATION,
        "-cpu",
        "host" if with_kvm else "max",
    ]
    arguments += [
        "-smp",
        str(machine.processors),
        "-m",
        f"size={MEMORY}B,slots=4,maxmem={MAX_MEMORY}B",
    ]
    ram = f"memory-backend-file,id=ram,size={MEMORY}B,share=on,mem-path={machine.memory}"
    arguments += ["-object", f"{ram},prealloc=on" if reserved else ram]
    arguments += ["-kernel", str(machine.kernel), "-initrd", str(machine.initial), "-append"]
    arguments += [_KERNEL if with_kvm else f"{_KERNEL} {_EMULATED}"]
    chardev = f"ringbuf,size={CONSOLE_BUFFER_BYTES}" if is_clone else f"file,path={CONSOLE}"
    arguments += ["-chardev", f"{chardev},id={CONSOLE}", "-serial", f"chardev:{CONSOLE}"]
    arguments += ["-qmp", "unix:qmp,server=on,wait=off"]
    disk = f"raw,node-name=base,read-only=on,file.driver=file,file.filename={machine.base}"
    arguments += ["-blockdev", f"{disk},file.locking=off"]
    arguments += ["-device", "virtio-blk-pci,drive=base,id=base-disk"]
    arguments += ["-device", "virtio-serial-pci,id=serial,max_ports=31"]
    for name in (CONTROL, WARM):
        arguments += ["-chardev", f"socket,id={name},path={name},server=on,wait=off"]
        port = f"virtserialport,bus=serial.0,chardev={name},name={name},id=port-{name}"
        arguments += ["-device", port]
    for number in range(_ROOT_PORTS):
        address = f"chassis={number + 1},slot={number + 1}"
        arguments += ["-device", f"pcie-root-port,id=root{number},{address}"]
    arguments += [
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    ]
    arguments += ["-overcommit", "mem-lock=on-fault"] if reserved else []
    return [*arguments, *(["-incoming", "defer"] if is_clone else [])]


def virtiofsd_arguments(socket: Path, shared: Path, *, host_writes: bool) -> list[str]:
    """Return virtiofsd's arguments. With `host_writes` the guest revalidates its cache."""
    arguments = ["--socket-path", str(socket), "--shared-dir", str(shared), "--sandbox", "chroot"]
    arguments += ["--cache", "auto" if host_writes else "always", "--xattr", "--announce-submounts"]
    return [*arguments, "--inode-file-handles=never", "--log-level", "error"]


_LISTEN_SECONDS = 10.0


class QmpClient:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = b""

    async def __aenter__(self) -> Self:
        self._socket.setblocking(False)
        try:
            await self._connect()
        except OSError as error:
            self._socket.close()
            raise MicroVmGone(f"QEMU does not answer: {error.strerror}") from None
        await self._line()
        await self.execute("qmp_capabilities")
        return self

    async def _connect(self) -> None:
        """Connect; a new socket exists a moment before QEMU listens on it."""
        deadline = time.monotonic() + _LISTEN_SECONDS
        while True:
            try:
                with short_socket_path(self._path) as name:
                    await asyncio.get_running_loop().sock_connect(self._socket, name)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.005)
            else:
                return

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def execute(self, command: str, **arguments: object) -> Any:
        request = {"execute": command, "arguments": arguments}
        try:
            await asyncio.get_running_loop().sock_sendall(
                self._socket, json.dumps(request).encode() + b"\n"
            )
        except OSError:
            raise MicroVmGone("QEMU has ended") from None
        return await self._answer(command)

    async def send_fd(self, name: str, descriptor: int) -> None:
        """Pass an open file to QEMU under a name."""
        await self._execute_with_fd(descriptor, "getfd", fdname=name)

    async def add_fd(self, descriptor: int) -> int:
        """Pass an open file to QEMU, which opens it as `/dev/fdset/` and the returned number."""
        return int((await self._execute_with_fd(descriptor, "add-fd"))["fdset-id"])

    async def _execute_with_fd(self, descriptor: int, command: str, **arguments: object) -> Any:
        request = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        self._socket.sendmsg([request], ancillary)
        return await self._answer(command)

    async def _answer(self, command: str) -> Any:
        while True:
            message = json.loads(await self._line())
            if "return" in message:
                return message["return"]
            if "error" in message:
                raise MicroVmFailed(f"QEMU refused {command}: {message['error'].get('desc')}")

    async def _line(self) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(GUEST_TIMEOUT):
                while b"\n" not in self._buffer:
                    data = await loop.sock_recv(self._socket, 1 << 16)
                    if not data:
                        raise MicroVmGone("QEMU has ended")
                    self._buffer += data
        except (OSError, TimeoutError):
            raise MicroVmGone("QEMU does not answer") from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

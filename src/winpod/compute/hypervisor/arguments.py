"""What QEMU and virtiofsd are started with.

A template and its clones must be the same machine, down to the order of their devices: what a pod
has of its own is added to a clone while it runs. What a guest says on its serial port is kept of a
template in a file, because only winpod's own programs run there. A pod could say anything, without
end: of a clone only the last of it is kept, in QEMU's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winpod.compute.hypervisor.accelerator import Accelerator

MEMORY = 512 << 20
"""What a guest boots with; more is added to it."""
MOST_MEMORY = 64 << 30
USUAL_PROCESSORS = 2
"""As Hyper-V gives a pod that asks for none; the template has them, so its clones need start none.
"""
CONTROL, WARM = "control", "warm"
"""Ports that every guest has: that of its first process, and that of the shell it was kept with."""
CONSOLE = "console"
KEPT_WORDS = 1 << 16

SOCKETS = {"drives": 0, "volumes": 1, "network": 2, "memory": 3}
"""Which root port of the machine a device of the pod goes to."""
_ROOT_PORTS = 16
DISK_SOCKETS = range(len(SOCKETS), _ROOT_PORTS)
"""Where disks go that containers mount."""
_EMULATION = "tcg,thread=single,tb-size=256"
"""With a thread for each processor, a guest lost the end of an interrupt now and then, soon after
it was cloned: the processor was deaf from then on, and the guest stood still."""
_KERNEL = (
    f"console=ttyS0 quiet panic=-1 reboot=t maxcpus={USUAL_PROCESSORS} mitigations=off nokaslr "
    "random.trust_cpu=on memhp_default_state=online memory_hotplug.online_policy=auto-movable"
)
"""Of memory that is added the guest's kernel keeps some for itself: it could not manage much else.
"""
_EMULATED = "tsc=reliable init_on_alloc=1 TIMER_SLACK=25000000"
"""The kernel's other clock counts to 4.7 s and begins again: a guest that the machine has no time
for as long as that stands still. Pages are cleared before they are used: an emulator that has
translated what was there does not see that a server of files writes to them. Timers may be late by
that many nanoseconds; Windows' own may be by 15 ms."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the parts of one machine are; it is started in the directory of its sockets."""

    memory: Path
    kernel: Path
    initial: Path
    base: Path
    accelerator: Accelerator
    processors: int


def qemu_arguments(machine: Machine, *, waits: bool, reserved: bool = False) -> list[str]:
    """`waits` is for a clone: it begins with what a template was when it was kept.

    Memory that is `reserved` is the machine's from the start, and is never paged out.
    """
    with_kvm = machine.accelerator is Accelerator.KVM
    words = ["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"]
    words += ["-M", "q35,usb=off,smm=off,vmport=off,hpet=off,memory-backend=ram"]
    words += ["-accel", "kvm" if with_kvm else _EMULATION, "-cpu", "host" if with_kvm else "max"]
    words += [
        "-smp",
        str(machine.processors),
        "-m",
        f"size={MEMORY}B,slots=4,maxmem={MOST_MEMORY}B",
    ]
    ram = f"memory-backend-file,id=ram,size={MEMORY}B,share=on,mem-path={machine.memory}"
    words += ["-object", f"{ram},prealloc=on" if reserved else ram]
    words += ["-kernel", str(machine.kernel), "-initrd", str(machine.initial), "-append"]
    words += [_KERNEL if with_kvm else f"{_KERNEL} {_EMULATED}"]
    kept = f"ringbuf,size={KEPT_WORDS}" if waits else f"file,path={CONSOLE}"
    words += ["-chardev", f"{kept},id={CONSOLE}", "-serial", f"chardev:{CONSOLE}"]
    words += ["-qmp", "unix:qmp,server=on,wait=off"]
    disk = f"raw,node-name=base,read-only=on,file.driver=file,file.filename={machine.base}"
    words += ["-blockdev", f"{disk},file.locking=off"]
    words += ["-device", "virtio-blk-pci,drive=base,id=base-disk"]
    words += ["-device", "virtio-serial-pci,id=serial,max_ports=31"]
    for name in (CONTROL, WARM):
        words += ["-chardev", f"socket,id={name},path={name},server=on,wait=off"]
        port = f"virtserialport,bus=serial.0,chardev={name},name={name},id=port-{name}"
        words += ["-device", port]
    for number in range(_ROOT_PORTS):
        place = f"chassis={number + 1},slot={number + 1}"
        words += ["-device", f"pcie-root-port,id=root{number},{place}"]
    words += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    words += ["-overcommit", "mem-lock=on-fault"] if reserved else []
    return [*words, *(["-incoming", "defer"] if waits else [])]


def virtiofsd_arguments(socket: Path, shared: Path, *, changes: bool) -> list[str]:
    """`changes`: whether others than the guest change what is there."""
    words = ["--socket-path", str(socket), "--shared-dir", str(shared), "--sandbox", "chroot"]
    words += ["--cache", "auto" if changes else "always", "--xattr", "--announce-submounts"]
    return [*words, "--inode-file-handles=never", "--log-level", "error"]

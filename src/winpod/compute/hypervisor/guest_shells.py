"""Shells in a guest: what is mounted together for one, and how it is started and ended.

It has what a shell on the host has: the base read-only, a prefix of its own over the base's, and
no file and no device of the guest's besides. All that is its own is in one place of the guest's
memory, which is given back whole when it ends.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

from winpod.compute.errors import GuestRefused, MachineFailed
from winpod.compute.hypervisor.guest import PATIENCE, Guest
from winpod.compute.native import WAGENT, WINIT, native_program, with_socket
from winpod.compute.resources import PIDS
from winpod.compute.shell import DRIVE_C, MASKED, PREFIX, READONLY, VARIABLES
from winpod.windows.users import User

WARM_SHELL = "warm"
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BOUND = 1, 2, 4, 32, 4096
_BIND, _GUARDED = str(_BOUND), str(_NO_SETUID | _NO_DEVICES)
_BIND_READ_ONLY = str(_BOUND | _REMOUNT | _READ_ONLY | _NO_SETUID | _NO_DEVICES)
_OWN = "mode=755,size=90%"
_TEMPORARY = "mode=1777,size=256m"
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""Those that an OCI runtime gives to every container."""


def group_of(name: str) -> str:
    return f"/sys/fs/cgroup/{name}"


def _folder(name: str) -> str:
    return f"/run/shells/{name}"


async def boot_shell(guest: Guest, name: str, port: str, user: User, *, with_32bit: bool) -> None:
    folder = _folder(name)
    await guest.ask("mkdir", folder)
    await guest.ask("mount", "tmpfs", folder, "tmpfs", _GUARDED, _OWN)
    await _mount_root(guest, folder, user)
    await guest.ask("mkdir", group_of(name))
    await guest.ask("write", f"{group_of(name)}/pids.max", str(PIDS))
    words = [name, port, f"{folder}/root", group_of(name), str(user.uid), "winpod"]
    words += ["32" if with_32bit else "64", *VARIABLES, "--", *MASKED, "--", *READONLY]
    await guest.ask_when_seen("start", *words, "--", "wine64", f"/winpod/{WAGENT}")


async def _mount_root(guest: Guest, folder: str, user: User) -> None:
    root, prefix = f"{folder}/root", f"{folder}/prefix"
    for part in ("root", "prefix", "upper", "work"):
        await guest.ask("mkdir", f"{folder}/{part}")
    layers = f"lowerdir=/registry:/base/prefix,upperdir={folder}/upper,workdir={folder}/work"
    await guest.ask("mount", "prefix", prefix, "overlay", _GUARDED, layers)
    await guest.ask("write", f"{prefix}/resolv.conf", "")
    for path in ("", "/system.reg", "/user.reg", "/userdef.reg", "/resolv.conf"):
        await guest.ask("chown", prefix + path, str(user.uid))
    await guest.ask("mount", "/base/rootfs", root, "", _BIND, "")
    await guest.ask("mount", prefix, root + PREFIX, "", _BIND, "")
    await _mount_devices(guest, f"{root}/dev")
    for place in ("/tmp", "/root"):  # noqa: S108 inside the guest
        options = f"{_TEMPORARY},uid={user.uid}"
        await guest.ask("mount", "tmpfs", root + place, "tmpfs", _GUARDED, options)
    await guest.ask("mount", "/winpod", f"{root}/winpod", "", _BIND, "")
    await guest.ask("mount", "", f"{root}/winpod", "", _BIND_READ_ONLY, "")


async def _mount_devices(guest: Guest, place: str) -> None:
    """Of its own: who owns a device can forbid it, and would to others too."""
    await guest.ask("mount", "tmpfs", place, "tmpfs", str(_NO_SETUID), "mode=755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        await guest.ask("device", f"{place}/{name}", str(major), str(minor))
    await guest.ask("mkdir", f"{place}/shm")
    await guest.ask("mount", "tmpfs", f"{place}/shm", "tmpfs", _GUARDED, _TEMPORARY)


async def end_shell(guest: Guest, name: str) -> None:
    """However much of it there is; returns when none of its processes is left."""
    await guest.ask("kill", name)
    await _unless_gone(guest, "unmount", _folder(name))
    await _unless_gone(guest, "remove", _folder(name))
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await _unless_gone(guest, "remove", group_of(name))
        except GuestRefused as error:
            if error.number != errno.EBUSY or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)


async def _unless_gone(guest: Guest, *words: str) -> None:
    try:
        await guest.ask(*words)
    except GuestRefused as error:
        if error.number not in (errno.EINVAL, errno.ENOENT):
            raise


async def write_resolver(guest: Guest, name: str, text: str) -> None:
    await guest.ask("write", f"{_folder(name)}/prefix/resolv.conf", text)


async def slide_drive(guest: Guest, name: str, drive: str) -> None:
    """The container's C: over the one that the shell was booted with."""
    await guest.ask("mount-inside", name, drive, DRIVE_C)


async def link_shell(machine: Path, port: str, socket: Path) -> asyncio.subprocess.Process:
    """What carries a shell's clients to it, as long as the shell runs; they connect to `socket`.

    It goes on without this process, and ends what the clients have when it ends.
    """
    process = await asyncio.create_subprocess_exec(
        *with_socket(socket, [str(native_program(WINIT)), "--link", port]),
        cwd=machine,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    while not await asyncio.to_thread(socket.exists):
        if process.returncode is not None:
            raise MachineFailed("the way to its shell could not be opened")
        await asyncio.sleep(0.002)
    return process

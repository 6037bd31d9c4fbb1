"""Shells in a guest: what is mounted together for one, and how it is started and ended.

It has what a shell on the host has: the base read-only, a prefix of its own over the base's, and
no file of the guest's besides.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from winpod.compute.errors import GuestRefused, MachineFailed
from winpod.compute.hypervisor.guest import Guest
from winpod.compute.native import WAGENT, WINIT, native_program, with_socket
from winpod.compute.resources import PIDS
from winpod.compute.shell import DRIVE_C, PREFIX, VARIABLES
from winpod.windows.users import User

WARM_SHELL = "warm"
_BIND = str(0x1000)
_NOTHING = "0"
_TEMPORARY = "mode=1777,size=256m"


def group_of(name: str) -> str:
    return f"/sys/fs/cgroup/{name}"


def _folder(name: str) -> str:
    return f"/run/shells/{name}"


async def boot_shell(guest: Guest, name: str, port: str, user: User) -> None:
    folder = _folder(name)
    root, prefix = f"{folder}/root", f"{folder}/prefix"
    for part in ("root", "prefix", "upper", "work"):
        await guest.ask("mkdir", f"{folder}/{part}")
    layers = f"lowerdir=/registry:/base/prefix,upperdir={folder}/upper,workdir={folder}/work"
    await guest.ask("mount", "prefix", prefix, "overlay", _NOTHING, layers)
    await guest.ask("write", f"{prefix}/resolv.conf", "")
    for path in ("", "/system.reg", "/user.reg", "/userdef.reg", "/resolv.conf"):
        await guest.ask("chown", prefix + path, str(user.uid))
    await guest.ask("mount", "/base/rootfs", root, "", _BIND, "")
    await guest.ask("mount", prefix, root + PREFIX, "", _BIND, "")
    for place in ("/tmp", "/root"):  # noqa: S108 inside the guest
        options = f"{_TEMPORARY},uid={user.uid}"
        await guest.ask("mount", "tmpfs", root + place, "tmpfs", _NOTHING, options)
    await guest.ask("mount", "/dev", f"{root}/dev", "", _BIND, "")
    await guest.ask("mount", "/winpod", f"{root}/winpod", "", _BIND, "")
    await guest.ask("mkdir", group_of(name))
    await guest.ask("write", f"{group_of(name)}/pids.max", str(PIDS))
    words = [name, port, root, group_of(name), str(user.uid), "winpod", *VARIABLES]
    await guest.ask_when_seen("start", *words, "--", "wine64", f"/winpod/{WAGENT}")


async def end_shell(guest: Guest, name: str) -> None:
    """However much of it there is."""
    await guest.ask("kill", name)
    folder = _folder(name)
    for place in (f"{folder}/root{PREFIX}", f"{folder}/root", f"{folder}/prefix"):
        try:
            await guest.ask("unmount", place)
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

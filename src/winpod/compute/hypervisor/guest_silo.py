"""Silos in a guest: their mounts, start and stop.

A silo has what one on the host has: the base read-only, its own prefix over the base's, and no
other files or devices of the guest. All of its own files are in one tmpfs, which is released as a
whole when it ends.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.cgroups import in_own_cgroup
from winpod.compute.errors import GuestError, MicroVmFailed
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, GuestClient
from winpod.compute.native import WAGENT, WINIT, native_program, with_agent_socket
from winpod.compute.resources import DEFAULT_PIDS
from winpod.compute.silo import DRIVE_C, MASKED_PATHS, PREFIX_PATH, READONLY_PATHS, WINE_ENVIRONMENT
from winpod.windows.users import User

WARM_SILO = "warm"
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BOUND = 1, 2, 4, 32, 4096
_BIND, _GUARDED = str(_BOUND), str(_NO_SETUID | _NO_DEVICES)
_BIND_READ_ONLY = str(_BOUND | _REMOUNT | _READ_ONLY | _NO_SETUID | _NO_DEVICES)
_SILO_OPTIONS = "mode=755,size=90%"
_TMP_OPTIONS = "mode=1777,size=256m"
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""The devices that OCI runtimes give to every container."""


def guest_cgroup(name: str) -> str:
    return f"/sys/fs/cgroup/{name}"


def _folder(name: str) -> str:
    return f"/run/shells/{name}"


async def start_guest_silo(
    guest: GuestClient, name: str, port: str, user: User, *, with_32bit: bool
) -> None:
    folder = _folder(name)
    await guest.request(GuestCommand.MKDIR, folder)
    await guest.request(GuestCommand.MOUNT, "tmpfs", folder, "tmpfs", _GUARDED, _SILO_OPTIONS)
    await _mount_root(guest, folder, user)
    await guest.request(GuestCommand.MKDIR, guest_cgroup(name))
    await guest.request(GuestCommand.WRITE, f"{guest_cgroup(name)}/pids.max", str(DEFAULT_PIDS))
    arguments = [name, port, f"{folder}/root", guest_cgroup(name), str(user.uid), "winpod"]
    arguments += [
        "32" if with_32bit else "64",
        *WINE_ENVIRONMENT,
        "--",
        *MASKED_PATHS,
        "--",
        *READONLY_PATHS,
    ]
    await guest.request_when_plugged(
        GuestCommand.START_SILO, *arguments, "--", "wine64", f"/winpod/{WAGENT}"
    )


async def _mount_root(guest: GuestClient, folder: str, user: User) -> None:
    root, prefix = f"{folder}/root", f"{folder}/prefix"
    for part in ("root", "prefix", "upper", "work"):
        await guest.request(GuestCommand.MKDIR, f"{folder}/{part}")
    layers = f"lowerdir=/registry:/base/prefix,upperdir={folder}/upper,workdir={folder}/work"
    await guest.request(GuestCommand.MOUNT, "prefix", prefix, "overlay", _GUARDED, layers)
    await guest.request(GuestCommand.WRITE, f"{prefix}/resolv.conf", "")
    for path in ("", "/system.reg", "/user.reg", "/userdef.reg", "/resolv.conf"):
        await guest.request(GuestCommand.CHOWN, prefix + path, str(user.uid))
    await guest.request(GuestCommand.MOUNT, "/base/rootfs", root, "", _BIND, "")
    await guest.request(GuestCommand.MOUNT, prefix, root + PREFIX_PATH, "", _BIND, "")
    await _mount_devices(guest, f"{root}/dev")
    for path in ("/tmp", "/root"):  # noqa: S108 inside the guest
        options = f"{_TMP_OPTIONS},uid={user.uid}"
        await guest.request(GuestCommand.MOUNT, "tmpfs", root + path, "tmpfs", _GUARDED, options)
    await guest.request(GuestCommand.MOUNT, "/winpod", f"{root}/winpod", "", _BIND, "")
    await guest.request(GuestCommand.MOUNT, "", f"{root}/winpod", "", _BIND_READ_ONLY, "")


async def _mount_devices(guest: GuestClient, path: str) -> None:
    """Create device nodes for this silo only: their owner could change the permissions."""
    await guest.request(
        GuestCommand.MOUNT, "tmpfs", path, "tmpfs", str(_NO_SETUID), "mode=755,size=64k"
    )
    for name, (major, minor) in _DEVICES.items():
        await guest.request(GuestCommand.MKNOD, f"{path}/{name}", str(major), str(minor))
    await guest.request(GuestCommand.MKDIR, f"{path}/shm")
    await guest.request(GuestCommand.MOUNT, "tmpfs", f"{path}/shm", "tmpfs", _GUARDED, _TMP_OPTIONS)


async def stop_guest_silo(guest: GuestClient, name: str) -> None:
    """Stop a silo, also a partially created one, and wait for its processes to end."""
    await guest.request(GuestCommand.KILL_SILO, name)
    await _request_if_exists(guest, GuestCommand.UNMOUNT, _folder(name))
    await _request_if_exists(guest, GuestCommand.REMOVE, _folder(name))
    deadline = time.monotonic() + GUEST_TIMEOUT
    while True:
        try:
            return await _request_if_exists(guest, GuestCommand.REMOVE, guest_cgroup(name))
        except GuestError as error:
            if error.number != errno.EBUSY or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)


async def _request_if_exists(guest: GuestClient, *arguments: str) -> None:
    try:
        await guest.request(*arguments)
    except GuestError as error:
        if error.number not in (errno.EINVAL, errno.ENOENT):
            raise


async def write_guest_resolv_conf(guest: GuestClient, name: str, text: str) -> None:
    await guest.request(GuestCommand.WRITE, f"{_folder(name)}/prefix/resolv.conf", text)


async def attach_guest_rootfs(guest: GuestClient, name: str, drive: str) -> None:
    """Mount the container's C: over the one that the silo booted with."""
    await guest.request(GuestCommand.MOUNT_IN_SILO, name, drive, DRIVE_C)


async def start_agent_link(vm_folder: Path, port: str, socket: Path) -> asyncio.subprocess.Process:
    """Start the process that relays a silo's clients from `socket` to its port.

    It outlives the daemon and ends with the silo. Ending it terminates the clients' programs.
    """
    process = await asyncio.create_subprocess_exec(
        *in_own_cgroup(with_agent_socket(socket, [str(native_program(WINIT)), "--link", port])),
        cwd=vm_folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    while not await asyncio.to_thread(socket.exists):
        if process.returncode is not None:
            raise MicroVmFailed("the relay to its silo did not start")
        await asyncio.sleep(0.002)
    return process

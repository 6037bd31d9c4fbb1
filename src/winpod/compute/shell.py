"""A shell: the container that Windows programs run in, as an OCI runtime is told of it.

Its first process is winit, its Windows the base's. It is booted with the base's C:, read-only, and
gets its own later. It has no capability, can gain no privilege, sees the base read-only and nothing
of the host, and has a limit of processes and memory before anything of an image runs in it. Its
users are nobody on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute.cgroups import MEMORY, PARENT
from winpod.compute.native import WAGENT, WINIT, native_program
from winpod.compute.resources import PIDS
from winpod.compute.seccomp import seccomp_profile
from winpod.images.base_container import tmpfs
from winpod.windows.users import User

PREFIX = "/prefix"
NO_MENUS = "WINEDLLOVERRIDES=winemenubuilder.exe=d"
"""A third of a boot goes into entries for the menus of a desktop that is not there."""

VARIABLES = (
    "PATH=/usr/lib/wine:/usr/bin",
    "HOME=/root",
    f"WINEPREFIX={PREFIX}",
    "WINEDEBUG=-all",
    NO_MENUS,
    "LANG=C.UTF-8",
)

DRIVE_C = f"{PREFIX}/drive_c"
IDS = 65536
_AGENT_DIRECTORY = "/winpod"
MASKED = (
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
)
READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Shell:
    """Where a shell's parts are on this machine, and what holds for it.

    `first_id` is the machine's user that is root in the shell, 0 without a user namespace; without
    a `netns` it gets one of its own.
    """

    id: str
    rootfs: Path
    prefix: Path
    drive_c: Path
    user: User
    first_id: int
    netns: Path | None = None
    hostname: str = "winpod"
    with_32bit: bool = False


def shell_spec(shell: Shell) -> dict[str, Any]:
    """The OCI runtime's configuration of a shell."""
    nothing: list[str] = []
    user = {"uid": shell.user.uid, "gid": shell.user.uid}
    return {
        "ociVersion": "1.0.2",
        "hostname": shell.hostname,
        "process": {
            "user": user,
            "args": [f"{_AGENT_DIRECTORY}/{WINIT}", "wine64", f"{_AGENT_DIRECTORY}/{WAGENT}"],
            "cwd": "/",
            "env": list(VARIABLES),
            "noNewPrivileges": True,
            "oomScoreAdj": 100,
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted", "inheritable", "ambient"), nothing
            ),
        },
        "root": {"path": str(shell.rootfs.resolve()), "readonly": True},
        "mounts": _mounts(shell),
        "linux": {
            "namespaces": _namespaces(shell),
            **_owners(shell),
            "cgroupsPath": f"/{PARENT}/{shell.id}",
            "resources": {
                "pids": {"limit": PIDS},
                "memory": {"limit": MEMORY, "swap": MEMORY},
            },
            "seccomp": seccomp_profile(with_32bit=shell.with_32bit),
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READONLY),
        },
    }


def _namespaces(shell: Shell) -> list[dict[str, str]]:
    own = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    network = {"type": "network"} | ({"path": str(shell.netns)} if shell.netns else {})
    return [*own, network, *([{"type": "user"}] if shell.first_id else [])]


def _owners(shell: Shell) -> dict[str, Any]:
    if not shell.first_id:
        return {}
    mapping = [{"containerID": 0, "hostID": shell.first_id, "size": IDS}]
    return {"uidMappings": mapping, "gidMappings": mapping}


def _mounts(shell: Shell) -> list[dict[str, Any]]:
    owner = f"uid={shell.user.uid}"
    temporary = ("nosuid", "nodev", "mode=1777", "size=256m")
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        tmpfs("/dev", "nosuid", "mode=755", "size=64k"),
        tmpfs("/dev/shm", *temporary),  # noqa: S108 inside the container
        tmpfs("/tmp", *temporary),  # noqa: S108 inside the container
        tmpfs("/root", *temporary, owner),
        _bind(_AGENT_DIRECTORY, native_program(WINIT).parent, "ro"),
        _bind(PREFIX, shell.prefix, "rw"),
        _bind(DRIVE_C, shell.drive_c, "ro"),
    ]


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", "nosuid", "nodev", *options],
    }

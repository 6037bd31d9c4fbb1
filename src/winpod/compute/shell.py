"""A shell: the container that Windows programs run in, as an OCI runtime is told of it.

Its first process is winit, its Windows the base's, its drive C: an overlay. It has no capability,
can gain no privilege, sees the base read-only and nothing of the host, and has a limit of processes
and memory before anything of an image runs in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute.native import WAGENT, WINIT, native_program
from winpod.compute.plan import Mount
from winpod.compute.resources import Enforced
from winpod.images.base_container import tmpfs
from winpod.windows.users import User

CGROUP_PARENT = "winpod"
MEMORY = 4 << 30
_AGENT_DIRECTORY = "/winpod"
_PREFIX = "/prefix"
_MASKED = (
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
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Shell:
    """Where a shell's parts are on this machine, and what holds for it."""

    id: str
    rootfs: Path
    prefix: Path
    drive_c: Path
    hostname: str
    netns: Path
    user: User
    limits: Enforced
    mounts: tuple[Mount, ...] = ()


def shell_spec(shell: Shell) -> dict[str, Any]:
    """The OCI runtime's configuration of a shell."""
    nothing: list[str] = []
    user = {"uid": shell.user.uid, "gid": shell.user.uid}
    return {
        "ociVersion": "1.0.2",
        "hostname": shell.hostname[:63] or "winpod",
        "process": {
            "user": user,
            "args": [f"{_AGENT_DIRECTORY}/{WINIT}", "wine64", f"{_AGENT_DIRECTORY}/{WAGENT}"],
            "cwd": "/",
            "env": [
                "PATH=/usr/lib/wine:/usr/bin",
                "HOME=/root",
                f"WINEPREFIX={_PREFIX}",
                "WINEDEBUG=-all",
                "LANG=C.UTF-8",
            ],
            "noNewPrivileges": True,
            "oomScoreAdj": 100,
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted", "inheritable", "ambient"), nothing
            ),
        },
        "root": {"path": str(shell.rootfs.resolve()), "readonly": True},
        "mounts": [*_own_mounts(shell), *map(_pod_mount, shell.mounts)],
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                {"type": "network", "path": str(shell.netns)},
            ],
            "cgroupsPath": f"/{CGROUP_PARENT}/{shell.id}",
            "resources": resources(shell.limits),
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READONLY),
        },
    }


def _own_mounts(shell: Shell) -> list[dict[str, Any]]:
    owner = f"uid={shell.user.uid}"
    temporary = ("nosuid", "nodev", "mode=1777", "size=256m")
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        tmpfs("/dev", "nosuid", "mode=755", "size=64k"),
        tmpfs("/dev/shm", *temporary),  # noqa: S108 inside the container
        tmpfs("/tmp", *temporary),  # noqa: S108 inside the container
        tmpfs("/root", *temporary, owner),
        _bind(_AGENT_DIRECTORY, native_program(WINIT).parent, "ro"),
        _bind(_PREFIX, shell.prefix, "rw"),
        _bind(f"{_PREFIX}/drive_c", shell.drive_c, "rw"),
    ]


def _pod_mount(mount: Mount) -> dict[str, Any]:
    inside = mount.destination[2:].replace("\\", "/")
    return _bind(f"{_PREFIX}/drive_c{inside}", Path(mount.source), "ro" if mount.readonly else "rw")


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", "nosuid", "nodev", *options],
    }


def resources(limits: Enforced) -> dict[str, Any]:
    """A container that asks for no memory limit has one all the same."""
    memory = limits.memory_bytes or MEMORY
    cpu: dict[str, int] = {}
    if limits.cpu_quota_us:
        cpu = {"quota": limits.cpu_quota_us, "period": limits.cpu_period_us}
    if limits.cpu_shares:
        cpu["shares"] = limits.cpu_shares
    return {
        "pids": {"limit": limits.pids},
        "memory": {"limit": memory, "swap": memory},
        "cpu": cpu,
    }


def update_arguments(limits: Enforced) -> Sequence[str]:
    """The same, for a container that runs."""
    found = resources(limits)
    memory = str(found["memory"]["limit"])
    arguments = ["--memory", memory, "--memory-swap", memory]
    arguments += ["--pids-limit", str(found["pids"]["limit"])]
    for option, key in (("--cpu-quota", "quota"), ("--cpu-share", "shares")):
        if key in found["cpu"]:
            arguments += [option, str(found["cpu"][key])]
    return arguments

"""The OCI runtime configuration of a silo, the container that Windows programs run in.

Its first process is winit, its Windows that of the base. It boots with the base's C:, read-only,
and gets the drive of its container later. It has no capabilities and no_new_privs, sees the base
read-only and nothing else of the host, and has limits of processes and memory before anything of an
image runs in it. Its users are unprivileged on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute.cgroups import DEFAULT_MEMORY, PARENT_CGROUP
from winpod.compute.native import WAGENT, WINIT, native_program
from winpod.compute.process.seccomp import seccomp_profile
from winpod.compute.resources import DEFAULT_PIDS
from winpod.images.base.build_container import tmpfs_mount
from winpod.windows.users import User

PREFIX_PATH = "/prefix"
NO_MENUS = "WINEDLLOVERRIDES=winemenubuilder.exe=d"
"""Desktop menu entries, which have no use here, would take a third of the boot."""

WINE_ENVIRONMENT = (
    "PATH=/usr/lib/wine:/usr/bin",
    "HOME=/root",
    f"WINEPREFIX={PREFIX_PATH}",
    "WINEDEBUG=-all",
    NO_MENUS,
    "LANG=C.UTF-8",
)

DRIVE_C = f"{PREFIX_PATH}/drive_c"
IDS_PER_SILO = 65536
_AGENT_DIRECTORY = "/winpod"
MASKED_PATHS = (
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
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class SiloConfig:
    """Where a silo's parts are on the host, and its settings.

    `first_id` is the host's uid of root in the silo, 0 without a user namespace. Without a `netns`
    it gets its own.
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


def silo_oci_spec(silo: SiloConfig) -> dict[str, Any]:
    """Return the OCI runtime's configuration of a silo."""
    none: list[str] = []
    user = {"uid": silo.user.uid, "gid": silo.user.uid}
    return {
        "ociVersion": "1.0.2",
        "hostname": silo.hostname,
        "process": {
            "user": user,
            "args": [f"{_AGENT_DIRECTORY}/{WINIT}", "wine64", f"{_AGENT_DIRECTORY}/{WAGENT}"],
            "cwd": "/",
            "env": list(WINE_ENVIRONMENT),
            "noNewPrivileges": True,
            "oomScoreAdj": 100,
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted", "inheritable", "ambient"), none
            ),
        },
        "root": {"path": str(silo.rootfs.resolve()), "readonly": True},
        "mounts": _mounts(silo),
        "linux": {
            "namespaces": _namespaces(silo),
            **_owners(silo),
            "cgroupsPath": f"/{PARENT_CGROUP}/{silo.id}",
            "resources": {
                "pids": {"limit": DEFAULT_PIDS},
                "memory": {"limit": DEFAULT_MEMORY, "swap": DEFAULT_MEMORY},
            },
            "seccomp": seccomp_profile(with_32bit=silo.with_32bit),
            "maskedPaths": list(MASKED_PATHS),
            "readonlyPaths": list(READONLY_PATHS),
        },
    }


def _namespaces(silo: SiloConfig) -> list[dict[str, str]]:
    private = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    network = {"type": "network"} | ({"path": str(silo.netns)} if silo.netns else {})
    return [*private, network, *([{"type": "user"}] if silo.first_id else [])]


def _owners(silo: SiloConfig) -> dict[str, Any]:
    if not silo.first_id:
        return {}
    mapping = [{"containerID": 0, "hostID": silo.first_id, "size": IDS_PER_SILO}]
    return {"uidMappings": mapping, "gidMappings": mapping}


def _mounts(silo: SiloConfig) -> list[dict[str, Any]]:
    owner = f"uid={silo.user.uid}"
    tmpfs_options = ("nosuid", "nodev", "mode=1777", "size=256m")
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        tmpfs_mount("/dev", "nosuid", "mode=755", "size=64k"),
        tmpfs_mount("/dev/shm", *tmpfs_options),  # noqa: S108 inside the container
        tmpfs_mount("/tmp", *tmpfs_options),  # noqa: S108 inside the container
        tmpfs_mount("/root", *tmpfs_options, owner),
        _bind(_AGENT_DIRECTORY, native_program(WINIT).parent, "ro"),
        _bind(PREFIX_PATH, silo.prefix, "rw"),
        _bind(DRIVE_C, silo.drive_c, "ro"),
    ]


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    """Private: with crun and a shared /, mounts made inside would appear on the host."""
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", "rprivate", "nosuid", "nodev", *options],
    }

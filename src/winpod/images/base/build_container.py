"""Run build steps of the base in a limited OCI container that uses the base as its rootfs.

Wine in a broken tree has been seen to fork without end, so it always runs with pids and memory
limits. The container has no network, no capabilities, and no host files but the given directories.
It dies with this process, even on SIGKILL.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.files import remove_tree
from winpod.images.errors import ToolMissing
from winpod.subprocesses import run_blocking

MEMORY = 2 << 30
PROCESSES = 256
CONTROL_GROUPS = Path("/sys/fs/cgroup")
_CGROUP_REMOVAL_SECONDS = 30.0
OCI_RUNTIMES = ("runc", "crun")
_TMPFS_OPTIONS = ("nosuid", "nodev", "mode=1777", "size=256m")
ENVIRONMENT = {
    "PATH": "/usr/lib/wine:/usr/bin",
    "HOME": "/root",
    "WINEPREFIX": "/prefix",
    "WINEDEBUG": "-all",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True)
class BuildCommandResult:
    code: int
    output: str
    timed_out: bool = False


def require_tools(packages: Mapping[str, str]) -> None:
    """Raise ToolMissing unless all programs exist; `packages` maps each to its Debian package."""
    missing = sorted({package for tool, package in packages.items() if not shutil.which(tool)})
    if missing:
        raise ToolMissing(
            f"This host has no {' and no '.join(missing)}.",
            f"Install the packages: apt-get install {' '.join(missing)}",
        )


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """Wrap a command so that it is killed, with its processes and mounts, with this process."""
    isolated = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"]
    return ["setpriv", "--pdeathsig", "KILL", "--", *isolated, *command]


def run_in_container(
    rootfs: Path,
    prefix: Path,
    command: Sequence[str],
    workspace: Path,
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> BuildCommandResult:
    """Run a command on a read-only rootfs, in drive C: of the prefix, and wait for it."""
    bundle = Path(tempfile.mkdtemp(prefix="container-", dir=workspace))
    name = _container_name(bundle)
    spec = build_container_spec(
        rootfs, prefix, command, name, {**ENVIRONMENT, **(environment or {})}
    )
    (bundle / "config.json").write_text(json.dumps(spec))
    runtime = [find_oci_runtime(), "--root", str(bundle / "state")]
    run_command = with_parent_death_signal([*runtime, "run", "--bundle", str(bundle), name])
    try:
        with (bundle / "output").open("w+b") as output:
            process = subprocess.Popen(  # noqa: S603
                run_command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                code, timed_out = process.wait(seconds), False
            except subprocess.TimeoutExpired:
                code, timed_out = -1, True
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
            return BuildCommandResult(code, text, timed_out)
    finally:
        remove_bundle(bundle)


def remove_bundle(bundle: Path, groups: Path = CONTROL_GROUPS) -> None:
    """Remove the state and cgroups of a container, however it ended."""
    for state in (bundle / "state").glob("*"):
        command = [
            find_oci_runtime(),
            "--root",
            str(bundle / "state"),
            "delete",
            "--force",
            state.name,
        ]
        run_blocking(command)
    for parent in (groups, *groups.glob("*/")):
        _remove_group(parent / _container_name(bundle))
    remove_tree(bundle, ignore_errors=True)


def _container_name(bundle: Path) -> str:
    return bundle.name.replace("container-", "winpod-base-", 1)


def _remove_group(group: Path) -> None:
    """Remove a cgroup, which a runtime killed during start has not recorded.

    Retry, because killed processes leave the cgroup with a delay.
    """
    deadline = time.monotonic() + _CGROUP_REMOVAL_SECONDS
    while group.is_dir():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


def build_container_spec(
    rootfs: Path,
    prefix: Path,
    command: Sequence[str],
    name: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return the minimal OCI runtime configuration that Wine needs."""
    no_capabilities: list[str] = []
    return {
        "ociVersion": "1.0.2",
        "hostname": "winpod",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "cwd": "/prefix/drive_c",
            "env": [f"{key}={value}" for key, value in environment.items()],
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted", "inheritable", "ambient"), no_capabilities
            ),
        },
        "root": {"path": str(rootfs.resolve()), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            tmpfs_mount("/dev", "nosuid", "mode=755", "size=64k"),
            tmpfs_mount("/dev/shm", *_TMPFS_OPTIONS),  # noqa: S108 inside the container
            tmpfs_mount("/tmp", *_TMPFS_OPTIONS),  # noqa: S108 inside the container
            tmpfs_mount("/root", *_TMPFS_OPTIONS),
            {
                "destination": "/prefix",
                "type": "bind",
                "source": str(prefix.resolve()),
                "options": ["rbind", "rprivate", "rw"],
            },
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "cgroupsPath": f"/{name}",
            "resources": {
                "pids": {"limit": PROCESSES},
                "memory": {"limit": MEMORY, "swap": MEMORY},
            },
        },
    }


def tmpfs_mount(destination: str, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": list(options),
    }


def find_oci_runtime(chosen: str = "") -> str:
    """Return the path of the chosen OCI runtime, or of the first known one."""
    for name in (chosen,) if chosen else OCI_RUNTIMES:
        if path := shutil.which(name):
            return path
    if chosen:
        raise ToolMissing(
            f"The OCI runtime {chosen} is not installed.", "Correct runtime.oci_runtime."
        )
    raise ToolMissing(
        f"This host has no {' and no '.join(OCI_RUNTIMES)}.",
        "Install one of them: apt-get install runc",
    )

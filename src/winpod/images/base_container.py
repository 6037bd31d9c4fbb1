"""A command in a container with limits, for the work that a base's build leaves to the base itself.

Wine in a broken tree has been seen to start processes without end, so nothing of it runs without a
limit of processes and memory. There is no network, nothing of the host but the given directories,
and no capability. The whole container dies with this process, even by kill -9.
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

from winpod.images.base_errors import ToolMissing

MEMORY = 2 << 30
PROCESSES = 256
CONTROL_GROUPS = Path("/sys/fs/cgroup")
_PATIENCE = 30.0
_RUNTIMES = ("runc", "crun")
_TEMPORARY = ("nosuid", "nodev", "mode=1777", "size=256m")
ENVIRONMENT = {
    "PATH": "/usr/lib/wine:/usr/bin",
    "HOME": "/root",
    "WINEPREFIX": "/prefix",
    "WINEDEBUG": "-all",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    output: str
    timed_out: bool = False


def require_tools(packages: Mapping[str, str]) -> None:
    """Programs by the Debian packages that have them; the sentence names what to install."""
    missing = sorted({package for tool, package in packages.items() if not shutil.which(tool)})
    if missing:
        raise ToolMissing(
            f"This machine has no {' and no '.join(missing)}.",
            f"Install what is missing: apt-get install {' '.join(missing)}",
        )


def dying_with_us(command: Sequence[str]) -> list[str]:
    """A command that ends, with all that it started and mounted, when this process does."""
    isolated = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"]
    return ["setpriv", "--pdeathsig", "KILL", "--", *isolated, *command]


def run_contained(
    rootfs: Path,
    prefix: Path,
    command: Sequence[str],
    workspace: Path,
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Runs a command in a read-only tree, in the drive C: of a prefix, and waits for its end."""
    bundle = Path(tempfile.mkdtemp(prefix="container-", dir=workspace))
    name = _name_of(bundle)
    spec = container_spec(rootfs, prefix, command, name, {**ENVIRONMENT, **(environment or {})})
    (bundle / "config.json").write_text(json.dumps(spec))
    runtime = [_runtime(), "--root", str(bundle / "state")]
    started = dying_with_us([*runtime, "run", "--bundle", str(bundle), name])
    try:
        with (bundle / "output").open("w+b") as output:
            process = subprocess.Popen(  # noqa: S603
                started, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
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
            return Result(code, text, timed_out)
    finally:
        remove_bundle(bundle)


def remove_bundle(bundle: Path, groups: Path = CONTROL_GROUPS) -> None:
    """What is left of a container, its control groups too, whether it ended well or not."""
    for state in (bundle / "state").glob("*"):
        command = [_runtime(), "--root", str(bundle / "state"), "delete", "--force", state.name]
        subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    for place in (groups, *groups.glob("*/")):
        _remove_group(place / _name_of(bundle))
    shutil.rmtree(bundle, ignore_errors=True)


def _name_of(bundle: Path) -> str:
    return bundle.name.replace("container-", "winpod-base-", 1)


def _remove_group(group: Path) -> None:
    """A runtime that was killed while it started a container has not noted what it made.

    Killed processes leave a group only after a moment.
    """
    deadline = time.monotonic() + _PATIENCE
    while group.is_dir():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


def container_spec(
    rootfs: Path,
    prefix: Path,
    command: Sequence[str],
    name: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """An OCI runtime configuration, kept to what Wine needs."""
    nothing: list[str] = []
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
                ("bounding", "effective", "permitted", "inheritable", "ambient"), nothing
            ),
        },
        "root": {"path": str(rootfs.resolve()), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            tmpfs("/dev", "nosuid", "mode=755", "size=64k"),
            tmpfs("/dev/shm", *_TEMPORARY),  # noqa: S108 inside the container
            tmpfs("/tmp", *_TEMPORARY),  # noqa: S108 inside the container
            tmpfs("/root", *_TEMPORARY),
            {
                "destination": "/prefix",
                "type": "bind",
                "source": str(prefix.resolve()),
                "options": ["rbind", "rw"],
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


def tmpfs(destination: str, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": list(options),
    }


def _runtime() -> str:
    for name in _RUNTIMES:
        if found := shutil.which(name):
            return found
    raise ToolMissing("This machine has no runc.", "Install it: apt-get install runc")

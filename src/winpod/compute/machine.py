"""What this machine has for containers: programs, and a kernel whose powers are tried out."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which

from winpod.compute import mounts

REACH = Path("/run/winpod/rootfs")
_BIND = 'from="$1" to="$2" && shift 2 && mount --bind "$from" "$to" && exec "$@"'
_SOME_ID, _MANY = 1 << 30, 65536


def missing_programs(needed: Mapping[str, str]) -> str:
    """Of programs and the packages that have them, a sentence; empty where all are there."""
    missing = [f"{name} (package {package})" for name, package in needed.items() if not which(name)]
    return f"this machine has no {', no '.join(missing)}." if missing else ""


def has_user_namespaces(folder: Path) -> bool:
    """Whether users can be nobody on the machine and still own what is in a directory."""
    asking, asked = os.pipe()
    telling, told = os.pipe()
    command = ["unshare", "--user", "cat"]
    process = subprocess.Popen(command, stdin=asking, stdout=told, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        os.close(told)
        os.write(asked, b".")
        os.read(telling, 1)  # by now it has its namespace, or has ended
        _try_owners(process.pid, folder)
    except OSError:
        return False
    finally:
        process.kill()
        process.wait()
        for descriptor in (asking, asked, telling):
            os.close(descriptor)
    return True


def _try_owners(pid: int, folder: Path) -> None:
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 {_SOME_ID} {_MANY}\n")
    users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mounts.cloned(folder) as tree:
            mounts.restrict(tree, owners=users)
    finally:
        os.close(users)


def within_reach(folder: Path) -> tuple[Path, list[str]]:
    """Where a user that is nobody on the machine may walk to a directory.

    A command that is put after the words sees it there, with what it starts, and nobody else.
    """
    folder = folder.resolve()
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in (folder, *folder.parents)):
        return folder, []
    REACH.mkdir(parents=True, exist_ok=True)
    alone = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _BIND, "sh"]
    return REACH, [*alone, str(folder), str(REACH)]

"""What this machine's kernel can do for containers, found out by trying."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

from winpod.compute import mounts

REACHABLE = Path("/run/winpod/reachable")
_SOME_ID, _MANY = 1 << 30, 65536


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
        tree = mounts.clone(folder)
        try:
            mounts.restrict(tree, owners=users)
        finally:
            os.close(tree)
    finally:
        os.close(users)


def reachable(folder: Path, owner: Path) -> Path:
    """A directory under a path that everybody may walk; each `owner` has its own."""
    folder = folder.resolve()
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in (folder, *folder.parents)):
        return folder
    place = REACHABLE / hashlib.sha256(os.fsencode(owner.resolve())).hexdigest()[:16]
    release(place)
    place.mkdir(parents=True, exist_ok=True)
    tree = mounts.clone(folder)
    try:
        with mounts.opened(place) as target:
            mounts.attach(tree, target)
    finally:
        os.close(tree)
    return place


def release(place: Path) -> None:
    """The end of what `reachable` gave."""
    if place.is_relative_to(REACHABLE) and place.exists():
        mounts.unmount(place)
        place.rmdir()

"""Checks of the host's requirements.

Kernel features are tried, not inferred from a version: a feature may be missing in a container, or
disabled by the administrator. `require_supported` runs at every start of a runtime, so its checks
take milliseconds; `run_checks` adds those that start programs.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from winpod.compute import cgroups, idmapped_mounts, scratch_disk
from winpod.compute.errors import Unsupported
from winpod.errors import WinpodError
from winpod.files import remove_tree
from winpod.images.base.build_container import find_oci_runtime
from winpod.images.errors import ToolMissing
from winpod.subprocesses import run_blocking

OLDEST_KERNEL = (5, 15)
REACHABLE_ROOTFS = Path("/run/winpod/rootfs")
_BIND = 'from="$1" to="$2" && shift 2 && mount --bind "$from" "$to" && exec "$@"'
_FIRST_ID, _ID_COUNT = 1 << 30, 65536
_SECCOMP = Path("/proc/sys/kernel/seccomp/actions_avail")
_PROBE_BYTES = 64 << 20
_LOW_SPACE = 2 << 30
_LINKS = (
    "ip link add probe0 type bridge && ip link add probe1 type veth peer name probe2"
    " && iptables -w -t nat -L -n >/dev/null"
)
NEEDED_PROGRAMS = {
    "conmon": "conmon",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
}


class Level(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `found` is a clause without a full stop."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def require_supported(root: Path) -> None:
    """Refuse to start on a host that lacks what every container needs."""
    failed = [check for check in _start_checks(root) if check.level is Level.FAILED]
    if failed:
        raise Unsupported(
            "; ".join(f"{check.name}: {check.found}" for check in failed),
            " ".join(dict.fromkeys(check.remedy for check in failed if check.remedy)),
        )


def run_checks(root: Path, oci_runtime: str = "") -> Iterator[Check]:
    """Run every check. Those that need root are left out for other users."""
    if os.geteuid() != 0:
        yield check_kernel(platform.release())
        yield check_architecture(platform.machine())
        yield Check("privileges", Level.FAILED, "not root", "Run it with sudo.")
    else:
        yield from _start_checks(root)
        yield _check_user_namespaces(root)
        yield _attempt("loop devices, ext4", "a container's disk can be mounted", root, _try_disk)
    yield check_oci_runtime(oci_runtime)
    yield check_programs(NEEDED_PROGRAMS)
    if os.geteuid() == 0:
        yield _check_links()
    yield _check_space(root)


def _start_checks(root: Path) -> Iterator[Check]:
    yield check_kernel(platform.release())
    yield check_architecture(platform.machine())
    yield check_controllers(cgroups.controllers())
    yield _attempt("cgroup limits", "can be set", root, _try_limits)
    yield _attempt("overlayfs", "stacks detached mounts", root, _try_overlay)
    yield check_seccomp(_SECCOMP)


def check_kernel(release: str) -> Check:
    oldest = ".".join(map(str, OLDEST_KERNEL))
    found = re.match(r"(\d+)\.(\d+)", release)
    if found and tuple(map(int, found.groups())) >= OLDEST_KERNEL:
        return Check("kernel", Level.OK, f"Linux {release}")
    return Check(
        "kernel",
        Level.FAILED,
        f"Linux {release}, older than {oldest}",
        f"Boot a kernel {oldest} or newer.",
    )


def check_architecture(machine: str) -> Check:
    if machine == "x86_64":
        return Check("architecture", Level.OK, machine)
    return Check(
        "architecture", Level.FAILED, machine, "Windows programs for amd64 need an x86_64 machine."
    )


def check_controllers(found: Mapping[str, bool]) -> Check:
    """Check cgroup controllers; `found` maps each controller to whether the host has it."""
    layout = f"version {2 if cgroups.is_cgroup_v2() else 1}"
    missing = [name for name in ("memory", "pids", "cpu") if not found[name]]
    if missing:
        return Check(
            "cgroups",
            Level.FAILED,
            f"{layout}, no controller {', no '.join(missing)}",
            "Enable it on the kernel's command line, and mount /sys/fs/cgroup.",
        )
    if not found["io"]:
        return Check("cgroups", Level.DEGRADED, f"{layout}, no controller io: disk rates unlimited")
    return Check("cgroups", Level.OK, layout)


def check_seccomp(actions: Path) -> Check:
    if actions.exists():
        return Check("seccomp", Level.OK, "filters are available")
    return Check("seccomp", Level.FAILED, "the kernel has no filters", "Boot another kernel.")


def check_oci_runtime(chosen: str) -> Check:
    try:
        return Check("OCI runtime", Level.OK, find_oci_runtime(chosen))
    except ToolMissing as error:
        return Check("OCI runtime", Level.FAILED, "none found", str(error))


def check_programs(needed: Mapping[str, str]) -> Check:
    missing = {name: package for name, package in needed.items() if not shutil.which(name)}
    if not missing:
        return Check("programs", Level.OK, ", ".join(needed))
    packages = " ".join(sorted(set(missing.values())))
    return Check(
        "programs", Level.FAILED, f"no {', no '.join(missing)}", f"apt-get install {packages}"
    )


def _check_user_namespaces(root: Path) -> Check:
    try:
        _try_owners(root)
    except (OSError, WinpodError) as error:
        return Check(
            "user namespaces",
            Level.DEGRADED,
            f"not usable ({_reason(error)}): root in a container is root on the host, "
            "without capabilities",
            "Kernels from 5.19 on, with the root on ext4, xfs or btrfs, can map owners.",
        )
    return Check("user namespaces", Level.OK, "containers' users are unprivileged on the host")


def _check_links() -> Check:
    try:
        _run(["unshare", "--net", "sh", "-c", _LINKS])
    except OSError as error:
        return Check(
            "network",
            Level.FAILED,
            f"no bridge, veth or iptables ({_reason(error)})",
            "apt-get install iproute2 iptables, and load the kernel modules bridge and veth.",
        )
    return Check("network", Level.OK, "bridge, veth, iptables")


def _check_space(root: Path) -> Check:
    free = shutil.disk_usage(_existing(root)).free
    found = f"{free / 1e9:.1f} GB free for {root}"
    if free < _LOW_SPACE:
        return Check("disk", Level.DEGRADED, found, "A base alone takes 1.6 GB to build.")
    return Check("disk", Level.OK, found)


def _attempt(name: str, success: str, root: Path, check: Callable[[Path], None]) -> Check:
    try:
        check(root)
    except (OSError, WinpodError) as error:
        return Check(name, Level.FAILED, _reason(error), _REMEDIES.get(name, ""))
    return Check(name, Level.OK, success)


_REMEDIES = {
    "overlayfs": "Load the kernel module overlay; in a container, it needs privileges to mount.",
    "cgroup limits": "In a container, give it a cgroup namespace and a writable /sys/fs/cgroup.",
    "loop devices, ext4": "Load the kernel modules loop and ext4; in a container, give it /dev.",
}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = errno.errorcode.get(error.errno or 0, "")
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}" + (f", {name}" if name else "")
    return str(error)


def _try_limits(root: Path) -> None:
    del root
    name = f"preflight-{secrets.token_hex(4)}"
    try:
        cgroups.create_cgroup(name, _PROBE_BYTES)
        cgroups.require_limits(name)
    finally:
        cgroups.remove_cgroup(name)


def _try_overlay(root: Path) -> None:
    _stack_probe(root, owners=None)


def _try_owners(root: Path) -> None:
    """Map owners in an overlay's lower layer; overlayfs can since 5.19."""
    with _user_namespace() as owners:
        _stack_probe(root, owners)


def _stack_probe(root: Path, owners: int | None) -> None:
    """Mount an overlay of two layers, read-only: a container's upper layer is on its own disk."""
    with _scratch(root) as folder, ExitStack() as held:
        for name in ("one", "two", "target"):
            (folder / name).mkdir()
        trees = [
            held.enter_context(idmapped_mounts.clone_tree(folder / name)) for name in ("one", "two")
        ]
        for tree in trees:
            idmapped_mounts.set_tree_attributes(tree, owners=owners)
        idmapped_mounts.mount_overlay(trees, None, folder / "target")
        idmapped_mounts.unmount(folder / "target")


def _try_disk(root: Path) -> None:
    with _scratch(root) as folder:
        try:
            scratch_disk.create_disk(folder, _PROBE_BYTES, 0)
        finally:
            scratch_disk.remove_disk(folder)


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=".winpod-preflight-", dir=_existing(root)))
    try:
        yield folder
    finally:
        remove_tree(folder, ignore_errors=True)


def _existing(root: Path) -> Path:
    return next(folder for folder in (root, *root.parents) if folder.exists())


@contextmanager
def _user_namespace() -> Iterator[int]:
    """Open a user namespace with unused ids."""
    stdin, start = os.pipe()
    started, stdout = os.pipe()
    command = ["unshare", "--user", "cat"]
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        os.close(stdout)
        os.write(start, b".")
        os.read(started, 1)  # by now it has its namespace, or has ended
        for kind in ("uid", "gid"):
            Path(f"/proc/{process.pid}/{kind}_map").write_text(f"0 {_FIRST_ID} {_ID_COUNT}\n")
        users = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield users
        finally:
            os.close(users)
    finally:
        process.kill()
        process.wait()
        for descriptor in (stdin, start, started):
            os.close(descriptor)


def _run(command: Sequence[str]) -> None:
    done = run_blocking(command)
    if done.code:
        raise OSError(done.error_text or f"{command[0]} exited with {done.code}")


def missing_programs(needed: Mapping[str, str]) -> str:
    """Name the missing programs and their packages; empty if all exist."""
    missing = [
        f"{name} (package {package})" for name, package in needed.items() if not shutil.which(name)
    ]
    return f"this host has no {', no '.join(missing)}." if missing else ""


def has_user_namespaces(folder: Path) -> bool:
    """Report whether containers can have mapped users that own their files in a folder."""
    return _check_user_namespaces(folder).level is Level.OK


def is_reachable_by_mapped_user(folder: Path) -> tuple[Path, list[str]]:
    """Return a path of a folder that unprivileged users can reach, and a command prefix.

    If the folder is not reachable, the prefix bind-mounts it in a private mount namespace, for the
    command and its children only.
    """
    folder = folder.resolve()
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in (folder, *folder.parents)):
        return folder, []
    REACHABLE_ROOTFS.mkdir(parents=True, exist_ok=True)
    private = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _BIND, "sh"]
    return REACHABLE_ROOTFS, [*private, str(folder), str(REACHABLE_ROOTFS)]

"""The cgroup of a silo: limits changed while it runs, and usage.

The OCI runtime creates the cgroup. It also removes it, unless the silo was killed before. Both
versions are supported: one directory for all controllers (v2), or one for each (v1). A limit whose
controller is missing is skipped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winpod.compute.errors import MemoryInUse
from winpod.compute.native import WPROXY, native_program
from winpod.compute.resources import ORDINARY_WEIGHT, ResourceLimits

PARENT_CGROUP = "winpod"
DEFAULT_MEMORY = 4 << 30
_ROOT = Path("/sys/fs/cgroup")
_SUPERVISORS = "supervisors"
_HIERARCHIES = ("memory", "pids", "cpu", "cpuacct", "blkio", "systemd", "unified")
"""Version 1. systemd finds the unit of a process by the last two."""
_NO_QUOTA = -1
_ORDINARY_SHARES, _FEWEST_SHARES = 1024, 2
_REMOVE_SECONDS = 5.0
_PF_EXITING = 4


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """Private memory is anonymous memory of one process; shared memory belongs to several."""

    cpu_nanoseconds: int = 0
    memory_bytes: int = 0
    private_bytes: int = 0
    shared_bytes: int = 0
    swapped_bytes: int = 0
    processes: int = 0
    threads: int = 0
    out_of_memory_kills: int = 0


def set_limits(name: str, limits: ResourceLimits, device: str = "", root: Path = _ROOT) -> None:
    """Set all limits or none; `device` is the `major:minor` of the container's disk.

    A memory limit below the usage is refused before anything is written: cgroup v2 would OOM-kill
    to get below it, and v1 would refuse it after other limits were written.
    """
    memory, counted = limits.memory_bytes or DEFAULT_MEMORY, read_usage(name, root)
    if memory < (used := counted.private_bytes + counted.shared_bytes):
        raise MemoryInUse(memory, used)
    written: list[tuple[Path, str]] = []
    for controller, file, text in _writes(limits, device, is_unified=is_cgroup_v2(root)):
        path = _folder(controller, name, root) / file
        if not path.exists():
            continue
        old = _text(path)
        try:
            path.write_text(text)
        except OSError as error:
            _write_back(written)
            if error.errno != errno.EBUSY:
                raise
            raise MemoryInUse(memory, read_usage(name, root).memory_bytes) from None
        written.append((path, old))


def _write_back(written: Sequence[tuple[Path, str]]) -> None:
    for path, old in reversed(written):
        with contextlib.suppress(OSError):
            path.write_text(old)


def set_io_limits(name: str, device: str, bytes_: int | None, operations: int | None) -> None:
    """Limit what a cgroup reads and writes of one disk per second; None is unlimited."""
    writes = _rate_writes(device, bytes_, operations, is_unified=is_cgroup_v2())
    for controller, file, text in writes:
        path = _folder(controller, name) / file
        if path.exists():
            path.write_text(text)


def create_cgroup(name: str, memory: int) -> None:
    """Create a cgroup with limits for processes that no OCI runtime starts."""
    for folder in _all_of(name):
        folder.mkdir(parents=True, exist_ok=True)
    if is_cgroup_v2():
        for parent in (_ROOT, _ROOT / PARENT_CGROUP):
            (parent / "cgroup.subtree_control").write_text("+cpu +memory +pids +io")
    elif _has("memory"):
        (_folder("memory", name) / "memory.limit_in_bytes").write_text(str(memory))
    set_limits(name, ResourceLimits(len(os.sched_getaffinity(0)), memory_bytes=memory))


def controllers() -> dict[str, bool]:
    """Report for each controller that limits need whether the host has it."""
    if is_cgroup_v2():
        found = _text(_ROOT / "cgroup.controllers").split()
        return {name: name in found for name in ("memory", "pids", "cpu", "io")}
    names = {"memory": "memory", "pids": "pids", "cpu": "cpu", "io": "blkio"}
    return {name: (_ROOT / folder).is_dir() for name, folder in names.items()}


def require_limits(name: str) -> None:
    """Raise OSError unless a cgroup has the files that limits are written to."""
    files = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max",)}
    for controller, choices in files.items():
        path = _folder(controller, name) / choices[0 if is_cgroup_v2() else -1]
        if not path.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def in_cgroup(name: str, command: Sequence[str]) -> list[str]:
    """Prefix a command so that it runs in a cgroup."""
    files = " ".join(str(folder / "cgroup.procs") for folder in _all_of(name))
    return [str(native_program(WPROXY)), "enter", files, *command]


def in_own_cgroup(command: Sequence[str]) -> list[str]:
    """Prefix a command so that it runs in winpod's own cgroup, and outlives its caller's.

    A service manager ends a unit or a login session with every process in its cgroup. Without
    permission to create cgroups the command stays in its caller's.
    """
    folders = _all_of(_SUPERVISORS)
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return list(command)
    return in_cgroup(_SUPERVISORS, command) if folders else list(command)


def is_running_in(pid: int, name: str) -> bool:
    """Report whether a process runs in a cgroup.

    An exiting process has closed its sockets already, and v2 keeps its membership until it is
    reaped. Version 1 does not.
    """
    try:
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
        return not flags & _PF_EXITING and name in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _all_of(name: str) -> list[Path]:
    found = [_folder(hierarchy, name) for hierarchy in _HIERARCHIES if _has(hierarchy)]
    return list(dict.fromkeys(found))


def _has(hierarchy: str) -> bool:
    return is_cgroup_v2() or (_ROOT / hierarchy).is_dir()


def remove_cgroup(name: str) -> None:
    """Kill everything in a cgroup and remove it from every hierarchy."""
    folders = (_ROOT / PARENT_CGROUP / name, *_ROOT.glob(f"*/{PARENT_CGROUP}/{name}"))
    deadline = time.monotonic() + _REMOVE_SECONDS
    while not all(map(_remove, folders)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _remove(folder: Path) -> bool:
    """Return whether the cgroup is gone. Killed processes leave it only after a moment."""
    _kill_all(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.is_dir()


def _kill_all(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def read_usage(name: str, root: Path = _ROOT) -> CgroupUsage:
    if is_cgroup_v2(root):
        folder = _folder("", name, root)
        return parse_cgroup_v2({file: _text(folder / file) for file in UNIFIED_FILES})
    memory, pids = _folder("memory", name, root), _folder("pids", name, root)
    stat = _table(_text(memory / "memory.stat"))
    return CgroupUsage(
        _number(_text(_folder("cpuacct", name, root) / "cpuacct.usage")),
        _number(_text(memory / "memory.usage_in_bytes")),
        stat.get("total_rss", 0),
        stat.get("total_shmem", 0),
        stat.get("total_swap", 0),
        len(_text(pids / "cgroup.procs").splitlines()),
        _number(_text(pids / "pids.current")),
        _table(_text(memory / "memory.oom_control")).get("oom_kill", 0),
    )


UNIFIED_FILES = (
    "cpu.stat",
    "memory.current",
    "memory.stat",
    "memory.swap.current",
    "cgroup.procs",
    "pids.current",
    "memory.events",
)


def parse_cgroup_v2(files: Mapping[str, str]) -> CgroupUsage:
    """Parse the v2 files of a cgroup, read on the host or in a microVM."""
    stat = _table(files["memory.stat"])
    return CgroupUsage(
        _table(files["cpu.stat"]).get("usage_usec", 0) * 1000,
        _number(files["memory.current"]),
        stat.get("anon", 0),
        stat.get("shmem", 0),
        _number(files["memory.swap.current"]),
        len(files["cgroup.procs"].splitlines()),
        _number(files["pids.current"]),
        _table(files["memory.events"]).get("oom_kill", 0),
    )


def cgroup_v2_writes(limits: ResourceLimits) -> Iterator[tuple[str, str]]:
    """Yield the v2 files to write and their content, except the disk's I/O limits."""
    quota, period = limits.cpu_quota_us, limits.cpu_period_us
    yield "pids.max", str(limits.pids)
    yield "memory.max", str(limits.memory_bytes or DEFAULT_MEMORY)
    yield "memory.swap.max", "0"
    yield "cpu.max", f"{quota or 'max'} {period}"
    yield "cpu.weight", str(limits.cpu_weight or ORDINARY_WEIGHT)


def _writes(
    limits: ResourceLimits, device: str, *, is_unified: bool
) -> Iterator[tuple[str, str, str]]:
    rates = limits.disk_bytes_per_second, limits.disk_operations_per_second
    memory = str(limits.memory_bytes or DEFAULT_MEMORY)
    quota, period = limits.cpu_quota_us, limits.cpu_period_us
    if is_unified:
        for file, text in cgroup_v2_writes(limits):
            yield "", file, text
        yield from _rate_writes(device, *rates, is_unified=is_unified)
        return
    yield "pids", "pids.max", str(limits.pids)
    # memsw may never be below memory, so it is raised first.
    yield "memory", "memory.memsw.limit_in_bytes", str(1 << 62)
    yield "memory", "memory.limit_in_bytes", memory
    yield "memory", "memory.memsw.limit_in_bytes", memory
    yield "cpu", "cpu.cfs_period_us", str(period)
    yield "cpu", "cpu.cfs_quota_us", str(quota or _NO_QUOTA)
    yield "cpu", "cpu.shares", str(_shares(limits.cpu_weight or ORDINARY_WEIGHT))
    yield from _rate_writes(device, *rates, is_unified=is_unified)


def _rate_writes(
    device: str, bytes_: int | None, operations: int | None, *, is_unified: bool
) -> Iterator[tuple[str, str, str]]:
    if not device:
        return
    if is_unified:
        rate, iops = bytes_ or "max", operations or "max"
        yield "", "io.max", f"{device} rbps={rate} wbps={rate} riops={iops} wiops={iops}"
        return
    for kind in ("read", "write"):
        yield "blkio", f"blkio.throttle.{kind}_bps_device", f"{device} {bytes_ or 0}"
        yield "blkio", f"blkio.throttle.{kind}_iops_device", f"{device} {operations or 0}"


def _shares(weight: int) -> int:
    """Convert a Windows weight to cpu.shares. cpu.weight has Windows' range, 1 to 10000."""
    return max(_ORDINARY_SHARES * weight // ORDINARY_WEIGHT, _FEWEST_SHARES)


def is_cgroup_v2(root: Path = _ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def _folder(controller: str, name: str, root: Path = _ROOT) -> Path:
    return (root if is_cgroup_v2(root) else root / controller) / PARENT_CGROUP / name


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _table(text: str) -> dict[str, int]:
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

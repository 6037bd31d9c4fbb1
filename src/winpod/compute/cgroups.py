"""The control group of a shell: limits set while it runs, and what it has used.

The OCI runtime makes it, and removes it where nobody has killed it meanwhile. Both layouts of the
kernel are known: one directory for all (version 2), or one for each controller (version 1); a limit
that the machine has no controller for is left out.
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
from winpod.compute.resources import Enforced

PARENT = "winpod"
MEMORY = 4 << 30
_ROOT = Path("/sys/fs/cgroup")
_NO_QUOTA = -1
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Private memory is what no file backs and one process has; shared, what several do."""

    cpu_nanoseconds: int = 0
    memory_bytes: int = 0
    private_bytes: int = 0
    shared_bytes: int = 0
    swapped_bytes: int = 0
    processes: int = 0
    threads: int = 0
    out_of_memory_kills: int = 0


def set_limits(name: str, limits: Enforced, device: str = "", root: Path = _ROOT) -> None:
    """All of them or none; `device` is the `major:minor` of the disk that the container writes to.

    Less memory than is used is refused before anything is written: one layout of the kernel would
    make room by killing, and the other refuses half-way.
    """
    memory, counted = limits.memory_bytes or MEMORY, read_usage(name, root)
    if memory < (used := counted.private_bytes + counted.shared_bytes):
        raise MemoryInUse(memory, used)
    before: list[tuple[Path, str]] = []
    for controller, file, text in _writes(limits, device, is_unified=_is_unified(root)):
        place = _folder(controller, name, root) / file
        if not place.exists():
            continue
        was = _text(place)
        try:
            place.write_text(text)
        except OSError as error:
            _write_back(before)
            if error.errno != errno.EBUSY:
                raise
            raise MemoryInUse(memory, read_usage(name, root).memory_bytes) from None
        before.append((place, was))


def _write_back(before: Sequence[tuple[Path, str]]) -> None:
    for place, was in reversed(before):
        with contextlib.suppress(OSError):
            place.write_text(was)


def set_rates(name: str, device: str, bytes_: int | None, operations: int | None) -> None:
    """How much a group may read and write of one disk in a second; None is no limit."""
    writes = _rate_writes(device, bytes_, operations, is_unified=_is_unified())
    for controller, file, text in writes:
        place = _folder(controller, name) / file
        if place.exists():
            place.write_text(text)


def make_group(name: str, memory: int) -> None:
    """For processes that no OCI runtime starts, with a limit of memory and processes."""
    for folder in _all_of(name):
        folder.mkdir(parents=True, exist_ok=True)
    if _is_unified():
        for above in (_ROOT, _ROOT / PARENT):
            (above / "cgroup.subtree_control").write_text("+cpu +memory +pids +io")
    elif _has("memory"):
        (_folder("memory", name) / "memory.limit_in_bytes").write_text(str(memory))
    set_limits(name, Enforced(len(os.sched_getaffinity(0)), memory_bytes=memory))


def member_files(name: str) -> list[Path]:
    """A process whose number is written there is in the group."""
    return [folder / "cgroup.procs" for folder in _all_of(name)]


def _all_of(name: str) -> list[Path]:
    controllers = ("memory", "pids", "cpu", "cpuacct", "blkio")
    found = [_folder(controller, name) for controller in controllers if _has(controller)]
    return list(dict.fromkeys(found))


def _has(controller: str) -> bool:
    return _is_unified() or (_ROOT / controller).is_dir()


def remove_group(name: str) -> None:
    """Whatever is there of it, with all that runs in it."""
    folders = (_ROOT / PARENT / name, *_ROOT.glob(f"*/{PARENT}/{name}"))
    deadline = time.monotonic() + _PATIENCE
    while not all(map(_remove, folders)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _remove(folder: Path) -> bool:
    """Whether it is gone; killed processes leave a group only after a moment."""
    _kill_all(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.is_dir()


def _kill_all(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def read_usage(name: str, root: Path = _ROOT) -> Counted:
    if _is_unified(root):
        folder = _folder("", name, root)
        return count_unified({file: _text(folder / file) for file in UNIFIED_FILES})
    memory, pids = _folder("memory", name, root), _folder("pids", name, root)
    stat = _table(_text(memory / "memory.stat"))
    return Counted(
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


def count_unified(files: Mapping[str, str]) -> Counted:
    """What those files of a group say, wherever they were read."""
    stat = _table(files["memory.stat"])
    return Counted(
        _table(files["cpu.stat"]).get("usage_usec", 0) * 1000,
        _number(files["memory.current"]),
        stat.get("anon", 0),
        stat.get("shmem", 0),
        _number(files["memory.swap.current"]),
        len(files["cgroup.procs"].splitlines()),
        _number(files["pids.current"]),
        _table(files["memory.events"]).get("oom_kill", 0),
    )


def unified_writes(limits: Enforced) -> Iterator[tuple[str, str]]:
    """What is written to which files of a group, but for a disk's rates."""
    quota, period = limits.cpu_quota_us, limits.cpu_period_us
    yield "pids.max", str(limits.pids)
    yield "memory.max", str(limits.memory_bytes or MEMORY)
    yield "memory.swap.max", "0"
    yield "cpu.max", f"{quota or 'max'} {period}"
    yield "cpu.weight", str(_weight(limits.cpu_shares or 1024))


def _writes(limits: Enforced, device: str, *, is_unified: bool) -> Iterator[tuple[str, str, str]]:
    rates = limits.disk_bytes_per_second, limits.disk_operations_per_second
    memory = str(limits.memory_bytes or MEMORY)
    quota, period = limits.cpu_quota_us, limits.cpu_period_us
    if is_unified:
        for file, text in unified_writes(limits):
            yield "", file, text
        yield from _rate_writes(device, *rates, is_unified=is_unified)
        return
    yield "pids", "pids.max", str(limits.pids)
    # The one may never be above the other, so the order depends on which way they go.
    yield "memory", "memory.memsw.limit_in_bytes", str(1 << 62)
    yield "memory", "memory.limit_in_bytes", memory
    yield "memory", "memory.memsw.limit_in_bytes", memory
    yield "cpu", "cpu.cfs_period_us", str(period)
    yield "cpu", "cpu.cfs_quota_us", str(quota or _NO_QUOTA)
    yield "cpu", "cpu.shares", str(limits.cpu_shares or 1024)
    yield from _rate_writes(device, *rates, is_unified=is_unified)


def _rate_writes(
    device: str, bytes_: int | None, operations: int | None, *, is_unified: bool
) -> Iterator[tuple[str, str, str]]:
    if not device:
        return
    if is_unified:
        most, often = bytes_ or "max", operations or "max"
        yield "", "io.max", f"{device} rbps={most} wbps={most} riops={often} wiops={often}"
        return
    for kind in ("read", "write"):
        yield "blkio", f"blkio.throttle.{kind}_bps_device", f"{device} {bytes_ or 0}"
        yield "blkio", f"blkio.throttle.{kind}_iops_device", f"{device} {operations or 0}"


def _weight(shares: int) -> int:
    """Shares of 2 to 262144 as a weight of 1 to 10000, as OCI runtimes count."""
    return 1 + (max(shares, 2) - 2) * 9999 // 262142


def _is_unified(root: Path = _ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def _folder(controller: str, name: str, root: Path = _ROOT) -> Path:
    return (root if _is_unified(root) else root / controller) / PARENT / name


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

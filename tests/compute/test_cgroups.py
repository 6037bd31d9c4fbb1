"""Limits and usage with cgroup v1 and v2."""

import errno
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from winpod.compute.cgroups import (
    CgroupUsage,
    create_cgroup,
    in_cgroup,
    in_own_cgroup,
    is_running_in,
    read_usage,
    remove_cgroup,
    set_limits,
)
from winpod.compute.errors import MemoryInUse
from winpod.compute.resources import ResourceLimits

MIB = 1 << 20

UNIFIED = {
    "cpu.stat": "usage_usec 5\nuser_usec 3\n",
    "memory.current": "1000\n",
    "memory.stat": "anon 600\nfile 300\nshmem 50\n",
    "memory.swap.current": "20\n",
    "memory.events": "oom 1\noom_kill 2\n",
    "cgroup.procs": "10\n11\n12\n",
    "pids.current": "7\n",
}
BY_CONTROLLER = {
    "cpuacct": {"cpuacct.usage": "5000\n"},
    "memory": {
        "memory.usage_in_bytes": "1000\n",
        "memory.stat": "rss 1\ntotal_rss 600\ntotal_shmem 50\ntotal_swap 20\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    },
    "pids": {"cgroup.procs": "10\n11\n12\n", "pids.current": "7\n"},
}
COUNTED = CgroupUsage(5000, 1000, 600, 50, 20, 3, 7, 2)


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_usage_is_the_same_with_cgroup_v1_and_v2(tmp_path: Path) -> None:
    for controller, files in BY_CONTROLLER.items():
        write(tmp_path / controller / "winpod/one", files)
    assert read_usage("one", tmp_path) == COUNTED
    (tmp_path / "cgroup.controllers").touch()
    write(tmp_path / "winpod/one", UNIFIED)
    assert read_usage("one", tmp_path) == COUNTED


@pytest.mark.parametrize("unified", [False, True])
def test_usage_of_a_missing_cgroup_is_zero(tmp_path: Path, unified: bool) -> None:
    if unified:
        (tmp_path / "cgroup.controllers").touch()
    assert read_usage("nobody", tmp_path) == CgroupUsage()


def test_limits_without_a_controller_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    names = ("memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "pids.max", "io.max")
    folder = write(tmp_path / "winpod/one", dict.fromkeys(names, ""))
    limits = ResourceLimits(
        2, cpu_quota_us=50_000, memory_bytes=64 * MIB, disk_bytes_per_second=MIB
    )
    set_limits("one", limits, "8:0", root=tmp_path)
    written = {name: (folder / name).read_text() for name in names}
    assert written["memory.max"] == str(64 * MIB)
    assert written["memory.swap.max"] == "0"
    assert written["cpu.max"] == "50000 100000"
    assert written["cpu.weight"] == "100", "what a group has that no limit was set for"
    assert written["pids.max"] == str(limits.pids)
    assert written["io.max"] == f"8:0 rbps={MIB} wbps={MIB} riops=max wiops=max"
    set_limits("one", ResourceLimits(2), "8:0", root=tmp_path)
    assert (folder / "cpu.max").read_text() == "max 100000"
    (folder / "io.max").unlink()
    set_limits("one", limits, "8:0", root=tmp_path)
    assert not (folder / "io.max").exists()


def test_limits_are_written_to_each_controller(tmp_path: Path) -> None:
    memory = write(tmp_path / "memory/winpod/one", {"memory.limit_in_bytes": ""})
    cpu = write(tmp_path / "cpu/winpod/one", {"cpu.cfs_quota_us": "", "cpu.shares": ""})
    blkio = write(tmp_path / "blkio/winpod/one", {"blkio.throttle.write_iops_device": ""})
    limits = ResourceLimits(1, cpu_weight=50, memory_bytes=MIB, disk_operations_per_second=100)
    set_limits("one", limits, "8:0", root=tmp_path)
    assert (memory / "memory.limit_in_bytes").read_text() == str(MIB)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "-1"
    assert (cpu / "cpu.shares").read_text() == "512"
    assert (blkio / "blkio.throttle.write_iops_device").read_text() == "8:0 100"


def test_memory_limit_below_usage_is_refused_without_writes(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    limits = dict.fromkeys(("memory.max", "memory.swap.max", "cpu.max", "pids.max"), "as it was")
    folder = write(tmp_path / "winpod/one", UNIFIED | limits)
    with pytest.raises(MemoryInUse):
        set_limits("one", ResourceLimits(1, memory_bytes=649, cpu_quota_us=5), root=tmp_path)
    assert {name: (folder / name).read_text() for name in limits} == limits
    set_limits("one", ResourceLimits(1, memory_bytes=650), root=tmp_path)
    assert (folder / "memory.max").read_text() == "650"


def test_limits_are_rolled_back_when_the_kernel_refuses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a kernel that has charged kernel memory to the cgroup."""
    before = {"memory.limit_in_bytes": "500", "memory.memsw.limit_in_bytes": "500"}
    memory = write(tmp_path / "memory/winpod/one", before)
    pids = write(tmp_path / "pids/winpod/one", {"pids.max": "9"})
    write_text = Path.write_text

    def refusing(path: Path, text: str) -> int:
        if path.name == "memory.limit_in_bytes" and int(text) < 500:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return write_text(path, text)

    monkeypatch.setattr(Path, "write_text", refusing)
    with pytest.raises(MemoryInUse):
        set_limits("one", ResourceLimits(1, memory_bytes=400), root=tmp_path)
    assert {name: (memory / name).read_text() for name in before} == before
    assert (pids / "pids.max").read_text() == "9"


@pytest.fixture
def group() -> Iterator[str]:
    """A real cgroup that uses 64 of 128 MiB."""
    name = f"test-{secrets.token_hex(8)}"
    create_cgroup(name, 128 * MIB)
    holding = f"held = b'x' * {64 * MIB}; print(len(held), flush=True); input()"
    process = subprocess.Popen(
        in_cgroup(name, [sys.executable, "-c", holding]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.readline()
    try:
        yield name
        assert process.poll() is None, "it was killed"
    finally:
        process.kill()
        process.communicate()
        remove_cgroup(name)


def limits_of(name: str) -> dict[str, str]:
    folders = (Path("/sys/fs/cgroup/winpod") / name, Path("/sys/fs/cgroup/memory/winpod") / name)
    folder = next(folder for folder in folders if folder.is_dir())
    names = ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    return {file: (folder / file).read_text() for file in names if (folder / file).exists()}


def test_refused_memory_limit_kills_no_process(group: str) -> None:
    before = limits_of(group)
    with pytest.raises(MemoryInUse, match="of 32 MiB is less than"):
        set_limits(group, ResourceLimits(1, memory_bytes=32 * MIB))
    assert limits_of(group) == before
    set_limits(group, ResourceLimits(1, memory_bytes=100 * MIB))
    assert set(limits_of(group).values()) == {f"{100 * MIB}\n"}


def test_process_in_own_cgroup_survives_the_end_of_the_callers_cgroup() -> None:
    """Kill every process in the cgroup, as systemd does to end a unit."""
    unit = f"test-{secrets.token_hex(8)}"
    create_cgroup(unit, 128 * MIB)
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    command = [sys.executable, "-c", start, *in_own_cgroup(["sleep", "60"])]
    caller = subprocess.Popen(
        in_cgroup(unit, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert caller.stdout
    pid = int(caller.stdout.readline())
    try:
        wait_until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()[:5])
        remove_cgroup(unit)
        assert caller.wait() == -signal.SIGKILL
        assert f"/{unit}" not in Path(f"/proc/{pid}/cgroup").read_text()
        assert b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    finally:
        os.kill(pid, signal.SIGKILL)
        caller.communicate()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_zombie_does_not_run_in_its_cgroup() -> None:
    own = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    assert is_running_in(os.getpid(), own)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert own in Path(f"/proc/{child}/cgroup").read_text()
    assert not is_running_in(child, own)
    os.waitpid(child, 0)
    assert not is_running_in(child, own)

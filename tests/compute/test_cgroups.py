"""Limits and counts in both layouts of the kernel's control groups."""

import errno
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from winpod.compute.cgroups import (
    Counted,
    make_group,
    member_files,
    read_usage,
    remove_group,
    set_limits,
)
from winpod.compute.errors import MemoryInUse
from winpod.compute.resources import Enforced

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
COUNTED = Counted(5000, 1000, 600, 50, 20, 3, 7, 2)


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_usage_is_the_same_in_both_layouts(tmp_path: Path) -> None:
    for controller, files in BY_CONTROLLER.items():
        write(tmp_path / controller / "winpod/one", files)
    assert read_usage("one", tmp_path) == COUNTED
    (tmp_path / "cgroup.controllers").touch()
    write(tmp_path / "winpod/one", UNIFIED)
    assert read_usage("one", tmp_path) == COUNTED


@pytest.mark.parametrize("unified", [False, True])
def test_what_is_gone_has_used_nothing(tmp_path: Path, unified: bool) -> None:
    if unified:
        (tmp_path / "cgroup.controllers").touch()
    assert read_usage("nobody", tmp_path) == Counted()


def test_limits_are_written_where_there_is_a_controller_for_them(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    names = ("memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "pids.max", "io.max")
    folder = write(tmp_path / "winpod/one", dict.fromkeys(names, ""))
    limits = Enforced(2, cpu_quota_us=50_000, memory_bytes=64 * MIB, disk_bytes_per_second=MIB)
    set_limits("one", limits, "8:0", root=tmp_path)
    written = {name: (folder / name).read_text() for name in names}
    assert written["memory.max"] == str(64 * MIB)
    assert written["memory.swap.max"] == "0"
    assert written["cpu.max"] == "50000 100000"
    assert written["pids.max"] == str(limits.pids)
    assert written["io.max"] == f"8:0 rbps={MIB} wbps={MIB} riops=max wiops=max"
    set_limits("one", Enforced(2), "8:0", root=tmp_path)
    assert (folder / "cpu.max").read_text() == "max 100000"
    (folder / "io.max").unlink()
    set_limits("one", limits, "8:0", root=tmp_path)
    assert not (folder / "io.max").exists()


def test_limits_are_written_to_each_controller(tmp_path: Path) -> None:
    memory = write(tmp_path / "memory/winpod/one", {"memory.limit_in_bytes": ""})
    cpu = write(tmp_path / "cpu/winpod/one", {"cpu.cfs_quota_us": "", "cpu.shares": ""})
    blkio = write(tmp_path / "blkio/winpod/one", {"blkio.throttle.write_iops_device": ""})
    limits = Enforced(1, cpu_shares=512, memory_bytes=MIB, disk_operations_per_second=100)
    set_limits("one", limits, "8:0", root=tmp_path)
    assert (memory / "memory.limit_in_bytes").read_text() == str(MIB)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "-1"
    assert (cpu / "cpu.shares").read_text() == "512"
    assert (blkio / "blkio.throttle.write_iops_device").read_text() == "8:0 100"


def test_less_memory_than_is_used_is_refused_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    limits = dict.fromkeys(("memory.max", "memory.swap.max", "cpu.max", "pids.max"), "as it was")
    folder = write(tmp_path / "winpod/one", UNIFIED | limits)
    with pytest.raises(MemoryInUse):
        set_limits("one", Enforced(1, memory_bytes=649, cpu_quota_us=5), root=tmp_path)
    assert {name: (folder / name).read_text() for name in limits} == limits
    set_limits("one", Enforced(1, memory_bytes=650), root=tmp_path)
    assert (folder / "memory.max").read_text() == "650"


def test_what_the_kernel_refuses_half_way_is_written_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for a kernel that has memory of its own in the group."""
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
        set_limits("one", Enforced(1, memory_bytes=400), root=tmp_path)
    assert {name: (memory / name).read_text() for name in before} == before
    assert (pids / "pids.max").read_text() == "9"


@pytest.fixture
def group() -> Iterator[str]:
    """A real one, with 64 MiB in use of 128."""
    name = f"test-{secrets.token_hex(8)}"
    make_group(name, 128 * MIB)
    holding = f"held = b'x' * {64 * MIB}; print(len(held), flush=True); input()"
    joining = f"import os\nfor f in {[str(file) for file in member_files(name)]}:\n"
    joining += " open(f, 'w').write(str(os.getpid()))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", joining + holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.readline()
    try:
        yield name
        assert process.poll() is None, "it was killed"
    finally:
        process.kill()
        process.communicate()
        remove_group(name)


def limits_of(name: str) -> dict[str, str]:
    folders = (Path("/sys/fs/cgroup/winpod") / name, Path("/sys/fs/cgroup/memory/winpod") / name)
    folder = next(folder for folder in folders if folder.is_dir())
    names = ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    return {file: (folder / file).read_text() for file in names if (folder / file).exists()}


def test_the_kernel_kills_nobody_whose_limit_is_refused(group: str) -> None:
    before = limits_of(group)
    with pytest.raises(MemoryInUse, match="of 32 MiB is less than"):
        set_limits(group, Enforced(1, memory_bytes=32 * MIB))
    assert limits_of(group) == before
    set_limits(group, Enforced(1, memory_bytes=100 * MIB))
    assert set(limits_of(group).values()) == {f"{100 * MIB}\n"}

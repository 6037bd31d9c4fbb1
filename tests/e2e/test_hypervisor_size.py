"""Size of a pod's microVM: annotations, reservations, resizes and CPU limits."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cri_node import sandbox_config
from tests.support.e2e import windows_programs
from tests.support.e2e.command_line import Winpod
from tests.support.e2e.microvms import WAITS, call, image, machines, until_said, winpod
from tests.support.e2e.waiting import eventually

from winpod.cri.proto import api_pb2 as api

__all__ = ["image", "winpod"]

MIB = 1 << 20
TOPOLOGY = "io.microsoft.virtualmachine.computetopology"
PROCESSOR = f"{TOPOLOGY}.processor"
HALF = "runhcs-wcow-hypervisor-half"
FULLY_BACKED = "io.microsoft.virtualmachine.fullyphysicallybacked"
CGROUPS = Path("/sys/fs/cgroup")
MEASURE_SECONDS = 8.0
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def _start(winpod: Winpod, image: str, name: str, *more: str) -> None:
    options = ("-d", "--name", name, "--isolation", "hypervisor", *more)
    result = winpod("run", *options, image, "cmd", "/c", WAITS)
    assert result.returncode == 0, result.stderr
    until_said(winpod, name, "up")


def _size(winpod: Winpod, name: str) -> tuple[int, int]:
    """Return the MiB of memory and the number of processors that the guest's kernel reports."""
    line = r"type \\?\unix\proc\meminfo & type \\?\unix\proc\cpuinfo"
    output = winpod("exec", name, "cmd", "/c", line).stdout
    return int(re.findall(r"MemTotal: +(\d+) kB", output)[0]) >> 10, output.count("processor\t:")


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def _locked_bytes(pid: int) -> tuple[int, int]:
    """Return the locked bytes: in total, and in huge pages."""
    smaps = Path(f"/proc/{pid}/smaps").read_text()

    def total(kind: str) -> int:
        return sum(int(kib) << 10 for kib in re.findall(rf"^{kind}: +(\d+) kB", smaps, re.M))

    huge = total("Shared_Hugetlb") + total("Private_Hugetlb")
    return total("Locked") + huge, huge


@pytest.fixture
def huge_pages() -> Iterator[None]:
    """Provide the huge pages that a pod of 1280 MiB needs besides the memory of the template."""
    before = HUGE_PAGES.read_text()
    try:
        eventually(lambda: _allocate_huge_pages(384), lambda count: count == 384, within=120)
        yield
    finally:
        HUGE_PAGES.write_text(before)


def _allocate_huge_pages(wanted: int) -> int:
    """Request huge pages and return how many exist; each attempt compacts more memory."""
    HUGE_PAGES.write_text(str(wanted))
    return int(HUGE_PAGES.read_text())


def _remove(winpod: Winpod, *names: str) -> None:
    assert winpod("rm", "-f", *names).returncode == 0
    assert machines(winpod) == []


def test_running_pod_is_resized(winpod: Winpod, image: str) -> None:
    small = ("--annotation", f"{TOPOLOGY}.processor.count=1", "--memory", "256m")
    _start(winpod, image, "grows", *small)
    memory, processors = _size(winpod, "grows")
    assert 800 < memory < 1024
    assert processors == 1
    raised = winpod("update", "--memory", "2g", "--cpus", "2", "grows")
    assert raised.returncode == 0, raised.stderr
    memory, processors = _size(winpod, "grows")
    assert 2048 < memory < 2304
    assert _resident(machines(winpod)[0]) < 1024 * MIB, "memory is allocated on demand"
    assert processors == min(2, len(os.sched_getaffinity(0)))
    rejected = winpod("update", "--memory", "4000g", "grows")
    assert rejected.returncode != 0
    assert "the pod's microVM would need" in rejected.stderr
    assert _size(winpod, "grows") == (memory, processors)
    _check_pod_resize(winpod, "grows")
    _remove(winpod, "grows")


@pytest.mark.alone
def test_limit_above_host_memory_is_capped(winpod: Winpod, image: str) -> None:
    host_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    _start(winpod, image, "large", "--memory", f"{2 * host_mib}m")
    assert host_mib * 0.9 < _size(winpod, "large")[0] <= host_mib
    _remove(winpod, "large")


def _check_pod_resize(winpod: Winpod, name: str) -> None:
    """Resize the pod up, and down after a restart of the runtime."""
    _resize(winpod, name, 3072 * MIB, 1)
    memory, processors = _size(winpod, name)
    assert 2800 < memory <= 3072
    assert processors == 1
    winpod.end_runtime()
    assert winpod("ps").returncode == 0
    _resize(winpod, name, 1536 * MIB, 0)
    memory, processors = _size(winpod, name)
    assert 1200 < memory <= 1536
    assert processors == 1


def _resize(winpod: Winpod, name: str, memory: int, processors: int) -> None:
    listed = call(winpod, api.ListPodSandboxRequest()).items
    (sandbox,) = [item.id for item in listed if item.metadata.name == name]
    resources = api.LinuxContainerResources(
        memory_limit_in_bytes=memory, cpu_quota=processors * 100_000, cpu_period=100_000
    )
    call(winpod, api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, resources=resources))


@pytest.mark.alone
@pytest.mark.usefixtures("huge_pages")
def test_reserved_memory_is_allocated_and_locked_at_start(winpod: Winpod, image: str) -> None:
    size = f"{TOPOLOGY}.memory.sizeinmb=1280"
    _start(winpod, image, "keeps", "--annotation", f"{FULLY_BACKED}=true", "--annotation", size)
    memory, _ = _size(winpod, "keeps")
    assert 1100 < memory <= 1280
    (pid,) = machines(winpod)
    locked, huge = _locked_bytes(pid)
    assert locked >= 1280 * MIB
    assert huge == 768 * MIB
    raised = winpod("update", "--memory", "1500m", "keeps")
    assert raised.returncode == 0, raised.stderr
    assert _size(winpod, "keeps")[0] > 1500
    assert _locked_bytes(pid)[0] >= 1500 * MIB
    _remove(winpod, "keeps")


class Cgroup:
    """The cgroup of a pod's QEMU, in cgroup v1 or v2."""

    def __init__(self, pid: int) -> None:
        rows = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
        self._paths = {name: path for _, names, path in rows for name in names.split(",")}
        self._unified = (CGROUPS / "cgroup.controllers").exists()

    def _read(self, controller: str, file: str) -> str:
        hierarchy = "" if self._unified else controller
        path = self._paths["" if self._unified else controller]
        return (CGROUPS / hierarchy / path.lstrip("/") / file).read_text()

    @property
    def quota(self) -> float | None:
        """The CPU quota in processors."""
        if self._unified:
            quota, period = self._read("", "cpu.max").split()
            return None if quota == "max" else int(quota) / int(period)
        microseconds = int(self._read("cpu", "cpu.cfs_quota_us"))
        period = self._read("cpu", "cpu.cfs_period_us")
        return None if microseconds < 0 else microseconds / int(period)

    @property
    def weight(self) -> int:
        """The CPU weight; 100 is the default."""
        if self._unified:
            return (2 + (int(self._read("", "cpu.weight")) - 1) * 262142 // 9999) * 100 // 1024
        return int(self._read("cpu", "cpu.shares")) * 100 // 1024

    @property
    def used_seconds(self) -> float:
        if self._unified:
            return self._stat()["usage_usec"] / 1e6
        return int(self._read("cpuacct", "cpuacct.usage")) / 1e9

    @property
    def throttled_periods(self) -> int:
        """The number of throttled periods."""
        return self._stat()["nr_throttled"]

    def _stat(self) -> dict[str, int]:
        rows = (line.split() for line in self._read("cpu", "cpu.stat").splitlines())
        return {name: int(number) for name, number in rows}


def _start_load(winpod: Winpod, image: str, name: str, *settings: str) -> int:
    """Run a program that uses one processor completely; return the PID of its QEMU."""
    before = machines(winpod)
    annotations = [
        option for setting in settings for option in ("--annotation", f"{PROCESSOR}.{setting}")
    ]
    program = windows_programs.go_program(name="load")
    mount = ("-v", f"{program}:C:\\load.exe:ro")
    options = ("-d", "--name", name, "--isolation", "hypervisor", *mount, *annotations)
    result = winpod("run", *options, image, "C:\\load.exe", "1")
    assert result.returncode == 0, result.stderr
    until_said(winpod, name, "holding")
    (pid,) = set(machines(winpod)) - set(before)
    return pid


def _measure(group: Cgroup) -> tuple[float, int]:
    """Return the used share of one processor and the number of throttled periods."""
    start, used, throttled = time.monotonic(), group.used_seconds, group.throttled_periods
    time.sleep(MEASURE_SECONDS)
    share = (group.used_seconds - used) / (time.monotonic() - start)
    return share, group.throttled_periods - throttled


def test_cpu_limit_is_enforced(winpod: Winpod, image: str) -> None:
    group = Cgroup(_start_load(winpod, image, "limited", "count=1", "limit=50000", "weight=300"))
    assert group.quota == 0.5
    assert group.weight == pytest.approx(300, rel=0.05)
    share, throttled = _measure(group)
    assert throttled > 0, "the load was never throttled"
    assert 0.1 < share < 0.6
    raised = winpod("update", "--cpus", "2", "limited")
    assert raised.returncode == 0, raised.stderr
    assert group.quota == 0.5 * min(2, len(os.sched_getaffinity(0))), "half of each processor"
    _remove(winpod, "limited")


def test_cpu_is_shared_by_weight(winpod: Winpod, image: str) -> None:
    heavy = _start_load(winpod, image, "heavy", "count=1", "weight=800")
    light = _start_load(winpod, image, "light", "count=1", "weight=100")
    processor = {min(os.sched_getaffinity(0))}
    for pid in (heavy, light):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), processor)
    groups = [Cgroup(heavy), Cgroup(light)]
    before = [group.used_seconds for group in groups]
    time.sleep(MEASURE_SECONDS)
    heavy_usage, light_usage = (
        group.used_seconds - used for group, used in zip(groups, before, strict=True)
    )
    assert heavy_usage > 4 * light_usage > 0
    _remove(winpod, "heavy", "light")


@pytest.fixture
def half_processor_handler(winpod: Winpod) -> Iterator[None]:
    """Configure a handler with half a processor and a fifth of the default weight."""
    winpod.end_runtime()
    config = winpod.home / ".config/winpod/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        f"""
        [handlers.{HALF}]
        isolation = "hypervisor"
        [handlers.{HALF}.annotations]
        "{PROCESSOR}.count" = "1"
        "{PROCESSOR}.limit" = "50000"
        "{PROCESSOR}.weight" = "20"
        """
    )
    yield
    winpod.end_runtime()
    config.unlink()


@pytest.mark.usefixtures("half_processor_handler")
def test_pod_annotations_override_limits_of_handler(winpod: Winpod) -> None:
    assert winpod("ps").returncode == 0
    own = {f"{PROCESSOR}.limit": "25000"}
    for handler, annotations, quota, weight in (
        ("runhcs-wcow-hypervisor", {}, None, 100),
        (HALF, {}, 0.5, 20),
        (HALF, own, 0.25, 20),
    ):
        config = sandbox_config("limited", annotations=annotations)
        request = api.RunPodSandboxRequest(config=config, runtime_handler=handler)
        sandbox = call(winpod, request).pod_sandbox_id
        (pid,) = machines(winpod)
        assert Cgroup(pid).quota == quota
        assert Cgroup(pid).weight == pytest.approx(weight, rel=0.05)
        call(winpod, api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

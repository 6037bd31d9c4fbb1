"""How large a pod's microVM is: named, reserved, raised while it runs; its own kernel tells."""

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
GROUPS = Path("/sys/fs/cgroup")
MEASURED = 8.0
LARGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def _start(winpod: Winpod, image: str, name: str, *options: str) -> None:
    isolated = ("-d", "--name", name, "--isolation", "hypervisor", *options)
    ran = winpod("run", *isolated, image, "cmd", "/c", WAITS)
    assert ran.returncode == 0, ran.stderr
    until_said(winpod, name, "up")


def _size(winpod: Winpod, name: str) -> tuple[int, int]:
    """Mebibytes and processors, as its kernel counts them."""
    line = r"type \\?\unix\proc\meminfo & type \\?\unix\proc\cpuinfo"
    said = winpod("exec", name, "cmd", "/c", line).stdout
    return int(re.findall(r"MemTotal: +(\d+) kB", said)[0]) >> 10, said.count("processor\t:")


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def _held(pid: int) -> tuple[int, int]:
    """Bytes that are there and stay: in all, and those of them in large pages."""
    mapped = Path(f"/proc/{pid}/smaps").read_text()

    def total(kind: str) -> int:
        return sum(int(kib) << 10 for kib in re.findall(rf"^{kind}: +(\d+) kB", mapped, re.M))

    large = total("Shared_Hugetlb") + total("Private_Hugetlb")
    return total("Locked") + large, large


@pytest.fixture
def large_pages() -> Iterator[None]:
    """As many as a pod of 1280 MiB needs beside those that it was cloned with."""
    before = LARGE_PAGES.read_text()
    try:
        eventually(lambda: _have_large_pages(384), lambda have: have == 384, within=120)
        yield
    finally:
        LARGE_PAGES.write_text(before)


def _have_large_pages(wanted: int) -> int:
    """How many there are: memory that is in pieces is put together a little at each try."""
    LARGE_PAGES.write_text(str(wanted))
    return int(LARGE_PAGES.read_text())


def _remove(winpod: Winpod, *names: str) -> None:
    assert winpod("rm", "-f", *names).returncode == 0
    assert machines(winpod) == []


def test_a_running_pod_is_given_more_memory_and_processors(winpod: Winpod, image: str) -> None:
    one = ("--annotation", f"{TOPOLOGY}.processor.count=1", "--memory", "256m")
    _start(winpod, image, "grows", *one)
    memory, processors = _size(winpod, "grows")
    assert 800 < memory < 1024
    assert processors == 1
    raised = winpod("update", "--memory", "2g", "--cpus", "2", "grows")
    assert raised.returncode == 0, raised.stderr
    memory, processors = _size(winpod, "grows")
    assert 2048 < memory < 2304
    assert _resident(machines(winpod)[0]) < 1024 * MIB, "it is the guest's when it is used"
    assert processors == min(2, len(os.sched_getaffinity(0)))
    refused = winpod("update", "--memory", "4000g", "grows")
    assert refused.returncode != 0
    assert "the pod's microVM would need" in refused.stderr
    assert _size(winpod, "grows") == (memory, processors)
    _check_resize_of_the_pod(winpod, "grows")
    _remove(winpod, "grows")


@pytest.mark.alone
def test_a_limit_beyond_the_machine_makes_a_guest_as_large_as_the_machine(
    winpod: Winpod, image: str
) -> None:
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    _start(winpod, image, "large", "--memory", f"{2 * here}m")
    assert here * 0.9 < _size(winpod, "large")[0] <= here
    _remove(winpod, "large")


def _check_resize_of_the_pod(winpod: Winpod, name: str) -> None:
    """Up and down again, after a restart of the runtime too."""
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
@pytest.mark.usefixtures("large_pages")
def test_reserved_memory_is_the_pods_from_the_start_and_is_never_paged_out(
    winpod: Winpod, image: str
) -> None:
    named = f"{TOPOLOGY}.memory.sizeinmb=1280"
    _start(winpod, image, "keeps", "--annotation", f"{FULLY_BACKED}=true", "--annotation", named)
    memory, _ = _size(winpod, "keeps")
    assert 1100 < memory <= 1280
    (pid,) = machines(winpod)
    held, large = _held(pid)
    assert held >= 1280 * MIB
    assert large == 768 * MIB
    raised = winpod("update", "--memory", "1500m", "keeps")
    assert raised.returncode == 0, raised.stderr
    assert _size(winpod, "keeps")[0] > 1500
    assert _held(pid)[0] >= 1500 * MIB
    _remove(winpod, "keeps")


class Group:
    """The control group that a pod's QEMU is in, by either layout of the kernel."""

    def __init__(self, pid: int) -> None:
        rows = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
        self._of = {name: path for _, names, path in rows for name in names.split(",")}
        self._unified = (GROUPS / "cgroup.controllers").exists()

    def _read(self, controller: str, file: str) -> str:
        place = "" if self._unified else controller
        path = self._of["" if self._unified else controller]
        return (GROUPS / place / path.lstrip("/") / file).read_text()

    @property
    def quota(self) -> float | None:
        """Of one processor's time."""
        if self._unified:
            quota, period = self._read("", "cpu.max").split()
            return None if quota == "max" else int(quota) / int(period)
        microseconds = int(self._read("cpu", "cpu.cfs_quota_us"))
        period = self._read("cpu", "cpu.cfs_period_us")
        return None if microseconds < 0 else microseconds / int(period)

    @property
    def weight(self) -> int:
        """100 is ordinary."""
        if self._unified:
            return (2 + (int(self._read("", "cpu.weight")) - 1) * 262142 // 9999) * 100 // 1024
        return int(self._read("cpu", "cpu.shares")) * 100 // 1024

    @property
    def used_seconds(self) -> float:
        if self._unified:
            return self._stat()["usage_usec"] / 1e6
        return int(self._read("cpuacct", "cpuacct.usage")) / 1e9

    @property
    def held(self) -> int:
        """Periods in which it had to wait for the next."""
        return self._stat()["nr_throttled"]

    def _stat(self) -> dict[str, int]:
        rows = (line.split() for line in self._read("cpu", "cpu.stat").splitlines())
        return {name: int(number) for name, number in rows}


def _keep_busy(winpod: Winpod, image: str, name: str, *asked: str) -> int:
    """A program that takes all of one processor that it can get, in a microVM; QEMU's pid."""
    before = machines(winpod)
    options = [word for one in asked for word in ("--annotation", f"{PROCESSOR}.{one}")]
    program = windows_programs.go_program(name="load")
    mounted = ("-v", f"{program}:C:\\load.exe:ro")
    isolated = ("-d", "--name", name, "--isolation", "hypervisor", *mounted, *options)
    ran = winpod("run", *isolated, image, "C:\\load.exe", "1")
    assert ran.returncode == 0, ran.stderr
    until_said(winpod, name, "holding")
    (pid,) = set(machines(winpod)) - set(before)
    return pid


def _measure(group: Group) -> tuple[float, int]:
    """How much of one processor it uses, and in how many periods it was held."""
    began, used, held = time.monotonic(), group.used_seconds, group.held
    time.sleep(MEASURED)
    share = (group.used_seconds - used) / (time.monotonic() - began)
    return share, group.held - held


def test_a_pod_uses_no_more_of_the_processors_than_its_limit(winpod: Winpod, image: str) -> None:
    group = Group(_keep_busy(winpod, image, "limited", "count=1", "limit=50000", "weight=300"))
    assert group.quota == 0.5
    assert group.weight == pytest.approx(300, rel=0.05)
    share, held = _measure(group)
    assert held > 0, "it would take more"
    assert 0.1 < share < 0.6
    raised = winpod("update", "--cpus", "2", "limited")
    assert raised.returncode == 0, raised.stderr
    assert group.quota == 0.5 * min(2, len(os.sched_getaffinity(0))), "half of each processor"
    _remove(winpod, "limited")


def test_pods_that_want_the_same_processor_share_it_by_their_weights(
    winpod: Winpod, image: str
) -> None:
    heavy = _keep_busy(winpod, image, "heavy", "count=1", "weight=800")
    light = _keep_busy(winpod, image, "light", "count=1", "weight=100")
    one = {min(os.sched_getaffinity(0))}
    for pid in (heavy, light):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), one)
    groups = [Group(heavy), Group(light)]
    before = [group.used_seconds for group in groups]
    time.sleep(MEASURED)
    more, less = (group.used_seconds - used for group, used in zip(groups, before, strict=True))
    assert more > 4 * less > 0
    _remove(winpod, "heavy", "light")


@pytest.fixture
def with_handler(winpod: Winpod) -> Iterator[None]:
    """One of half of one processor, and of a fifth of the ordinary weight."""
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


@pytest.mark.usefixtures("with_handler")
def test_a_handler_limits_its_pods_and_a_pod_may_say_otherwise(winpod: Winpod) -> None:
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
        assert Group(pid).quota == quota
        assert Group(pid).weight == pytest.approx(weight, rel=0.05)
        call(winpod, api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

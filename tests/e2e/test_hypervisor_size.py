"""How large a pod's microVM is: named, reserved, raised while it runs; its own kernel tells."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command_line import Winpod
from tests.e2e.microvms import WAITS, call, image, machines, until_said, winpod
from tests.e2e.waiting import eventually

from winpod.cri.proto import api_pb2 as api

__all__ = ["image", "winpod"]

MIB = 1 << 20
TOPOLOGY = "io.microsoft.virtualmachine.computetopology"
FULLY_BACKED = "io.microsoft.virtualmachine.fullyphysicallybacked"
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


def _remove(winpod: Winpod, name: str) -> None:
    assert winpod("rm", "-f", name).returncode == 0
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

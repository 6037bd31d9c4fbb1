"""Usage of a node that has the whole machine, or shares it."""

from dataclasses import replace
from pathlib import Path

from tests.support.known_objects import node_config_in
from winpod.kubelet.stats import NodeUsageReader, ResourceUsage, host_memory

GIB = 1 << 30


def test_whole_machine_node_reports_host_counters(tmp_path: Path) -> None:
    node_config = replace(node_config_in(tmp_path), memory_bytes=host_memory())
    used = NodeUsageReader(node_config).read({})
    assert used.cpu_nanoseconds > 10**9
    assert 0 < used.working_set_bytes < host_memory()


def test_shared_node_reports_pods_and_share_of_agent(tmp_path: Path) -> None:
    node_config = replace(node_config_in(tmp_path), memory_bytes=host_memory(), nodes_here=2)
    usage = NodeUsageReader(node_config)
    idle = usage.read({})
    assert idle.cpu_nanoseconds > 0
    assert 0 < idle.working_set_bytes < GIB
    busy = usage.read({"a": ResourceUsage(0, cpu_nanoseconds=10**12, working_set_bytes=GIB)})
    assert busy.cpu_nanoseconds >= 10**12 + idle.cpu_nanoseconds
    assert busy.working_set_bytes > GIB


def test_cpu_time_of_removed_pod_stays_in_total(tmp_path: Path) -> None:
    usage = NodeUsageReader(replace(node_config_in(tmp_path), memory_bytes=GIB))
    with_pod = usage.read({"a": ResourceUsage(0, cpu_nanoseconds=10**12)})
    assert usage.read({}).cpu_nanoseconds >= with_pod.cpu_nanoseconds

"""What a node says that it uses, alone on its machine and beside others."""

from dataclasses import replace
from pathlib import Path

from tests.node.known_objects import facts_in
from winpod.node.usage import NodeUsage, Used, machine_memory

GIB = 1 << 30


def test_a_node_that_has_the_whole_machine_tells_the_machines_counts(tmp_path: Path) -> None:
    facts = replace(facts_in(tmp_path), memory_bytes=machine_memory())
    used = NodeUsage(facts).read({})
    assert used.cpu_nanoseconds > 10**9
    assert 0 < used.working_set_bytes < machine_memory()


def test_a_node_beside_others_tells_of_its_pods_and_its_part_of_the_agent(tmp_path: Path) -> None:
    facts = replace(facts_in(tmp_path), memory_bytes=machine_memory(), nodes_here=2)
    usage = NodeUsage(facts)
    idle = usage.read({})
    assert idle.cpu_nanoseconds > 0
    assert 0 < idle.working_set_bytes < GIB
    busy = usage.read({"a": Used(0, cpu_nanoseconds=10**12, working_set_bytes=GIB)})
    assert busy.cpu_nanoseconds >= 10**12 + idle.cpu_nanoseconds
    assert busy.working_set_bytes > GIB


def test_the_cpu_time_of_a_pod_that_is_gone_stays_in_the_sum(tmp_path: Path) -> None:
    usage = NodeUsage(replace(facts_in(tmp_path), memory_bytes=GIB))
    with_pod = usage.read({"a": Used(0, cpu_nanoseconds=10**12)})
    assert usage.read({}).cpu_nanoseconds >= with_pod.cpu_nanoseconds

"""What people write about nodes: options, and files of many."""

from decimal import Decimal
from pathlib import Path

import pytest

from winpod.node.facts import Share
from winpod.node.settings import (
    SIMULATED_MACHINE,
    NodeSettings,
    parse_label,
    parse_share,
    parse_taint,
    parts_of,
    read_nodes,
    this_machine,
)
from winpod.windows.builds import parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Taint

COMMON = NodeSettings("common", build=parse_build("2022"), labels={"rack": "7"})


def test_taints_labels_and_shares_are_written_as_for_a_kubelet() -> None:
    assert parse_taint("os=windows:NoSchedule") == Taint("os", "windows", "NoSchedule")
    assert parse_taint("drained:NoExecute") == Taint("drained", "", "NoExecute")
    assert parse_label("a/b=c=d") == ("a/b", "c=d")
    assert parse_share("cpu=500m,memory=1Gi") == Share(Decimal("0.5"), 1 << 30)


@pytest.mark.parametrize("text", ["", "os", "os=windows", "=x:NoSchedule", "os=windows:Never"])
def test_what_is_no_taint_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no taint"):
        parse_taint(text)


@pytest.mark.parametrize("text", ["cpu", "gpu=1", "cpu=-1", "memory=much"])
def test_what_cannot_be_reserved_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_share(text)


def test_a_file_names_nodes_and_how_many_are_alike(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes:\n"
        "- {name: win-2019, build: '2019', kubeconfig: /a, labels: {zone: a},\n"
        "   taints: ['dedicated:NoExecute']}\n"
        "- {name: many, count: 3, simulated: true, cpus: 4, memory: 16Gi, max_pods: 20}\n"
    )
    first, *many = read_nodes(file, COMMON)
    assert (first.name, str(first.build)) == ("win-2019", "10.0.17763")
    assert first.kubeconfig == Path("/a")
    assert first.labels == {"rack": "7", "zone": "a"}
    assert first.taints == (Taint("dedicated", "", "NoExecute"),)
    assert [node.name for node in many] == ["many-0", "many-1", "many-2"]
    assert {node.build for node in many} == {COMMON.build}
    part = parts_of([first, *many], tmp_path)["many-0"]
    logs = tmp_path / "logs"
    facts = many[0].facts(tmp_path, logs, ["process"], part, "10.0.0.1", "10.1.0.0/24")
    capacity = facts.capacity()
    assert (capacity["cpu"], capacity["memory"]) == (Decimal(4), Decimal(16 << 30))
    assert facts.max_pods == 20
    assert facts.disk_bytes == SIMULATED_MACHINE.disk_bytes
    assert (facts.internal_ip, facts.pod_cidr) == ("10.0.0.1", "10.1.0.0/24")
    assert facts.is_simulated


def test_real_nodes_of_a_file_split_the_machine_and_simulated_ones_take_none_of_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes: [{name: a}, {name: b, memory: 1Gi}, {name: scale, count: 5, simulated: true}]"
    )
    nodes = read_nodes(file, COMMON)
    parts = parts_of(nodes, tmp_path)
    machine = this_machine(tmp_path)
    assert parts["a"].share.cpus + parts["b"].share.cpus == machine.cpus
    assert parts["b"].share.memory_bytes == 1 << 30
    left = machine.memory_bytes - (1 << 30) - parts["a"].share.memory_bytes
    assert 0 <= left < 1024
    assert parts["scale-4"].share == SIMULATED_MACHINE
    facts = nodes[0].facts(tmp_path, tmp_path / "logs", [], parts["a"])
    assert facts.cpus == machine.cpus
    assert facts.capacity()["cpu"] == machine.cpus / 2


@pytest.mark.parametrize(
    "text",
    [
        "nodes: []",
        "[",
        "nodes: [{build: '2019'}]",
        "nodes: [{name: a, size: 3}]",
        "nodes: [{name: a, build: 2019}]",
        "nodes: [{name: a}, {name: a}]",
        "hosts: []",
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"nodes\.yaml"):
        read_nodes(file, COMMON)

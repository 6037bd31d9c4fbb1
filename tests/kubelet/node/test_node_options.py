"""Node options and node files."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from winpod.config import Config
from winpod.errors import InvalidInput
from winpod.kubelet.node.node_options import (
    SIMULATED_MACHINE,
    ConnectionOptions,
    NodeOptions,
    NodeSetup,
    ReservationOptions,
    parse_capacity,
    parse_label,
    parse_taint,
    read_nodes,
    split_among_nodes,
)
from winpod.kubelet.node_config import Capacity, CapacityShare, machine_capacity
from winpod.placement.model import Taint
from winpod.windows.builds import parse_build

COMMON = NodeSetup(
    Config(Path("/nonexistent"), parse_build("2022")),
    ConnectionOptions(Path("/kubeconfig")),
    NodeOptions("common", label=["rack=7"]),
)


def common_in(root: Path) -> NodeSetup:
    return replace(COMMON, config=replace(COMMON.config, root=root))


@pytest.mark.parametrize(
    ("given", "taints"),
    [
        (None, ["os=windows:NoSchedule"]),
        ([""], []),
        (["new:NoExecute", "a=b:NoSchedule"], ["new:NoExecute", "a=b:NoSchedule"]),
    ],
    ids=["default", "none", "two"],
)
def test_register_taint_replaces_the_default_taint(
    given: list[str] | None, taints: list[str]
) -> None:
    setup = replace(COMMON, node=NodeOptions("win-1", register_taint=given))
    assert [str(taint) for taint in setup.taints] == taints


def test_osversion_labels_yield_to_labels_of_the_node() -> None:
    options = NodeOptions("win-1", osversion_labels=True, label=["a=b"])
    share = CapacityShare(Capacity(), 1)
    config = replace(COMMON, node=options).node_config(["runhcs-wcow-hypervisor"], share)
    assert config.labels == {
        "beta.kubernetes.io/osversion": "10.0.20348",
        "capability.microsoft.com/isolation": "hyperv",
        "a": "b",
    }
    options = replace(options, label=["capability.microsoft.com/isolation=none"])
    config = replace(COMMON, node=options).node_config(["runhcs-wcow-hypervisor"], share)
    assert config.labels["capability.microsoft.com/isolation"] == "none"


def test_reservations_and_thresholds_are_parsed() -> None:
    options = ReservationOptions(
        system_reserved="cpu=500m", eviction_hard="memory.available<10%", image_age="1h30m"
    )
    share = CapacityShare(Capacity(Decimal(4), 1000, 0), 4)
    config = replace(COMMON, reservations=options).node_config([], share)
    assert config.reserved.system == Capacity(Decimal("0.5"))
    assert config.reserved.eviction.memory_bytes == 100
    assert config.thresholds.image_age == timedelta(minutes=90)


def test_taints_labels_and_reservations_use_kubelet_syntax() -> None:
    assert parse_taint("os=windows:NoSchedule") == Taint("os", "windows", "NoSchedule")
    assert parse_taint("drained:NoExecute") == Taint("drained", "", "NoExecute")
    assert parse_label("a/b=c=d") == ("a/b", "c=d")
    assert parse_capacity("cpu=500m,memory=1Gi") == Capacity(Decimal("0.5"), 1 << 30)


@pytest.mark.parametrize("text", ["", "os", "os=windows", "=x:NoSchedule", "os=windows:Never"])
def test_invalid_taint_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a valid taint"):
        parse_taint(text)


@pytest.mark.parametrize("text", ["cpu", "gpu=1", "cpu=-1", "memory=much"])
def test_unknown_reserved_resource_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_capacity(text)


def test_node_file_lists_nodes_with_counts(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes:\n"
        "- {name: win-2019, build: '2019', kubeconfig: /a, labels: {zone: a},\n"
        "   taints: ['dedicated:NoExecute']}\n"
        "- {name: many, count: 3, simulated: true, cpus: 4, memory: 16Gi, max_pods: 20}\n"
    )
    first, *many = read_nodes(file, common_in(tmp_path))
    assert (first.name, str(first.build)) == ("win-2019", "10.0.17763")
    assert first.connection.kubeconfig == Path("/a")
    assert first.labels == {"rack": "7", "zone": "a"}
    assert first.taints == (Taint("dedicated", "", "NoExecute"),)
    assert [node.name for node in many] == ["many-0", "many-1", "many-2"]
    assert {node.build for node in many} == {COMMON.build}
    part = split_among_nodes([first, *many])["many-0"]
    node_config = many[0].node_config(["process"], part, "10.0.0.1", "10.1.0.0/24")
    capacity = node_config.capacity()
    assert (capacity["cpu"], capacity["memory"]) == (Decimal(4), Decimal(16 << 30))
    assert node_config.max_pods == 20
    assert node_config.disk_bytes == SIMULATED_MACHINE.disk_bytes
    assert (node_config.internal_ip, node_config.pod_cidr) == ("10.0.0.1", "10.1.0.0/24")
    assert node_config.is_simulated


def test_real_nodes_split_machine_and_simulated_nodes_do_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes: [{name: a}, {name: b, memory: 1Gi}, {name: scale, count: 5, simulated: true}]"
    )
    nodes = read_nodes(file, common_in(tmp_path))
    parts = split_among_nodes(nodes)
    machine = machine_capacity(tmp_path)
    assert parts["a"].share.cpus + parts["b"].share.cpus == machine.cpus
    assert parts["b"].share.memory_bytes == 1 << 30
    left = machine.memory_bytes - (1 << 30) - parts["a"].share.memory_bytes
    assert 0 <= left < 1024
    assert parts["scale-4"].share == SIMULATED_MACHINE
    node_config = nodes[0].node_config([], parts["a"])
    assert node_config.cpus == machine.cpus
    assert node_config.capacity()["cpu"] == machine.cpus / 2


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
def test_invalid_node_file_is_rejected_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"nodes\.yaml"):
        read_nodes(file, COMMON)

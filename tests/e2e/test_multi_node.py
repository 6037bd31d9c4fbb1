"""`winpod node --nodes`: two Windows nodes with Wine in one process split the machine."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.e2e.node_process import NodeProcess, is_ready, node, process_of_nodes
from tests.support.e2e.objects import BUILD_2019, BUILD_2022
from tests.support.e2e.windows_cluster import (
    PEER,
    PORT,
    WindowsCluster,
    remove_sandboxes,
    windows_spec,
)

from winpod.images.base.builder import Base
from winpod.kubelet.node_config import machine_capacity
from winpod.quantities import parse_quantity

BUILDS = {"pair-2019": "2019", "pair-2022": "2022"}
NAMESPACE = "pair"


@pytest.fixture
def pair(cluster: WindowsCluster, base: Base, tmp_path: Path) -> Iterator[NodeProcess]:
    """Run both nodes on the machine of the control plane."""
    plane, machine = cluster.plane, cluster.machines["control"]
    process = process_of_nodes(plane, machine, tmp_path, base, BUILDS)
    with process:
        try:
            for name in BUILDS:
                cluster.until(f"{name} is ready", partial(is_ready, plane, name))
            yield process
        finally:
            cluster.delete_pods(NAMESPACE)
            for name in BUILDS:
                remove_sandboxes(tmp_path / f"root/nodes/{name}/cri.sock")
    for name in BUILDS:
        plane.request("DELETE", f"/api/v1/nodes/{name}")


def test_nodes_of_one_process_run_their_builds_and_split_the_capacity(
    cluster: WindowsCluster, pair: NodeProcess, tmp_path: Path
) -> None:
    cluster.plane.create_namespace(NAMESPACE)
    listening = {"readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}}
    for name in BUILDS:
        cluster.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": windows_spec(cluster.image, node=name, container=listening),
            }
        )
    cluster.until_ready(NAMESPACE, *BUILDS)
    versions = {name: cluster.exec(NAMESPACE, name, "cmd", "/c", "ver") for name in BUILDS}
    assert BUILD_2019 in versions["pair-2019"]
    assert BUILD_2022 in versions["pair-2022"]
    client, server = (cluster.address(NAMESPACE, name) for name in BUILDS)
    answer = cluster.exec(NAMESPACE, "pair-2019", PEER, "ask", f"http://{server}:{PORT}")
    assert f"heard {client}" in answer
    machine = machine_capacity(tmp_path)
    capacities = [node(cluster.plane, name)["status"]["capacity"] for name in BUILDS]
    assert sum(amount(capacity["cpu"]) for capacity in capacities) == machine.cpus
    assert (
        0
        <= machine.memory_bytes - sum(amount(capacity["memory"]) for capacity in capacities)
        < 1 << 20
    )
    assert capacities[0] == capacities[1]
    assert pair.pid


def amount(text: str) -> int | float:
    found = parse_quantity(text)
    assert found is not None
    return float(found)

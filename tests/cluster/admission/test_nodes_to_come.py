"""Pods that wait for a node to come, and pods that no node to come would help."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.cluster.admission.test_deciding import (
    B2019,
    B2022,
    B2025,
    BUILD,
    C2019,
    C2022,
    C2025,
    CLASSES,
    LINUX,
    NODES,
    OS,
    decided,
    image,
    patched,
    pod,
    windows_node,
)
from winpod.cluster.admission.choosing import Circumstances
from winpod.cluster.admission.deciding import Decision, Fate, decide_template
from winpod.cluster.settings import Settings
from winpod.windows.objects import RuntimeClass
from winpod.windows.placement import Cluster

HOST = "kubernetes.io/hostname"
N22 = windows_node("n22", B2022)
BARE = (
    LINUX,
    windows_node("n19", B2019),
    replace(N22, labels=(*N22.labels, (HOST, "host-22"))),
)


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return {"affinity": {"nodeAffinity": required}}


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}


def on(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [*names]}]}


@pytest.mark.parametrize(
    "spec",
    [
        affine(on("n22")),
        affine(on("n22"), on("linux")),
        {"nodeName": "n22"},
        {"nodeSelector": {HOST: "host-22"}},
        affine(wants(HOST, "In", "host-22")),
        affine(wants(BUILD, "In", B2022)),
        affine(wants(BUILD, "NotIn", B2019)),
        affine(on("n22") | wants("pool", "In", "a")),
    ],
)
def test_a_pod_that_chooses_nodes_where_it_cannot_start_waits_for_no_other(
    spec: dict[str, Any],
) -> None:
    tolerating: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}
    for more in ({}, tolerating):
        decision = decided(pod(**spec, **more), image("2019"), nodes=BARE, classes=(C2019, C2022))
        assert decision.patches == ()
        assert decision.fate is Fate.CANNOT_RUN
        assert "no node can run this pod" in decision.refusal


@pytest.mark.parametrize(
    "spec",
    [
        affine(on("n25")),
        affine(on("n22", "n25")),
        affine(on("n22"), on("n25")),
        {"nodeName": "n25"},
        {"nodeSelector": {HOST: "n25"}},
        affine(wants(BUILD, "In", B2022, B2025)),
        affine(wants(BUILD, "Exists")),
        affine(wants(OS, "In", "linux", "windows")),
        affine(wants("pool", "In", "scaled-down")),
        affine(wants("pool", "Exists")),
        affine(wants("pool", "NotIn", "a")),
        affine(wants("disks", "Gt", "3")),
        affine(wants("disks", "Lt", "3")),
    ],
)
def test_a_pod_that_a_node_to_come_would_run_waits_for_it(spec: dict[str, Any]) -> None:
    decision = decided(pod(**spec), image("2025"), nodes=BARE, classes=(*CLASSES, C2025))
    assert patched(decision) == {"/spec/runtimeClassName": "windows-2025"}
    assert decision.fate is Fate.WAITS
    assert "a node that is not there" in decision.warnings[0]


class TestDaemonSets:
    TOLERATING: ClassVar[dict[str, Any]] = {"tolerations": [{"operator": "Exists"}]}

    def decided(self, *platforms: str, classes: tuple[RuntimeClass, ...], **spec: Any) -> Decision:
        obj = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "d"},
            "spec": {"template": pod(nodeSelector={OS: "windows"}, **self.TOLERATING, **spec)},
        }
        looked = {"app:1": image(*platforms)}
        met = Circumstances(Cluster(NODES, classes), Settings(), {})
        return decide_template(obj, met, looked)

    def test_are_told_on_which_nodes_their_pods_cannot_start(self) -> None:
        decision = self.decided("2019", classes=(C2019, C2022))
        assert decision.fate is Fate.MAY_FAIL
        assert "win-2022: app:1" in decision.warnings[0]
        assert "win-2019" not in decision.warnings[0]
        assert "refused" not in decision.warnings[0]

    def test_are_told_nothing_where_each_of_their_pods_gets_a_class_that_runs_it(self) -> None:
        assert self.decided("2019", classes=CLASSES) == Decision(Fate.RUNS)

    def test_that_run_nowhere_are_told_so(self) -> None:
        decision = self.decided("2025", classes=CLASSES)
        assert "pods of this DaemonSet will be refused" in decision.warnings[0]

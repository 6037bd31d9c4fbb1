"""Tests of pods that wait for future nodes."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.support.admission_reviews import (
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
from winpod.operator.admission.class_selection import SelectionContext
from winpod.operator.admission.review import ReviewDecision, ReviewOutcome, review_template
from winpod.operator.settings import OperatorSettings
from winpod.placement.evaluator import Cluster
from winpod.placement.model import RuntimeClass

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
def test_pod_that_selects_unsuitable_existing_nodes_does_not_wait(
    spec: dict[str, Any],
) -> None:
    tolerating: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}
    for more in ({}, tolerating):
        decision = decided(pod(**spec, **more), image("2019"), nodes=BARE, classes=(C2019, C2022))
        assert decision.patches == ()
        assert decision.outcome is ReviewOutcome.CANNOT_RUN
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
def test_pod_waits_for_a_future_node_that_could_run_it(spec: dict[str, Any]) -> None:
    decision = decided(pod(**spec), image("2025"), nodes=BARE, classes=(*CLASSES, C2025))
    assert patched(decision) == {"/spec/runtimeClassName": "windows-2025"}
    assert decision.outcome is ReviewOutcome.WAITS
    assert "a node that does not exist yet" in decision.warnings[0]


class TestDaemonSets:
    TOLERATING: ClassVar[dict[str, Any]] = {"tolerations": [{"operator": "Exists"}]}

    def decided(
        self, *platforms: str, classes: tuple[RuntimeClass, ...], **spec: Any
    ) -> ReviewDecision:
        obj = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "d"},
            "spec": {"template": pod(nodeSelector={OS: "windows"}, **self.TOLERATING, **spec)},
        }
        looked = {"app:1": image(*platforms)}
        met = SelectionContext(Cluster(NODES, classes), OperatorSettings(), {})
        return review_template(obj, met, looked)

    def test_warning_lists_nodes_where_pods_cannot_start(self) -> None:
        decision = self.decided("2019", classes=(C2019, C2022))
        assert decision.outcome is ReviewOutcome.MAY_FAIL
        assert "win-2022: app:1" in decision.warnings[0]
        assert "win-2019" not in decision.warnings[0]
        assert "refused" not in decision.warnings[0]

    def test_no_warning_if_each_pod_gets_a_suitable_class(self) -> None:
        assert self.decided("2019", classes=CLASSES) == ReviewDecision(ReviewOutcome.RUNS)

    def test_warning_if_no_node_can_run_them(self) -> None:
        decision = self.decided("2025", classes=CLASSES)
        assert "pods of this DaemonSet will be rejected" in decision.warnings[0]

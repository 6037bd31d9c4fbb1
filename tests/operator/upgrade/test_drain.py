"""Tests of draining nodes, and of concurrent changes by users."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.upgrade_clusters import (
    B2019,
    BOTH,
    OF_WINDOWS,
    UPGRADE,
    WIN_2022,
    node,
    workload,
)
from winpod.operator.upgrade.drain import (
    WorkloadsLeftBehind,
    node_changed,
    select_parallel_drains,
    unplanned_steps,
)
from winpod.operator.upgrade.moves import MoveOutcome, WorkloadMove
from winpod.operator.upgrade.plan import ClusterSnapshot, UpgradePlan, plan_upgrade
from winpod.operator.upgrade.resource import StepRecord, UpgradeStatus
from winpod.operator.upgrade.steps import build_changed, node_identity_changed
from winpod.placement.model import Node

CLOSED = node("old", B2019, unschedulable=True)
OPEN = node("old", B2019)


def looked(old: Node | None, uid: str = "1") -> tuple[ClusterSnapshot, UpgradePlan]:
    nodes = (WIN_2022,) if old is None else (WIN_2022, old)
    uids = {"new": "0"} if old is None else {"new": "0", "old": uid}
    snapshot = ClusterSnapshot(nodes, (), (workload(BOTH, **OF_WINDOWS),), uids=uids)
    return snapshot, plan_upgrade(UPGRADE, snapshot)


def taken(*states: str, uid: str = "1") -> UpgradeStatus:
    does = zip(("cordon", "drain"), states, strict=False)
    return UpgradeStatus(
        steps=[StepRecord(do, "old", state, before={"uid": uid}) for do, state in does]
    )


@pytest.mark.parametrize(
    ("says", "old", "uid", "status", "found"),
    [
        ("as planned", CLOSED, "1", taken("Done", "Running"), []),
        ("nothing is planned yet", OPEN, "1", UpgradeStatus(), ["cordon", "drain"]),
        ("steps that wait", OPEN, "1", taken("Pending", "Pending"), []),
        ("somebody opened it", OPEN, "1", taken("Done", "Running"), ["cordon"]),
        ("made again", OPEN, "2", taken("Done", "Running"), ["cordon", "drain"]),
        ("made again, cordoned", CLOSED, "2", taken("Done", "Done"), ["cordon", "drain"]),
        ("made again with the new build", node("old", "10.0.20348"), "2", taken("Done"), []),
        ("it is gone", None, "", taken("Done", "Running"), []),
    ],
)
def test_concurrent_changes_add_unplanned_steps(
    says: str, old: Node | None, uid: str, status: UpgradeStatus, found: list[str]
) -> None:
    steps = unplanned_steps(*looked(old, uid), status)
    assert [step.kind for step in steps] == found, says


@pytest.mark.parametrize(
    ("old", "uid", "expected_message"),
    [
        (CLOSED, "1", ""),
        (CLOSED, "2", "another object of the same name is not changed"),
        (node("old", "10.0.20348"), "1", "it no longer has the old build"),
        (None, "", "it is gone"),
    ],
)
def test_replaced_node_is_not_drained(old: Node | None, uid: str, expected_message: str) -> None:
    step = StepRecord("drain", "old", "Running", before={"uid": "1"})
    gone = node_changed(step, *looked(old, uid))
    assert (gone.message if gone else "").endswith(expected_message)
    assert (gone is None) == (expected_message == "")


@pytest.mark.parametrize(
    ("on", "kind", "together"),
    [
        ("elsewhere", "Deployment", ["a", "b", "c"]),
        ("a", "Deployment", ["a"]),
        ("b", "Deployment", ["a"]),
        ("c", "Deployment", ["a", "b"]),
        ("a", "DaemonSet", ["a", "b", "c"]),
    ],
)
def test_empty_nodes_are_drained_in_parallel(on: str, kind: str, together: list[str]) -> None:
    snapshot = ClusterSnapshot((), (), (workload(BOTH, kind=kind, on=on),))
    steps = [StepRecord("drain", name) for name in ("a", "b", "c")]
    assert [step.target for step in select_parallel_drains(snapshot, steps)] == together


def an_object(uid: str, build: str) -> dict[str, Any]:
    labels = {"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": build}
    return {"metadata": {"name": "old", "uid": uid, "labels": labels}, "spec": {}}


@pytest.mark.parametrize(
    ("before", "uid", "build", "back", "forward"),
    [
        ({"uid": "1"}, "1", B2019, True, True),
        ({"uid": "1"}, "1", "10.0.20348", True, False),
        ({"uid": "1"}, "2", B2019, False, False),
        ({"uid": "1"}, "2", "10.0.20348", False, False),
        ({}, "1", B2019, False, False),
        ({"uid": ""}, "1", B2019, False, False),
    ],
)
def test_node_steps_apply_only_to_the_same_node_of_the_old_build(
    before: dict[str, Any], uid: str, build: str, back: bool, forward: bool
) -> None:
    step, there = StepRecord("cordon", "old", before=before), an_object(uid, build)
    assert (node_identity_changed(step, there) is None) == back
    assert (build_changed(step, there, UPGRADE.old) is None) == forward


def test_many_staying_workloads_are_abbreviated() -> None:
    stays = workload(BOTH)
    moves = [
        WorkloadMove(
            replace(stays, name=f"web-{i}"), MoveOutcome.CANNOT, stays=True, reasons=("no build",)
        )
        for i in range(500)
    ]
    expected_message = str(WorkloadsLeftBehind("old", moves, tuple(moves)))
    assert "Deployment shop/web-0: no build; " in expected_message
    assert "and 490 more" in expected_message

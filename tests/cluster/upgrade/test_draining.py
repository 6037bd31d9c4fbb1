"""Which nodes are drained, and what has to be planned anew because people act meanwhile."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.upgrade.test_plan import (
    B2019,
    BOTH,
    OF_WINDOWS,
    UPGRADE,
    WIN_2022,
    node,
    workload,
)
from winpod.cluster.upgrade.draining import (
    LeftBehind,
    drained_together,
    not_its_node,
    unplanned_steps,
)
from winpod.cluster.upgrade.moves import Fate, Move
from winpod.cluster.upgrade.nodes import not_its, not_old
from winpod.cluster.upgrade.plan import Plan, Scene, plan_upgrade
from winpod.cluster.upgrade.resource import Status, StepRecord
from winpod.windows.objects import Node

CLOSED = node("old", B2019, unschedulable=True)
OPEN = node("old", B2019)


def looked(old: Node | None, uid: str = "1") -> tuple[Scene, Plan]:
    nodes = (WIN_2022,) if old is None else (WIN_2022, old)
    uids = {"new": "0"} if old is None else {"new": "0", "old": uid}
    scene = Scene(nodes, (), (workload(BOTH, **OF_WINDOWS),), uids=uids)
    return scene, plan_upgrade(UPGRADE, scene)


def taken(*states: str, uid: str = "1") -> Status:
    does = zip(("cordon", "drain"), states, strict=False)
    return Status(steps=[StepRecord(do, "old", state, before={"uid": uid}) for do, state in does])


@pytest.mark.parametrize(
    ("says", "old", "uid", "status", "found"),
    [
        ("as planned", CLOSED, "1", taken("Done", "Running"), []),
        ("nothing is planned yet", OPEN, "1", Status(), ["cordon", "drain"]),
        ("steps that wait", OPEN, "1", taken("Pending", "Pending"), []),
        ("somebody opened it", OPEN, "1", taken("Done", "Running"), ["cordon"]),
        ("made again", OPEN, "2", taken("Done", "Running"), ["cordon", "drain"]),
        ("made again, cordoned", CLOSED, "2", taken("Done", "Done"), ["cordon", "drain"]),
        ("made again with the new build", node("old", "10.0.20348"), "2", taken("Done"), []),
        ("it is gone", None, "", taken("Done", "Running"), []),
    ],
)
def test_what_people_did_meanwhile_is_planned_for(
    says: str, old: Node | None, uid: str, status: Status, found: list[str]
) -> None:
    steps = unplanned_steps(*looked(old, uid), status)
    assert [step.do for step in steps] == found, says


@pytest.mark.parametrize(
    ("old", "uid", "said"),
    [
        (CLOSED, "1", ""),
        (CLOSED, "2", "another of its name was made since, and is left alone"),
        (node("old", "10.0.20348"), "1", "it is no old node any more"),
        (None, "", "it is gone"),
    ],
)
def test_only_the_node_that_a_drain_was_begun_for_is_drained(
    old: Node | None, uid: str, said: str
) -> None:
    step = StepRecord("drain", "old", "Running", before={"uid": "1"})
    gone = not_its_node(step, *looked(old, uid))
    assert (gone.message if gone else "").endswith(said)
    assert (gone is None) == (said == "")


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
def test_empty_nodes_are_drained_together_and_the_others_one_by_one(
    on: str, kind: str, together: list[str]
) -> None:
    scene = Scene((), (), (workload(BOTH, kind=kind, on=on),))
    steps = [StepRecord("drain", name) for name in ("a", "b", "c")]
    assert [step.target for step in drained_together(scene, steps)] == together


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
def test_a_step_goes_back_on_its_own_node_only_and_forward_while_that_is_old(
    before: dict[str, Any], uid: str, build: str, back: bool, forward: bool
) -> None:
    step, there = StepRecord("cordon", "old", before=before), an_object(uid, build)
    assert (not_its(step, there) is None) == back
    assert (not_old(step, there, UPGRADE.old) is None) == forward


def test_of_many_who_stay_some_are_named() -> None:
    stays = workload(BOTH)
    moves = [
        Move(replace(stays, name=f"web-{i}"), Fate.CANNOT, stays=True, reasons=("no build",))
        for i in range(500)
    ]
    said = str(LeftBehind("old", moves, tuple(moves)))
    assert "Deployment shop/web-0: no build; " in said
    assert "and 490 more" in said

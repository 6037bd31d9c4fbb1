"""Tests of the progress of an upgrade, its next steps and its report."""

from datetime import UTC, datetime

import msgspec
import pytest

from winpod.k8s.objects import ObjectMeta
from winpod.labels import UPGRADE_FINALIZER
from winpod.operator.upgrade.moves import MoveOutcome, UpgradeWorkload, WorkloadMove
from winpod.operator.upgrade.plan import UpgradePlan, UpgradeStep, UpgradeStepKind
from winpod.operator.upgrade.progress import (
    MAX_STATUS_BYTES,
    blockers,
    drained_uid,
    expected_size,
    first_few,
    is_finished,
    is_settled,
    is_undone_on_failure,
    max_ready,
    must_undo,
    next_steps,
    next_to_undo,
    node_states,
    planned_status,
    summary,
    with_conditions,
    with_steps_before,
)
from winpod.operator.upgrade.report import to_json, to_markdown
from winpod.operator.upgrade.resource import (
    CRD,
    NodeRecord,
    StepRecord,
    UpgradeStatus,
    WindowsUpgrade,
    WorkloadRecord,
)
from winpod.operator.upgrade.spec import read_spec
from winpod.placement.model import Pod

SPEC = {"from": "2019", "to": "2022"}
ORDER = ("add-class", "retire-class", "patch-workload", "cordon", "drain", "verify", "remove-node")
NOON, LATER = (datetime(2026, 11, 16, hour, tzinfo=UTC) for hour in (12, 13))


def steps(*states: str) -> list[StepRecord]:
    return [StepRecord(do, f"{do}-x", state) for do, state in zip(ORDER, states, strict=False)]


def test_next_step_is_the_first_unfinished_and_failed_ones_are_skipped() -> None:
    (step,) = next_steps(UpgradeStatus(steps=steps("Done", "Running", "Pending")))
    assert step == StepRecord("retire-class", "retire-class-x", "Running")
    (step,) = next_steps(UpgradeStatus(steps=steps("Done", "Failed", "Pending")))
    assert step.do == "patch-workload"
    assert next_steps(UpgradeStatus(steps=steps("Done", "Failed"))) == []


@pytest.mark.parametrize("do", list(UpgradeStepKind))
def test_only_node_steps_run_in_parallel_up_to_a_limit(do: UpgradeStepKind) -> None:
    several = [StepRecord(do, str(i)) for i in range(120)]
    later = StepRecord(
        UpgradeStepKind.VERIFY if do != UpgradeStepKind.VERIFY else UpgradeStepKind.DRAIN, "later"
    )
    of_nodes = do in (
        UpgradeStepKind.CORDON,
        UpgradeStepKind.DRAIN,
        UpgradeStepKind.MARK_NODE,
        UpgradeStepKind.REMOVE_NODE,
    )
    assert next_steps(UpgradeStatus(steps=several)) == several[: 100 if of_nodes else 1]
    assert next_steps(UpgradeStatus(steps=[*several[:3], later])) == several[: 3 if of_nodes else 1]


def test_undo_restores_nodes_and_classes_before_workloads() -> None:
    status = UpgradeStatus(
        steps=steps("Done", "Done", "Done", "Done", "Failed", "Pending", "Pending")
    )
    undone = []
    while batch := next_to_undo(status):
        undone += [step.do for step in batch]
        for step in batch:
            step.state = "Undone"
    assert undone == ["cordon", "retire-class", "patch-workload", "add-class"]


def test_the_last_of_several_is_undone_first() -> None:
    changed = UpgradeStatus(steps=[StepRecord("change-class", name, "Done") for name in ("a", "b")])
    assert [step.target for step in next_to_undo(changed)] == ["b"]
    cordoned = UpgradeStatus(steps=[StepRecord("cordon", name, "Done") for name in ("a", "b")])
    assert [step.target for step in next_to_undo(cordoned)] == ["b", "a"]


def test_started_steps_are_undone_and_pending_ones_are_not() -> None:
    status = UpgradeStatus(steps=[StepRecord("cordon", "a", "Running"), StepRecord("cordon", "b")])
    assert [step.target for step in next_to_undo(status)] == ["a"]


def test_summary_lists_workloads_left_behind_and_failures() -> None:
    assert summary(UpgradeStatus()) == "everything has moved"
    failed = StepRecord("remove-node", "a", "Failed", "forbidden")
    left = WorkloadRecord("Deployment", "shop", "old", stays=True)
    expected_message = summary(UpgradeStatus(steps=[failed], workloads=[left]))
    assert expected_message == "left behind: Deployment shop/old; remove-node a failed: forbidden"


@pytest.mark.parametrize("do", list(UpgradeStepKind))
def test_failures_after_verification_do_not_undo(
    do: UpgradeStepKind,
) -> None:
    late = (UpgradeStepKind.MARK_NODE, UpgradeStepKind.REMOVE_NODE)
    assert is_undone_on_failure(StepRecord(do)) == (do not in late)


@pytest.mark.parametrize(
    ("phase", "undo", "settled"),
    [
        ("", False, False),
        ("Running", False, False),
        ("Blocked", False, False),
        ("Undoing", True, False),
        ("Done", False, True),
        ("Done", True, False),
        ("Undone", True, True),
        ("Undone", False, True),
    ],
)
def test_completed_upgrade_can_be_undone(phase: str, undo: bool, settled: bool) -> None:
    spec = {**SPEC, "undo": undo}
    assert is_settled(WindowsUpgrade(ObjectMeta("u"), spec, UpgradeStatus(phase))) == settled


@pytest.mark.parametrize(
    ("phase", "held", "deleted", "over"),
    [
        ("", False, False, False),
        ("", False, True, True),
        ("Blocked", False, True, True),
        ("Running", True, False, False),
        ("Running", True, True, False),
        ("Running", False, True, True),
        ("Undoing", True, True, False),
        ("Done", True, False, False),
        ("Done", False, False, True),
        ("Done", True, True, False),
        ("Undone", True, False, False),
        ("Undone", False, True, True),
    ],
)
def test_upgrade_is_finished_when_settled_without_finalizer(
    phase: str, held: bool, deleted: bool, over: bool
) -> None:
    metadata = ObjectMeta(
        "u",
        deletion_timestamp="2026-11-16T12:00:00Z" if deleted else "",
        finalizers=["other.example/x", *([UPGRADE_FINALIZER] if held else [])],
    )
    upgrade = WindowsUpgrade(metadata, SPEC, UpgradeStatus(phase))
    assert is_finished(upgrade) == over
    assert must_undo(upgrade) == deleted


def test_node_state_follows_its_last_step() -> None:
    nodes = [NodeRecord(name, "old", "in use") for name in ("a", "b", "c", "d")]
    done = [
        *(StepRecord("cordon", name, "Done") for name in ("a", "b", "c")),
        *(StepRecord("drain", "a", "Done"), StepRecord("drain", "b", "Running")),
        StepRecord("remove-node", "a", "Done"),
    ]
    states = [node.state for node in node_states(UpgradeStatus(steps=done, nodes=nodes))]
    assert states == ["removed", "draining", "cordoned", "in use"]


def test_unplanned_steps_are_inserted_before_the_current_step() -> None:
    made = steps("Done", "Done", "Done", "Done", "Running", "Pending")
    found = with_steps_before(
        made[4],
        made,
        [UpgradeStep(UpgradeStepKind.CORDON, "late"), UpgradeStep(UpgradeStepKind.DRAIN, "late")],
    )
    assert [(s.do, s.target, s.state) for s in found[4:7]] == [
        ("cordon", "late", "Pending"),
        ("drain", "late", "Pending"),
        ("drain", "drain-x", "Pending"),
    ]


def test_reverted_step_is_repeated_without_a_duplicate() -> None:
    made = [
        StepRecord("cordon", "a", "Done", before={"uid": "1", "unschedulable": True}),
        StepRecord("cordon", "b", "Done", before={"uid": "2"}),
        StepRecord("drain", "b", "Running", before={"uid": "2"}),
    ]
    found = with_steps_before(made[2], made, [UpgradeStep(UpgradeStepKind.CORDON, "a")])
    assert [(s.do, s.target, s.state, s.before) for s in found] == [
        ("cordon", "b", "Done", {"uid": "2"}),
        ("cordon", "a", "Pending", {}),
        ("drain", "b", "Pending", {"uid": "2"}),
    ]


def test_step_of_a_replaced_node_restarts_without_baseline() -> None:
    made = [StepRecord("cordon", "a", "Done"), StepRecord("drain", "a", "Running", before={"u": 1})]
    found = with_steps_before(
        made[1],
        made,
        [UpgradeStep(UpgradeStepKind.CORDON, "a"), UpgradeStep(UpgradeStepKind.DRAIN, "a")],
    )
    assert [(s.do, s.target, s.state, s.before) for s in found] == [
        ("cordon", "a", "Pending", {}),
        ("drain", "a", "Pending", {}),
    ]


def test_removed_node_is_the_drained_one() -> None:
    drained = [StepRecord("cordon", "a", before={"uid": "0"}), StepRecord("drain", "a", before={})]
    assert drained_uid(UpgradeStatus(steps=drained), "a") == ""
    drained[1].before = {"uid": "1"}
    assert drained_uid(UpgradeStatus(steps=drained), "a") == "1"
    assert drained_uid(UpgradeStatus(steps=drained), "b") == ""


def test_ready_baseline_is_the_maximum_per_workload() -> None:
    assert max_ready({"a": 2, "b": 3}, {"a": 5, "b": 1, "c": 0}) == {"a": 5, "b": 3, "c": 0}


@pytest.mark.parametrize(
    ("count", "expected_message"),
    [(0, ""), (1, "0"), (10, "0,1,2,3,4,5,6,7,8,9"), (12, "8,9 and 2 more")],
)
def test_long_lists_are_abbreviated(count: int, expected_message: str) -> None:
    assert first_few([str(i) for i in range(count)], ",").endswith(expected_message)


def large_plan(nodes: int, workloads: int) -> UpgradePlan:
    names = tuple(f"windows-node-{i:05}" for i in range(nodes))
    moves = tuple(
        WorkloadMove(
            UpgradeWorkload("Deployment", "shop", f"web-{i}", Pod(()), replicas=1),
            MoveOutcome.NEW_IMAGE,
        )
        for i in range(workloads)
    )
    does = (UpgradeStepKind.CORDON, UpgradeStepKind.DRAIN, UpgradeStepKind.MARK_NODE)
    planned = tuple(UpgradeStep(do, name) for do in does for name in names)
    return UpgradePlan(read_spec(SPEC), names, names[:10], moves, planned)


def test_final_status_size_is_estimated_at_planning() -> None:
    plan = large_plan(1000, 500)
    status = planned_status(plan)
    expected = expected_size(status)
    for step in status.steps:
        step.state = "Running"
        step.started_at = step.finished_at = "2026-11-16T12:00:00Z"
        step.before = {"uid": "0" * 36, **({"unschedulable": False} if step.do == "cordon" else {})}
    status.ready = {str(workload): 100 for workload in status.workloads}
    status.message = "everything has moved"
    status.conditions = with_conditions(status, NOON)
    real = len(msgspec.json.encode(status))
    assert real < expected < 1.2 * real
    assert expected_size(status) < 1.1 * expected


def test_too_large_upgrade_is_blocked() -> None:
    assert blockers(large_plan(1000, 500)) == []
    (expected_message,) = blockers(large_plan(3000, 500))
    assert expected_message.startswith(
        "3000 old nodes and 500 workloads are too many for one upgrade: "
    )
    assert "drain and delete some old nodes manually first" in expected_message
    assert planned_status(large_plan(3000, 500)).message == expected_message
    assert expected_size(planned_status(large_plan(1000, 500))) < MAX_STATUS_BYTES


def test_condition_keeps_its_transition_time() -> None:
    status = UpgradeStatus("Running", "begun")
    status.conditions = with_conditions(status, NOON)
    status.phase = "Done"
    status.conditions = with_conditions(status, LATER)
    since = {c.type: (c.status, c.last_transition_time) for c in status.conditions}
    assert since["Complete"] == ("True", "2026-11-16T13:00:00Z")
    assert since["Progressing"] == ("False", "2026-11-16T13:00:00Z")
    assert since["Blocked"] == ("False", "2026-11-16T12:00:00Z")


WORKLOADS = [
    WorkloadRecord("Deployment", "shop", "web", 3, "new-image", "runtimeClassName: windows-2022"),
    WorkloadRecord("Deployment", "shop", "old", 1, "cannot", "", True, ["app has no build 1"]),
]
NODES = [NodeRecord("a", "old", "drained"), NodeRecord("n", "new", "in use")]


def test_report_lists_moves_and_manual_work() -> None:
    report_text = to_markdown(
        "u", SPEC, UpgradeStatus(nodes=NODES, workloads=WORKLOADS, steps=steps("Pending"))
    )
    assert report_text.startswith("# From Windows Server 2019 to Windows Server 2022\n")
    assert "This is a plan. Nothing was changed. (u)" in report_text
    assert "- 2 workloads with 4 pods, on 1 old node; 1 new node to move to." in report_text
    assert (
        "- **Deployment shop/web**: 3 pods. Changes to runtimeClassName: windows-2022."
        in report_text
    )
    assert (
        "- **Deployment shop/old**: 1 pod. It stays where it is. App has no build 1." in report_text
    )
    assert "- Deployment shop/old stays on its old nodes" in report_text
    assert "| a | old | drained |" in report_text
    assert "| add-class | add-class-x | Pending |  |" in report_text


def test_final_report_has_duration_and_reason() -> None:
    ended = UpgradeStatus(
        *("Undone", "what was done was undone: drain a: late", "drain a: late"),
        started_at="2026-11-16T12:00:00Z",
        finished_at="2026-11-16T12:03:09Z",
    )
    report_text = to_markdown("u", SPEC, ended)
    assert "The upgrade was undone. (u)\nWhat was done was undone: drain a: late." in report_text
    assert "finished 2026-11-16T12:03:09Z: 3 min 9 s." in report_text


def test_json_report_has_a_summary() -> None:
    report_text = to_json("u", SPEC, UpgradeStatus("Running", nodes=NODES, workloads=WORKLOADS))
    assert report_text["summary"] == {"new-image": 1, "hypervisor": 0, "cannot": 1}
    assert report_text["staying"] == ["Deployment shop/old"]
    assert report_text["status"]["nodes"][0] == {"name": "a", "role": "old", "state": "drained"}


def test_new_resource_has_api_version_and_kind() -> None:
    report_text = msgspec.json.decode(msgspec.json.encode(WindowsUpgrade(ObjectMeta("u"), SPEC)))
    assert (report_text["apiVersion"], report_text["kind"]) == (
        "winpod.dev/v1alpha1",
        "WindowsUpgrade",
    )


def test_the_schema_has_every_field_of_a_status() -> None:
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    kinds = {"steps": StepRecord, "nodes": NodeRecord, "workloads": WorkloadRecord}
    status = schema["status"]["properties"]
    assert set(status) == set(UpgradeStatus.__struct_encode_fields__)
    for name, kind in kinds.items():
        assert set(status[name]["items"]["properties"]) == set(kind.__struct_encode_fields__)

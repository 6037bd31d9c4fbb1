"""How far an upgrade is, what comes next, and what people are told of it."""

from datetime import UTC, datetime

import msgspec
import pytest

from winpod.cluster.custom_resources import Metadata
from winpod.cluster.upgrade.asked import read_asked
from winpod.cluster.upgrade.moves import Fate, Move, Workload
from winpod.cluster.upgrade.plan import Do, Plan, Step
from winpod.cluster.upgrade.progress import (
    LARGEST,
    blockers,
    drained_uid,
    expected_size,
    is_over,
    is_settled,
    is_to_go_back,
    is_undone_on_failure,
    most_ready,
    next_steps,
    next_to_undo,
    node_states,
    planned_status,
    some,
    summary,
    with_conditions,
    with_steps_before,
)
from winpod.cluster.upgrade.report import to_json, to_markdown
from winpod.cluster.upgrade.resource import (
    CRD,
    FINALIZER,
    NodeRecord,
    Status,
    StepRecord,
    WindowsUpgrade,
    WorkloadRecord,
)
from winpod.windows.objects import Pod

SPEC = {"from": "2019", "to": "2022"}
ORDER = ("add-class", "retire-class", "patch-workload", "cordon", "drain", "verify", "remove-node")
NOON, LATER = (datetime(2026, 11, 16, hour, tzinfo=UTC) for hour in (12, 13))


def steps(*states: str) -> list[StepRecord]:
    return [StepRecord(do, f"{do}-x", state) for do, state in zip(ORDER, states, strict=False)]


def test_the_first_step_that_is_not_done_is_next_and_a_failed_one_is_passed_over() -> None:
    (step,) = next_steps(Status(steps=steps("Done", "Running", "Pending")))
    assert step == StepRecord("retire-class", "retire-class-x", "Running")
    (step,) = next_steps(Status(steps=steps("Done", "Failed", "Pending")))
    assert step.do == "patch-workload"
    assert next_steps(Status(steps=steps("Done", "Failed"))) == []


@pytest.mark.parametrize("do", list(Do))
def test_only_the_steps_of_nodes_are_taken_together_and_not_too_many(do: Do) -> None:
    several = [StepRecord(do, str(i)) for i in range(120)]
    later = StepRecord(Do.VERIFY if do != Do.VERIFY else Do.DRAIN, "later")
    of_nodes = do in (Do.CORDON, Do.DRAIN, Do.MARK_NODE, Do.REMOVE_NODE)
    assert next_steps(Status(steps=several)) == several[: 100 if of_nodes else 1]
    assert next_steps(Status(steps=[*several[:3], later])) == several[: 3 if of_nodes else 1]


def test_nodes_and_classes_take_pods_again_before_workloads_are_sent_back() -> None:
    status = Status(steps=steps("Done", "Done", "Done", "Done", "Failed", "Pending", "Pending"))
    undone = []
    while batch := next_to_undo(status):
        undone += [step.do for step in batch]
        for step in batch:
            step.state = "Undone"
    assert undone == ["cordon", "retire-class", "patch-workload", "add-class"]


def test_the_last_of_several_is_undone_first() -> None:
    changed = Status(steps=[StepRecord("change-class", name, "Done") for name in ("a", "b")])
    assert [step.target for step in next_to_undo(changed)] == ["b"]
    cordoned = Status(steps=[StepRecord("cordon", name, "Done") for name in ("a", "b")])
    assert [step.target for step in next_to_undo(cordoned)] == ["b", "a"]


def test_a_step_that_was_only_begun_is_undone_and_one_that_was_not_is_left_alone() -> None:
    status = Status(steps=[StepRecord("cordon", "a", "Running"), StepRecord("cordon", "b")])
    assert [step.target for step in next_to_undo(status)] == ["a"]


def test_the_end_says_who_is_left_behind_and_what_failed() -> None:
    assert summary(Status()) == "everything has moved"
    failed = StepRecord("remove-node", "a", "Failed", "forbidden")
    left = WorkloadRecord("Deployment", "shop", "old", stays=True)
    said = summary(Status(steps=[failed], workloads=[left]))
    assert said == "left behind: Deployment shop/old; remove-node a failed: forbidden"


@pytest.mark.parametrize("do", list(Do))
def test_only_what_comes_after_everything_has_moved_is_no_reason_to_undo(do: Do) -> None:
    late = (Do.MARK_NODE, Do.REMOVE_NODE)
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
def test_what_is_done_can_still_be_undone(phase: str, undo: bool, settled: bool) -> None:
    spec = {**SPEC, "undo": undo}
    assert is_settled(WindowsUpgrade(Metadata("u"), spec, Status(phase))) == settled


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
def test_an_upgrade_is_over_when_nothing_is_left_to_do_and_nothing_holds_it(
    phase: str, held: bool, deleted: bool, over: bool
) -> None:
    metadata = Metadata(
        "u",
        deletion_timestamp="2026-11-16T12:00:00Z" if deleted else "",
        finalizers=["other.example/x", *([FINALIZER] if held else [])],
    )
    upgrade = WindowsUpgrade(metadata, SPEC, Status(phase))
    assert is_over(upgrade) == over
    assert is_to_go_back(upgrade) == deleted


def test_a_node_is_what_its_last_step_made_of_it() -> None:
    nodes = [NodeRecord(name, "old", "in use") for name in ("a", "b", "c", "d")]
    done = [
        *(StepRecord("cordon", name, "Done") for name in ("a", "b", "c")),
        *(StepRecord("drain", "a", "Done"), StepRecord("drain", "b", "Running")),
        StepRecord("remove-node", "a", "Done"),
    ]
    states = [node.state for node in node_states(Status(steps=done, nodes=nodes))]
    assert states == ["removed", "draining", "cordoned", "in use"]


def test_steps_that_were_found_later_come_before_the_one_that_found_them() -> None:
    made = steps("Done", "Done", "Done", "Done", "Running", "Pending")
    found = with_steps_before(made[4], made, [Step(Do.CORDON, "late"), Step(Do.DRAIN, "late")])
    assert [(s.do, s.target, s.state) for s in found[4:7]] == [
        ("cordon", "late", "Pending"),
        ("drain", "late", "Pending"),
        ("drain", "drain-x", "Pending"),
    ]


def test_a_step_that_somebody_took_back_is_taken_again_and_stands_there_once() -> None:
    made = [
        StepRecord("cordon", "a", "Done", before={"uid": "1", "unschedulable": True}),
        StepRecord("cordon", "b", "Done", before={"uid": "2"}),
        StepRecord("drain", "b", "Running", before={"uid": "2"}),
    ]
    found = with_steps_before(made[2], made, [Step(Do.CORDON, "a")])
    assert [(s.do, s.target, s.state, s.before) for s in found] == [
        ("cordon", "b", "Done", {"uid": "2"}),
        ("cordon", "a", "Pending", {}),
        ("drain", "b", "Pending", {"uid": "2"}),
    ]


def test_a_step_that_finds_itself_to_be_of_another_node_begins_with_nothing() -> None:
    made = [StepRecord("cordon", "a", "Done"), StepRecord("drain", "a", "Running", before={"u": 1})]
    found = with_steps_before(made[1], made, [Step(Do.CORDON, "a"), Step(Do.DRAIN, "a")])
    assert [(s.do, s.target, s.state, s.before) for s in found] == [
        ("cordon", "a", "Pending", {}),
        ("drain", "a", "Pending", {}),
    ]


def test_who_is_removed_is_who_was_drained() -> None:
    drained = [StepRecord("cordon", "a", before={"uid": "0"}), StepRecord("drain", "a", before={})]
    assert drained_uid(Status(steps=drained), "a") == ""
    drained[1].before = {"uid": "1"}
    assert drained_uid(Status(steps=drained), "a") == "1"
    assert drained_uid(Status(steps=drained), "b") == ""


def test_the_most_that_were_ready_count_for_each_workload_once() -> None:
    assert most_ready({"a": 2, "b": 3}, {"a": 5, "b": 1, "c": 0}) == {"a": 5, "b": 3, "c": 0}


@pytest.mark.parametrize(
    ("count", "said"), [(0, ""), (1, "0"), (10, "0,1,2,3,4,5,6,7,8,9"), (12, "8,9 and 2 more")]
)
def test_of_many_some_are_told_and_the_others_counted(count: int, said: str) -> None:
    assert some([str(i) for i in range(count)], ",").endswith(said)


def large_plan(nodes: int, workloads: int) -> Plan:
    names = tuple(f"windows-node-{i:05}" for i in range(nodes))
    moves = tuple(
        Move(Workload("Deployment", "shop", f"web-{i}", Pod(()), replicas=1), Fate.NEW_IMAGE)
        for i in range(workloads)
    )
    does = (Do.CORDON, Do.DRAIN, Do.MARK_NODE)
    planned = tuple(Step(do, name) for do in does for name in names)
    return Plan(read_asked(SPEC), names, names[:10], moves, planned)


def test_the_size_of_a_status_at_its_end_is_known_when_it_is_planned() -> None:
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


def test_what_an_api_server_would_not_keep_is_not_begun() -> None:
    assert blockers(large_plan(1000, 500)) == []
    (said,) = blockers(large_plan(3000, 500))
    assert said.startswith("3000 old nodes and 500 workloads are too many for one upgrade: ")
    assert "drain and delete some old nodes by hand first" in said
    assert planned_status(large_plan(3000, 500)).message == said
    assert expected_size(planned_status(large_plan(1000, 500))) < LARGEST


def test_a_condition_keeps_the_time_since_when_it_is_so() -> None:
    status = Status("Running", "begun")
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


def test_a_manager_reads_who_moves_who_cannot_and_what_is_left_to_do() -> None:
    told = to_markdown("u", SPEC, Status(nodes=NODES, workloads=WORKLOADS, steps=steps("Pending")))
    assert told.startswith("# From Windows Server 2019 to Windows Server 2022\n")
    assert "This is a plan. Nothing was changed. (u)" in told
    assert "- 2 workloads with 4 pods, on 1 old node; 1 new node to move to." in told
    assert "- **Deployment shop/web**: 3 pods. Changes to runtimeClassName: windows-2022." in told
    assert "- **Deployment shop/old**: 1 pod. It stays where it is. App has no build 1." in told
    assert "- Deployment shop/old keeps its old nodes" in told
    assert "| a | old | drained |" in told
    assert "| add-class | add-class-x | Pending |  |" in told


def test_a_report_of_the_end_says_how_long_it_took_and_why_it_was_undone() -> None:
    ended = Status(
        *("Undone", "what was done was undone: drain a: late", "drain a: late"),
        started_at="2026-11-16T12:00:00Z",
        finished_at="2026-11-16T12:03:09Z",
    )
    told = to_markdown("u", SPEC, ended)
    assert "The upgrade was undone. (u)\nWhat was done was undone: drain a: late." in told
    assert "ended 2026-11-16T12:03:09Z: 3 min 9 s." in told


def test_programs_read_the_same_with_the_counts_first() -> None:
    told = to_json("u", SPEC, Status("Running", nodes=NODES, workloads=WORKLOADS))
    assert told["summary"] == {"new-image": 1, "hypervisor": 0, "cannot": 1}
    assert told["staying"] == ["Deployment shop/old"]
    assert told["status"]["nodes"][0] == {"name": "a", "role": "old", "state": "drained"}


def test_an_upgrade_that_is_made_here_says_what_it_is() -> None:
    told = msgspec.json.decode(msgspec.json.encode(WindowsUpgrade(Metadata("u"), SPEC)))
    assert (told["apiVersion"], told["kind"]) == ("winpod.dev/v1alpha1", "WindowsUpgrade")


def test_the_schema_has_every_field_of_a_status() -> None:
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    kinds = {"steps": StepRecord, "nodes": NodeRecord, "workloads": WorkloadRecord}
    status = schema["status"]["properties"]
    assert set(status) == set(Status.__struct_encode_fields__)
    for name, kind in kinds.items():
        assert set(status[name]["items"]["properties"]) == set(kind.__struct_encode_fields__)

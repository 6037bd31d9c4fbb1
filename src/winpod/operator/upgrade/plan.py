"""Plans an upgrade: how each workload moves, and the ordered steps. Pure.

There are three strategies (docs/upgrade.md): a new class beside the old one; the same class with a
handler that keeps the old kernel, recreated because handlers are immutable; or only another node
selector. New classes are created before old ones are retired, workloads are patched before nodes
are cordoned, nodes with workloads that stay come last, and nodes are retired only after everything
was verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from winpod.labels import BUILD_LABEL, MANAGED_BY_LABEL
from winpod.operator.upgrade.moves import (
    DAEMON,
    MoveOutcome,
    TargetCluster,
    UpgradeWorkload,
    WorkloadMove,
    plan_move,
    selects,
    selects_any,
    target_classes,
    translated_selector,
)
from winpod.operator.upgrade.spec import OldNodePolicy, UpgradeSpec, UpgradeStrategy
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node, RuntimeClass
from winpod.placement.predicates import scheduling_requests
from winpod.quantities import format_quantity
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers, hypervisor_handler

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A snapshot of the cluster. `desired` are the RuntimeClasses its nodes call for.

    `uids` distinguish a node from an earlier one of the same name.
    """

    nodes: tuple[Node, ...]
    classes: tuple[Object, ...]
    workloads: tuple[UpgradeWorkload, ...]
    desired: tuple[Object, ...] = ()
    uids: Mapping[str, str] = field(default_factory=dict, compare=False)
    handlers: Handlers = field(default=BUILTIN_HANDLERS, compare=False)

    def nodes_of_build(self, build: Build) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.os == "windows" and n.build == build.base)


class UpgradeStepKind(StrEnum):
    ADD_CLASS = "add-class"
    RETIRE_CLASS = "retire-class"
    CHANGE_CLASS = "change-class"
    PATCH_WORKLOAD = "patch-workload"
    CORDON = "cordon"
    DRAIN = "drain"
    VERIFY = "verify"
    MARK_NODE = "mark-node"
    REMOVE_NODE = "remove-node"


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """An action on a target; `after` is the desired state."""

    kind: UpgradeStepKind
    target: str = ""
    after: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """A plan; `blockers` prevent it from starting, `notes` are hints for the user."""

    spec: UpgradeSpec
    old_nodes: tuple[str, ...]
    new_nodes: tuple[str, ...]
    moves: tuple[WorkloadMove, ...]
    steps: tuple[UpgradeStep, ...]
    blockers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def moves_left_behind(self) -> tuple[WorkloadMove, ...]:
        return tuple(move for move in self.moves if move.stays)

    def move_of(self, workload: str) -> WorkloadMove | None:
        return next((move for move in self.moves if str(move.workload) == workload), None)


def concerned_workloads(
    spec: UpgradeSpec, snapshot: ClusterSnapshot
) -> tuple[UpgradeWorkload, ...]:
    """Return the workloads with pods on old nodes, or whose pods can only run there."""
    nodes = frozenset(node.name for node in snapshot.nodes_of_build(spec.old))
    classes = _old_classes(spec, snapshot)
    return tuple(
        workload
        for workload in snapshot.workloads
        if workload.pods_on(nodes)
        or selects(workload.pod.node_selector, spec.old)
        or workload.pod.runtime_class in classes
    )


def _old_classes(spec: UpgradeSpec, snapshot: ClusterSnapshot) -> dict[str, Object]:
    return {
        runtime_class.name: obj
        for obj in snapshot.classes
        for runtime_class in [RuntimeClass.from_object(obj)]
        if selects(runtime_class.node_selector, spec.old)
    }


def plan_upgrade(spec: UpgradeSpec, snapshot: ClusterSnapshot) -> UpgradePlan:
    old, new = snapshot.nodes_of_build(spec.old), snapshot.nodes_of_build(spec.new)
    old_classes = _old_classes(spec, snapshot)
    added = tuple(_added_classes(spec, snapshot))
    changed = tuple(_changed_class(obj, spec, snapshot, new) for obj in old_classes.values())
    if spec.strategy is UpgradeStrategy.NEW_CLASS:
        changed = ()
    classes = _classes_by_name((*snapshot.classes, *added, *changed))
    is_new = spec.strategy is UpgradeStrategy.NEW_CLASS
    candidates = classes.values() if is_new else [classes[name] for name in old_classes]
    desired = _classes_by_name(snapshot.desired)
    targets = target_classes(candidates, desired, spec.new, new, snapshot.handlers)
    old_names = {node.name for node in old}
    after = TargetCluster(
        spec.old,
        spec.new,
        Cluster(
            (n for n in snapshot.nodes if n.name not in old_names),
            classes.values(),
            snapshot.handlers,
        ),
        Cluster((replace(n, unschedulable=True) for n in old), classes.values(), snapshot.handlers),
        new,
        frozenset(old_classes),
        targets,
        spec.patch_workloads,
    )
    moves = tuple(plan_move(workload, after) for workload in concerned_workloads(spec, snapshot))
    instead = f": use {targets[0].name}" if targets else ""
    message = f"{spec.old.describe()} is being replaced by {spec.new.describe()}{instead}"
    retired = dict.fromkeys(old_classes if is_new else (), message)
    return UpgradePlan(
        spec,
        tuple(node.name for node in old),
        tuple(node.name for node in new),
        moves,
        tuple(_steps(spec, moves, [n.name for n in old], added, retired, changed)),
        tuple(_blockers(spec, old, new)),
        tuple(_notes(moves, old, new)),
    )


def _classes_by_name(objects: Iterable[Object]) -> dict[str, RuntimeClass]:
    classes = (RuntimeClass.from_object(obj) for obj in objects)
    return {runtime_class.name: runtime_class for runtime_class in classes}


def _added_classes(spec: UpgradeSpec, snapshot: ClusterSnapshot) -> Iterator[Object]:
    """Return the missing classes of the new nodes; other strategies need no new classes."""
    if spec.strategy is not UpgradeStrategy.NEW_CLASS:
        return
    existing = _classes_by_name(snapshot.classes)
    for obj in snapshot.desired:
        runtime_class = RuntimeClass.from_object(obj)
        if (
            selects_any(runtime_class, snapshot.nodes_of_build(spec.new))
            and runtime_class.name not in existing
        ):
            yield obj


def _changed_class(
    obj: Object, spec: UpgradeSpec, snapshot: ClusterSnapshot, new_nodes: tuple[Node, ...]
) -> dict[str, Any]:
    """Return the class for the new nodes, no longer managed by winpod; adapt its handler."""
    runtime_class = RuntimeClass.from_object(obj)
    changed = strip_server_fields(obj)
    changed["metadata"].get("labels", {}).pop(MANAGED_BY_LABEL, None)
    selector = changed.setdefault("scheduling", {}).setdefault("nodeSelector", {})
    selector |= {key: str(spec.new) for key in selector if key == BUILD_LABEL}
    selector |= dict(translated_selector(runtime_class.node_selector, spec.old, new_nodes))
    handler = snapshot.handlers.find(runtime_class.handler)
    if spec.strategy is UpgradeStrategy.SAME_CLASS and (handler is None or handler.guest is None):
        changed["handler"] = hypervisor_handler(spec.old).name
        matching = (w for w in snapshot.desired if w.get("handler") == changed["handler"])
        if overhead := next((w["overhead"] for w in matching if w.get("overhead")), None):
            changed["overhead"] = deepcopy(overhead)
    return changed


def strip_server_fields(obj: Object) -> dict[str, Any]:
    """Remove the fields set by the API server, so that the object can be created again."""
    copy = deepcopy(dict(obj))
    keys = ("name", "labels", "annotations")
    copy["metadata"] = {key: copy["metadata"][key] for key in keys if copy["metadata"].get(key)}
    return copy


def _steps(
    spec: UpgradeSpec,
    moves: tuple[WorkloadMove, ...],
    old_nodes: list[str],
    added: Iterable[Object],
    retired: Mapping[str, str],
    changed: Iterable[Object],
) -> Iterator[UpgradeStep]:
    for obj in added:
        yield UpgradeStep(
            UpgradeStepKind.ADD_CLASS, obj["metadata"]["name"], strip_server_fields(obj)
        )
    for name, message in retired.items():
        yield UpgradeStep(UpgradeStepKind.RETIRE_CLASS, name, {"sentence": message})
    for obj in changed:
        yield UpgradeStep(UpgradeStepKind.CHANGE_CLASS, obj["metadata"]["name"], obj)
    for move in moves:
        if move.change and not move.stays and not move.reasons:
            selector = dict(move.change.node_selector)
            after = {"runtimeClassName": move.change.runtime_class, "nodeSelector": selector}
            yield UpgradeStep(
                UpgradeStepKind.PATCH_WORKLOAD,
                str(move.workload),
                {k: v for k, v in after.items() if v},
            )
    yield from (UpgradeStep(UpgradeStepKind.CORDON, name) for name in old_nodes)
    occupied = {pod.node for move in moves if move.stays for pod in move.workload.pods}
    ordered = sorted(old_nodes, key=lambda name: name in occupied)
    yield from (UpgradeStep(UpgradeStepKind.DRAIN, name) for name in ordered)
    if old_nodes or moves:
        yield UpgradeStep(UpgradeStepKind.VERIFY)
    last = {
        OldNodePolicy.MARK: UpgradeStepKind.MARK_NODE,
        OldNodePolicy.REMOVE: UpgradeStepKind.REMOVE_NODE,
    }.get(spec.old_nodes)
    if last:
        yield from (UpgradeStep(last, name) for name in ordered)


def _blockers(spec: UpgradeSpec, old: tuple[Node, ...], new: tuple[Node, ...]) -> Iterator[str]:
    available = [node for node in new if not node.unschedulable]
    if old and not available:
        cordoned = " that is not cordoned" if new else ""
        yield f"there is no node of {spec.new.describe()}{cordoned} to move to"


def _notes(
    moves: tuple[WorkloadMove, ...], old: tuple[Node, ...], new: tuple[Node, ...]
) -> Iterator[str]:
    """Compare total requests with total free capacity; fragmentation is not considered."""
    requested: dict[str, Decimal] = {}
    leaving = [node.name for node in old]
    for move in moves:
        if move.stays or move.workload.kind == DAEMON or move.outcome is MoveOutcome.CANNOT:
            continue
        for resource, amount in scheduling_requests(move.workload.pod):
            count = len(move.workload.pods_on(leaving))
            requested[resource] = requested.get(resource, Decimal(0)) + count * amount
    for resource, amount in sorted(requested.items()):
        sizes = [(dict(n.allocatable), dict(n.allocated)) for n in new if n.allocatable is not None]
        if len(sizes) < len(new) or not any(resource in allocatable for allocatable, _ in sizes):
            continue
        zero = Decimal(0)
        free = sum(
            (
                allocatable.get(resource, zero) - allocated.get(resource, zero)
                for allocatable, allocated in sizes
            ),
            zero,
        )
        if amount > free:
            yield (
                f"the pods to move request {format_quantity(resource, amount)} of {resource}, but "
                f"the new nodes have {format_quantity(resource, free)} free: add nodes first"
            )

"""From one Windows build to the next: who moves how, and the steps in their order. Pure.

The three ways are the documents': a new class beside the old one; the same class with a handler
that keeps the old kernel, replaced because handlers are immutable; or only another node selector.
The new class is there before the old one is closed, workloads are changed before nodes are
cordoned, nodes that something stays on come last, and nothing is decommissioned before all was
verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from winpod.cluster.seen import MANAGED_BY
from winpod.cluster.upgrade.asked import Asked, OldNodes, Way
from winpod.cluster.upgrade.moves import (
    DAEMON,
    After,
    Fate,
    Move,
    Workload,
    judge_move,
    reaches,
    reselected,
    selects,
    target_classes,
)
from winpod.windows.builds import Build
from winpod.windows.handlers import KNOWN, Handlers, hypervisor_for
from winpod.windows.objects import BUILD_LABEL, Node, RuntimeClass
from winpod.windows.placement import Cluster
from winpod.windows.quantities import format_quantity
from winpod.windows.scheduling import needs

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is. `wanted` are the classes that this cluster's nodes give reason for.

    `uids` tell apart nodes of one name, of which one was made after the other.
    """

    nodes: tuple[Node, ...]
    classes: tuple[Object, ...]
    workloads: tuple[Workload, ...]
    wanted: tuple[Object, ...] = ()
    uids: Mapping[str, str] = field(default_factory=dict, compare=False)
    handlers: Handlers = field(default=KNOWN, compare=False)

    def of_build(self, build: Build) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.os == "windows" and n.build == build.base)


class Do(StrEnum):
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
class Step:
    """What is done to what; `after` is what shall be there then."""

    do: Do
    target: str = ""
    after: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """`blockers` keep it from beginning at all, `notes` are for whoever decides."""

    asked: Asked
    old_nodes: tuple[str, ...]
    new_nodes: tuple[str, ...]
    moves: tuple[Move, ...]
    steps: tuple[Step, ...]
    blockers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def staying(self) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if move.stays)

    def move_of(self, workload: str) -> Move | None:
        return next((move for move in self.moves if str(move.workload) == workload), None)


def concerned_workloads(asked: Asked, scene: Scene) -> tuple[Workload, ...]:
    """Those that have pods on old nodes, or could have them only there."""
    nodes = frozenset(node.name for node in scene.of_build(asked.old))
    classes = _old_classes(asked, scene)
    return tuple(
        workload
        for workload in scene.workloads
        if workload.on(nodes)
        or selects(workload.pod.node_selector, asked.old)
        or workload.pod.runtime_class in classes
    )


def _old_classes(asked: Asked, scene: Scene) -> dict[str, Object]:
    return {
        one.name: obj
        for obj in scene.classes
        for one in [RuntimeClass.from_object(obj)]
        if selects(one.node_selector, asked.old)
    }


def plan_upgrade(asked: Asked, scene: Scene) -> Plan:
    old, new = scene.of_build(asked.old), scene.of_build(asked.new)
    old_classes = _old_classes(asked, scene)
    added = tuple(_added_classes(asked, scene))
    changed = tuple(_changed_class(obj, asked, scene, new) for obj in old_classes.values())
    if asked.way is Way.NEW_CLASS:
        changed = ()
    classes = _named((*scene.classes, *added, *changed))
    is_new = asked.way is Way.NEW_CLASS
    candidates = classes.values() if is_new else [classes[name] for name in old_classes]
    wanted = _named(scene.wanted)
    targets = target_classes(candidates, wanted, asked.new, new, scene.handlers)
    left = {node.name for node in old}
    after = After(
        asked.old,
        asked.new,
        Cluster((n for n in scene.nodes if n.name not in left), classes.values(), scene.handlers),
        Cluster((replace(n, unschedulable=True) for n in old), classes.values(), scene.handlers),
        new,
        frozenset(old_classes),
        targets,
        asked.patch_workloads,
    )
    moves = tuple(judge_move(one, after) for one in concerned_workloads(asked, scene))
    instead = f": use {targets[0].name}" if targets else ""
    sentence = f"{asked.old.describe()} is being replaced by {asked.new.describe()}{instead}"
    retired = dict.fromkeys(old_classes if is_new else (), sentence)
    return Plan(
        asked,
        tuple(node.name for node in old),
        tuple(node.name for node in new),
        moves,
        tuple(_steps(asked, moves, [n.name for n in old], added, retired, changed)),
        tuple(_blockers(asked, old, new)),
        tuple(_notes(moves, old, new)),
    )


def _named(objects: Iterable[Object]) -> dict[str, RuntimeClass]:
    read = (RuntimeClass.from_object(obj) for obj in objects)
    return {one.name: one for one in read}


def _added_classes(asked: Asked, scene: Scene) -> Iterator[Object]:
    """Those of the new nodes that are not there yet; the other ways need no more classes."""
    if asked.way is not Way.NEW_CLASS:
        return
    there = _named(scene.classes)
    for obj in scene.wanted:
        one = RuntimeClass.from_object(obj)
        if reaches(one, scene.of_build(asked.new)) and one.name not in there:
            yield obj


def _changed_class(
    obj: Object, asked: Asked, scene: Scene, new_nodes: tuple[Node, ...]
) -> dict[str, Any]:
    """The class for the new nodes, no longer winpod's own to set right; its handler by the way."""
    one = RuntimeClass.from_object(obj)
    changed = bare_object(obj)
    changed["metadata"].get("labels", {}).pop(MANAGED_BY, None)
    selector = changed.setdefault("scheduling", {}).setdefault("nodeSelector", {})
    selector |= {key: str(asked.new) for key in selector if key == BUILD_LABEL}
    selector |= dict(reselected(one.node_selector, asked.old, new_nodes))
    known = scene.handlers.find(one.handler)
    if asked.way is Way.SAME_CLASS and (known is None or known.guest is None):
        changed["handler"] = hypervisor_for(asked.old).name
        alike = (w for w in scene.wanted if w.get("handler") == changed["handler"])
        if overhead := next((w["overhead"] for w in alike if w.get("overhead")), None):
            changed["overhead"] = deepcopy(overhead)
    return changed


def bare_object(obj: Object) -> dict[str, Any]:
    """Without what the API server wrote into it, so that it can be created again."""
    copy = deepcopy(dict(obj))
    kept = ("name", "labels", "annotations")
    copy["metadata"] = {key: copy["metadata"][key] for key in kept if copy["metadata"].get(key)}
    return copy


def _steps(
    asked: Asked,
    moves: tuple[Move, ...],
    old_nodes: list[str],
    added: Iterable[Object],
    retired: Mapping[str, str],
    changed: Iterable[Object],
) -> Iterator[Step]:
    for obj in added:
        yield Step(Do.ADD_CLASS, obj["metadata"]["name"], bare_object(obj))
    for name, sentence in retired.items():
        yield Step(Do.RETIRE_CLASS, name, {"sentence": sentence})
    for obj in changed:
        yield Step(Do.CHANGE_CLASS, obj["metadata"]["name"], obj)
    for move in moves:
        if move.change and not move.stays and not move.reasons:
            selector = dict(move.change.node_selector)
            after = {"runtimeClassName": move.change.runtime_class, "nodeSelector": selector}
            yield Step(Do.PATCH_WORKLOAD, str(move.workload), {k: v for k, v in after.items() if v})
    yield from (Step(Do.CORDON, name) for name in old_nodes)
    held = {pod.node for move in moves if move.stays for pod in move.workload.pods}
    in_turn = sorted(old_nodes, key=lambda name: name in held)
    yield from (Step(Do.DRAIN, name) for name in in_turn)
    if old_nodes or moves:
        yield Step(Do.VERIFY)
    last = {OldNodes.MARK: Do.MARK_NODE, OldNodes.REMOVE: Do.REMOVE_NODE}.get(asked.old_nodes)
    if last:
        yield from (Step(last, name) for name in in_turn)


def _blockers(asked: Asked, old: tuple[Node, ...], new: tuple[Node, ...]) -> Iterator[str]:
    open_nodes = [node for node in new if not node.unschedulable]
    if old and not open_nodes:
        cordoned = " that is not cordoned" if new else ""
        yield f"there is no node of {asked.new.describe()}{cordoned} to move to"


def _notes(moves: tuple[Move, ...], old: tuple[Node, ...], new: tuple[Node, ...]) -> Iterator[str]:
    """Room is only summed up: that each pod finds a node with room is the scheduler's to show."""
    asked: dict[str, Decimal] = {}
    leaving = [node.name for node in old]
    for move in moves:
        if move.stays or move.workload.kind == DAEMON or move.fate is Fate.CANNOT:
            continue
        for resource, amount in needs(move.workload.pod):
            count = len(move.workload.on(leaving))
            asked[resource] = asked.get(resource, Decimal(0)) + count * amount
    for resource, amount in sorted(asked.items()):
        sizes = [(dict(n.allocatable), dict(n.allocated)) for n in new if n.allocatable is not None]
        if len(sizes) < len(new) or not any(resource in has for has, _ in sizes):
            continue
        zero = Decimal(0)
        free = sum(
            (has.get(resource, zero) - taken.get(resource, zero) for has, taken in sizes), zero
        )
        if amount > free:
            yield (
                f"the pods to move ask for {format_quantity(resource, amount)} of {resource}, and "
                f"the new nodes have {format_quantity(resource, free)} free: add nodes first"
            )

"""The RuntimeClasses that a cluster's nodes give reason for, and the way there: pure.

A class selects only nodes that can really serve its handler: by their build where that tells them
apart, else by the label of the handler. Others' classes are left alone, and what pods use stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from winpod.cluster.node_labels import HANDLER_PREFIX, SERVED, handler_label, served_handlers
from winpod.cluster.seen import MANAGED_BY, OURS, SeenClass
from winpod.cluster.settings import Settings, fill_name
from winpod.windows.builds import Build
from winpod.windows.handlers import KNOWN, PROCESS
from winpod.windows.objects import (
    ARCH_LABEL,
    BUILD_LABEL,
    OS_LABEL,
    Node,
    RuntimeClass,
    Taint,
    Toleration,
)
from winpod.windows.quantities import format_quantity, parse_quantity

ABOUT = "winpod.dev/about"


@dataclass(frozen=True, slots=True)
class WantedClass:
    """`about` says in a few words what pods of this class meet."""

    runtime_class: RuntimeClass
    about: str

    @property
    def name(self) -> str:
        return self.runtime_class.name

    def to_object(self) -> dict[str, Any]:
        wanted = self.runtime_class
        scheduling: dict[str, Any] = {"nodeSelector": dict(wanted.node_selector)}
        if wanted.tolerations:
            scheduling["tolerations"] = [t.to_object() for t in wanted.tolerations]
        obj: dict[str, Any] = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {
                "name": wanted.name,
                "labels": {MANAGED_BY: OURS},
                "annotations": {ABOUT: self.about},
            },
            "handler": wanted.handler,
            "scheduling": scheduling,
        }
        if wanted.overhead:
            amounts = {name: _quantity(name, amount) for name, amount in wanted.overhead}
            obj["overhead"] = {"podFixed": amounts}
        return obj


def _quantity(resource: str, amount: Decimal) -> str:
    """As people write it where that is exact."""
    text = format_quantity(resource, amount)
    return text if parse_quantity(text) == amount else f"{amount:f}"


def desired_classes(nodes: Iterable[Node], settings: Settings) -> tuple[WantedClass, ...]:
    """One for each build under process isolation, for each older guest that some node hosts, and
    for each size of a guest that a node's configuration has."""
    if not settings.classes:
        return ()
    shapes = tuple({shape_of(node) for node in nodes if node.os == "windows"})
    named: dict[str, WantedClass] = {}
    for wanted in (*_process_classes(shapes, settings), *_guest_classes(shapes, settings)):
        named.setdefault(wanted.name, wanted)
    return tuple(named[name] for name in sorted(named))


def shape_of(node: Node) -> Node:
    """Only what decides about classes, so that nodes that do not differ in it are one."""
    read = (OS_LABEL, ARCH_LABEL, BUILD_LABEL)
    labels = tuple(p for p in node.labels if p[0] in read or p[0].startswith(HANDLER_PREFIX))
    taints = tuple(taint for taint in node.taints if _says_windows(taint))
    return replace(
        node,
        name="",
        labels=labels,
        taints=taints,
        unschedulable=False,
        allocatable=None,
        allocated=(),
    )


def _process_classes(nodes: Sequence[Node], settings: Settings) -> Iterable[WantedClass]:
    for architecture, build in sorted({(n.architecture, n.build) for n in nodes if n.build}):
        by_build = {**_base_selector(architecture), BUILD_LABEL: str(build)}
        selectors = [by_build, by_build | {handler_label(PROCESS.name): SERVED}]
        name = fill_name(settings.class_name, build, architecture)
        if made := _class_for(name, PROCESS.name, selectors, nodes, settings):
            yield WantedClass(made, f"{build.describe()} under process isolation")


def _guest_classes(nodes: Sequence[Node], settings: Settings) -> Iterable[WantedClass]:
    offered = {
        (n.architecture, name, KNOWN.told(name).kernel(n.build))
        for n in nodes
        for name in served_handlers(n)
        if n.build
    }
    for architecture, handler, kernel in sorted(offered):
        guest, size = KNOWN.told(handler).guest, KNOWN.size(handler)
        if guest is None and not size:
            continue
        name = fill_name(settings.hypervisor_class_name, kernel, architecture)
        selectors = _guest_selectors(nodes, architecture, handler, kernel)
        if made := _class_for(
            f"{name}-{size}" if size else name, handler, selectors, nodes, settings
        ):
            about = f"{kernel.describe()} under hypervisor isolation"
            about += f" ({size})" if size else ""
            about += ", on newer hosts" if guest else ""
            yield WantedClass(replace(made, overhead=settings.overhead), about)


def _guest_selectors(
    nodes: Sequence[Node], architecture: str, handler: str, kernel: Build
) -> Iterable[Mapping[str, str]]:
    """A guest of its own build has any newer host; one of its host's has those of that build."""
    base, label = _base_selector(architecture), {handler_label(handler): SERVED}
    if KNOWN.told(handler).guest is None:
        by_build = base | {BUILD_LABEL: str(kernel)}
        return [by_build, by_build | label]
    builds = sorted({n.build for n in nodes if n.build and n.build > kernel}, reverse=True)
    return [*(base | {BUILD_LABEL: str(build)} for build in builds), base | label]


def _class_for(
    name: str,
    handler: str,
    selectors: Iterable[Mapping[str, str]],
    nodes: Sequence[Node],
    settings: Settings,
) -> RuntimeClass | None:
    """With the selector that reaches most of those who serve the handler, and nobody else."""
    best: tuple[Mapping[str, str], list[Node]] = ({}, [])
    for selector in selectors:
        reached = [n for n in nodes if selector.items() <= dict(n.labels).items()]
        is_true = all(handler in served_handlers(n) for n in reached)
        if is_true and len(reached) > len(best[1]):
            best = (selector, reached)
    selector, reached = best
    if not reached:
        return None
    tolerations = tolerations_for(reached, settings)
    return RuntimeClass(name, handler, tuple(sorted(selector.items())), tolerations)


def _base_selector(architecture: str) -> dict[str, str]:
    return {OS_LABEL: "windows", ARCH_LABEL: architecture}


def tolerations_for(nodes: Iterable[Node], settings: Settings) -> tuple[Toleration, ...]:
    """Of the taints that keep other pods off Windows nodes, and those that people add.

    Any other taint is there for a reason that a class does not know: dedicated nodes, maintenance.
    """
    taints = {taint for node in nodes for taint in node.taints if _says_windows(taint)}
    made = (_tolerating(taint) for taint in sorted(taints, key=str))
    return tuple(dict.fromkeys((*made, *settings.tolerations)))


def _says_windows(taint: Taint) -> bool:
    """`os=windows`, `node.kubernetes.io/os=Windows`, `windows=true`, `example.com/windows`."""
    said = taint.value.lower() == "windows" or taint.key.lower().rpartition("/")[2] == "windows"
    return taint.repels and said


def _tolerating(taint: Taint) -> Toleration:
    operator = "Equal" if taint.value else "Exists"
    return Toleration(taint.key, operator, taint.value, taint.effect)


class Deed(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    REMOVE = "remove"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one class. `reason` says why, and to keep one is told where it says so."""

    deed: Deed
    name: str
    wanted: WantedClass | None = None
    existing: SeenClass | None = None
    reason: str = ""


def plan_classes(
    wanted: Iterable[WantedClass],
    existing: Mapping[str, SeenClass],
    used_names: Collection[str],
) -> tuple[Step, ...]:
    """New ones first, then changes, then what is no longer true and nobody uses."""
    named = {one.name: one for one in wanted}
    steps = [_step(one, existing.get(name), used_names) for name, one in named.items()]
    for name, seen in existing.items():
        if seen.is_ours and name not in named:
            steps.append(_farewell(seen, used_names))
    order = list(Deed)
    return tuple(sorted(steps, key=lambda step: (order.index(step.deed), step.name)))


def _step(wanted: WantedClass, seen: SeenClass | None, used_names: Collection[str]) -> Step:
    name = wanted.name
    if seen is None:
        return Step(Deed.CREATE, name, wanted, reason=f"there are nodes for it: {wanted.about}")
    if not seen.is_ours:
        reason = (
            f'RuntimeClass "{name}" was not made by winpod and is left alone; the class for '
            f"{wanted.about} needs another name (classes.name in the settings), or the label "
            f"{MANAGED_BY}={OURS} on this one"
        )
        return Step(Deed.KEEP, name, wanted, seen, reason)
    now = seen.runtime_class
    if now.handler != wanted.runtime_class.handler:
        change = f"its handler changes from {now.handler} to {wanted.runtime_class.handler}"
        if name in used_names:
            reason = (
                f'RuntimeClass "{name}" stays until no pod uses it; then {change}, which needs a '
                "new object because a handler is immutable"
            )
            return Step(Deed.KEEP, name, wanted, seen, reason)
        return Step(Deed.REPLACE, name, wanted, seen, change)
    if now != wanted.runtime_class or dict(seen.annotations).get(ABOUT) != wanted.about:
        return Step(Deed.UPDATE, name, wanted, seen, "its nodes or the settings have changed")
    return Step(Deed.KEEP, name, wanted, seen)


def _farewell(seen: SeenClass, used_names: Collection[str]) -> Step:
    if seen.name in used_names:
        reason = f'RuntimeClass "{seen.name}" has no node any more, and stays while pods use it'
        return Step(Deed.KEEP, seen.name, None, seen, reason)
    return Step(Deed.REMOVE, seen.name, None, seen, "it has no node, and no pod uses it")

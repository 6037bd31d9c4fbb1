"""The desired RuntimeClasses of a cluster, and the changes to get there. Pure.

A class selects only nodes that can serve its handler: by their build if that is sufficient, else by
the handler's label. Classes not managed by winpod are not touched; classes in use are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from winpod.labels import (
    ABOUT_ANNOTATION,
    ARCH_LABEL,
    BUILD_LABEL,
    HANDLER_LABEL_PREFIX,
    MANAGED_BY_LABEL,
    MANAGED_BY_VALUE,
    OS_LABEL,
)
from winpod.operator.cached_objects import CachedRuntimeClass
from winpod.operator.runtimeclasses.node_labels import LABEL_TRUE, handler_label, served_handlers
from winpod.operator.settings import OperatorSettings, format_class_name
from winpod.placement.model import Node, RuntimeClass, Taint, Toleration
from winpod.quantities import format_quantity, parse_quantity
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, PROCESS_HANDLER


@dataclass(frozen=True, slots=True)
class DesiredClass:
    """A RuntimeClass; `about` describes it in a few words."""

    runtime_class: RuntimeClass
    about: str

    @property
    def name(self) -> str:
        return self.runtime_class.name

    def to_object(self) -> dict[str, Any]:
        desired = self.runtime_class
        scheduling: dict[str, Any] = {"nodeSelector": dict(desired.node_selector)}
        if desired.tolerations:
            scheduling["tolerations"] = [t.to_object() for t in desired.tolerations]
        obj: dict[str, Any] = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {
                "name": desired.name,
                "labels": {MANAGED_BY_LABEL: MANAGED_BY_VALUE},
                "annotations": {ABOUT_ANNOTATION: self.about},
            },
            "handler": desired.handler,
            "scheduling": scheduling,
        }
        if desired.overhead:
            amounts = {name: _quantity(name, amount) for name, amount in desired.overhead}
            obj["overhead"] = {"podFixed": amounts}
        return obj


def _quantity(resource: str, amount: Decimal) -> str:
    """Format a quantity with a suffix if that is exact."""
    text = format_quantity(resource, amount)
    return text if parse_quantity(text) == amount else f"{amount:f}"


def desired_classes(nodes: Iterable[Node], settings: OperatorSettings) -> tuple[DesiredClass, ...]:
    """Return a class per build with process isolation, per older guest build that a node can
    host, and per guest size that a node's configuration defines.
    """
    if not settings.classes:
        return ()
    signatures = tuple({class_shape(node) for node in nodes if node.os == "windows"})
    named: dict[str, DesiredClass] = {}
    for desired in (*_process_classes(signatures, settings), *_guest_classes(signatures, settings)):
        named.setdefault(desired.name, desired)
    return tuple(named[name] for name in sorted(named))


def class_shape(node: Node) -> Node:
    """Reduce a node to what decides its classes, so that equivalent nodes are equal."""
    relevant = (OS_LABEL, ARCH_LABEL, BUILD_LABEL)
    labels = tuple(
        p for p in node.labels if p[0] in relevant or p[0].startswith(HANDLER_LABEL_PREFIX)
    )
    taints = tuple(taint for taint in node.taints if _is_windows_taint(taint))
    return replace(
        node,
        name="",
        labels=labels,
        taints=taints,
        unschedulable=False,
        allocatable=None,
        allocated=(),
    )


def _process_classes(nodes: Sequence[Node], settings: OperatorSettings) -> Iterable[DesiredClass]:
    for architecture, build in sorted({(n.architecture, n.build) for n in nodes if n.build}):
        by_build = {**_base_selector(architecture), BUILD_LABEL: str(build)}
        selectors = [by_build, by_build | {handler_label(PROCESS_HANDLER.name): LABEL_TRUE}]
        name = format_class_name(settings.class_name, build, architecture)
        if tolerations := _class_for(name, PROCESS_HANDLER.name, selectors, nodes, settings):
            yield DesiredClass(tolerations, f"{build.describe()} under process isolation")


def _guest_classes(nodes: Sequence[Node], settings: OperatorSettings) -> Iterable[DesiredClass]:
    offered = {
        (n.architecture, name, BUILTIN_HANDLERS.resolve_advertised(name).kernel_build(n.build))
        for n in nodes
        for name in served_handlers(n)
        if n.build
    }
    for architecture, handler, kernel in sorted(offered):
        guest, size = (
            BUILTIN_HANDLERS.resolve_advertised(handler).guest,
            BUILTIN_HANDLERS.size_suffix(handler),
        )
        if guest is None and not size:
            continue
        name = format_class_name(settings.hypervisor_class_name, kernel, architecture)
        selectors = _guest_selectors(nodes, architecture, handler, kernel)
        if tolerations := _class_for(
            f"{name}-{size}" if size else name, handler, selectors, nodes, settings
        ):
            about = f"{kernel.describe()} under hypervisor isolation"
            about += f" ({size})" if size else ""
            about += ", on newer hosts" if guest else ""
            yield DesiredClass(replace(tolerations, overhead=settings.overhead), about)


def _guest_selectors(
    nodes: Sequence[Node], architecture: str, handler: str, kernel: Build
) -> Iterable[Mapping[str, str]]:
    """A guest with a fixed build can run on newer hosts; one of the host's build only on those."""
    base, label = _base_selector(architecture), {handler_label(handler): LABEL_TRUE}
    if BUILTIN_HANDLERS.resolve_advertised(handler).guest is None:
        by_build = base | {BUILD_LABEL: str(kernel)}
        return [by_build, by_build | label]
    builds = sorted({n.build for n in nodes if n.build and n.build > kernel}, reverse=True)
    return [*(base | {BUILD_LABEL: str(build)} for build in builds), base | label]


def _class_for(
    name: str,
    handler: str,
    selectors: Iterable[Mapping[str, str]],
    nodes: Sequence[Node],
    settings: OperatorSettings,
) -> RuntimeClass | None:
    """Use the selector that matches most nodes, all of which must serve the handler."""
    best: tuple[Mapping[str, str], list[Node]] = ({}, [])
    for selector in selectors:
        matching = [n for n in nodes if selector.items() <= dict(n.labels).items()]
        only_serving = all(handler in served_handlers(n) for n in matching)
        if only_serving and len(matching) > len(best[1]):
            best = (selector, matching)
    selector, matching = best
    if not matching:
        return None
    tolerations = tolerations_for(matching, settings)
    return RuntimeClass(name, handler, tuple(sorted(selector.items())), tolerations)


def _base_selector(architecture: str) -> dict[str, str]:
    return {OS_LABEL: "windows", ARCH_LABEL: architecture}


def tolerations_for(nodes: Iterable[Node], settings: OperatorSettings) -> tuple[Toleration, ...]:
    """Return tolerations of the taints that mark Windows nodes, and those in the settings.

    Other taints have a purpose that a class must not override, such as dedicated nodes.
    """
    taints = {taint for node in nodes for taint in node.taints if _is_windows_taint(taint)}
    tolerations = (_toleration_for(taint) for taint in sorted(taints, key=str))
    return tuple(dict.fromkeys((*tolerations, *settings.tolerations)))


def _is_windows_taint(taint: Taint) -> bool:
    """`os=windows`, `node.kubernetes.io/os=Windows`, `windows=true`, `example.com/windows`."""
    names_windows = (
        taint.value.lower() == "windows" or taint.key.lower().rpartition("/")[2] == "windows"
    )
    return taint.blocks_scheduling and names_windows


def _toleration_for(taint: Taint) -> Toleration:
    operator = "Equal" if taint.value else "Exists"
    return Toleration(taint.key, operator, taint.value, taint.effect)


class ClassAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    REMOVE = "remove"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class ClassChange:
    """The change of one class and its reason; a KEEP with a reason is reported."""

    action: ClassAction
    name: str
    desired: DesiredClass | None = None
    existing: CachedRuntimeClass | None = None
    reason: str = ""


def plan_classes(
    desired: Iterable[DesiredClass],
    existing: Mapping[str, CachedRuntimeClass],
    used_names: Collection[str],
) -> tuple[ClassChange, ...]:
    """Plan creations first, then changes, then removals of unused classes without nodes."""
    named = {desired_class.name: desired_class for desired_class in desired}
    steps = [
        _change_for(desired_class, existing.get(name), used_names)
        for name, desired_class in named.items()
    ]
    for name, cached in existing.items():
        if cached.is_managed and name not in named:
            steps.append(_removal(cached, used_names))
    order = list(ClassAction)
    return tuple(sorted(steps, key=lambda step: (order.index(step.action), step.name)))


def _change_for(
    desired: DesiredClass, cached: CachedRuntimeClass | None, used_names: Collection[str]
) -> ClassChange:
    name = desired.name
    if cached is None:
        return ClassChange(
            ClassAction.CREATE,
            name,
            desired,
            reason=f"the cluster has nodes for it: {desired.about}",
        )
    if not cached.is_managed:
        reason = (
            f'RuntimeClass "{name}" is not managed by winpod and is not changed; choose another '
            f"name for the class for {desired.about} (classes.name in the settings), or label this "
            f"one {MANAGED_BY_LABEL}={MANAGED_BY_VALUE}"
        )
        return ClassChange(ClassAction.KEEP, name, desired, cached, reason)
    current = cached.runtime_class
    if current.handler != desired.runtime_class.handler:
        change = f"its handler changes from {current.handler} to {desired.runtime_class.handler}"
        if name in used_names:
            reason = (
                f'RuntimeClass "{name}" is kept until no pod uses it; then {change}, which needs a '
                "new object because the handler is immutable"
            )
            return ClassChange(ClassAction.KEEP, name, desired, cached, reason)
        return ClassChange(ClassAction.REPLACE, name, desired, cached, change)
    if (
        current != desired.runtime_class
        or dict(cached.annotations).get(ABOUT_ANNOTATION) != desired.about
    ):
        return ClassChange(
            ClassAction.UPDATE, name, desired, cached, "its nodes or the settings changed"
        )
    return ClassChange(ClassAction.KEEP, name, desired, cached)


def _removal(cached: CachedRuntimeClass, used_names: Collection[str]) -> ClassChange:
    if cached.name in used_names:
        reason = f'RuntimeClass "{cached.name}" has no nodes and is kept while pods use it'
        return ClassChange(ClassAction.KEEP, cached.name, None, cached, reason)
    return ClassChange(
        ClassAction.REMOVE, cached.name, None, cached, "it has no nodes and no pod uses it"
    )

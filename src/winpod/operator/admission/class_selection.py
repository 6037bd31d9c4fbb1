"""Selects the RuntimeClass of a pod without one, or its nodes if classes are disabled.

Each class for a single Windows build is evaluated with the pod. Preferred are classes where the pod
runs now, then process isolation, the image's exact build, the newest build, and less overhead.

`pending_nodes` are nodes that do not exist yet but could match the pod and its images. They never
have the name of an existing node, so a pod that names one does not wait for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice, product
from weakref import WeakKeyDictionary

from winpod.field_reader import TextPairs
from winpod.labels import (
    ARCH_LABEL,
    BUILD_LABEL,
    HANDLER_LABEL_PREFIX,
    HOSTNAME_LABEL,
    OS_LABEL,
    OSVERSION_LABEL,
)
from winpod.operator.runtimeclasses.desired_classes import desired_classes
from winpod.operator.settings import OperatorSettings
from winpod.placement.evaluator import Cluster, evaluate_node
from winpod.placement.model import (
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    RuntimeClass,
    Toleration,
)
from winpod.placement.node_groups import NodeGroups
from winpod.placement.predicates import admit_with_runtime_class, is_excluded_by_pod
from winpod.placement.start_checks import ImagesByReference
from winpod.placement.verdicts import Cause, Outcome, Placement, Status, Verdict
from winpod.windows.builds import Build, parse_version
from winpod.windows.handlers import PROCESS_HANDLER
from winpod.windows.isolation import Isolation

_VARIED_LABELS = frozenset((BUILD_LABEL, ARCH_LABEL))
_MAX_NODES_PER_TERM = 200


def pending_nodes(pod: Pod, cluster: Cluster, images: ImagesByReference) -> Iterable[Node]:
    """Yield possible future nodes for a pod already merged with its RuntimeClass."""
    builds = tuple(
        str(m.platform.build.base)
        for image in images.values()
        for m in image.manifests
        if m.platform.build
    )
    offered = {OS_LABEL: ("windows",), BUILD_LABEL: builds}
    offered |= {key: (value,) for key, value in pod.node_selector}
    for term in (NodeSelectorTerm(),) if pod.affinity is None else pod.affinity:
        by_key: dict[str, list[NodeSelectorRequirement]] = {key: [] for key in offered}
        for requirement in term.labels:
            by_key.setdefault(requirement.key, []).append(requirement)
        labels = {
            key: _matching_values(requirements, offered.get(key, ()))
            for key, requirements in by_key.items()
        }
        names = [pod.node_name] if pod.node_name else _matching_values(term.fields)
        name = next(_unused_names(names, cluster), "")
        labels[HOSTNAME_LABEL] = [*_unused_names(labels.get(HOSTNAME_LABEL, ()), cluster)]
        yield from islice(_candidate_nodes(name, labels), _MAX_NODES_PER_TERM)


def _candidate_nodes(name: str, labels: Mapping[str, Sequence[str]]) -> Iterable[Node]:
    """Combine all possible builds and architectures with the first value of other labels."""
    candidates = {
        key: values if key in _VARIED_LABELS else values[:1]
        for key, values in labels.items()
        if values
    }
    for values in product(*candidates.values()):
        combination = dict(zip(candidates, values, strict=True))
        if combination.get(OS_LABEL) == "windows" and parse_version(
            combination.get(BUILD_LABEL, "")
        ):
            yield Node(name, tuple(sorted(combination.items())))


def _matching_values(
    requirements: Sequence[NodeSelectorRequirement], offered: Iterable[str] = ()
) -> list[str]:
    values = (*offered, *(value for r in requirements for value in _suggested_values(r)))
    return [value for value in dict.fromkeys(values) if all(r.matches(value) for r in requirements)]


def _suggested_values(requirement: NodeSelectorRequirement) -> Sequence[str]:
    match requirement.operator:
        case "In":
            return requirement.values
        case "Exists":
            return ("true",)
        case "Gt":
            return (str(int(requirement.values[0]) + 1),)
        case "Lt":
            return (str(int(requirement.values[0]) - 1),)
    return ()


_existing_names: WeakKeyDictionary[NodeGroups, frozenset[str]] = WeakKeyDictionary()


def _unused_names(names: Iterable[str], cluster: Cluster) -> Iterator[str]:
    """Yield the names that no existing node has."""
    for name in names:
        if cluster.groups not in _existing_names:
            hosts = (node.label(HOSTNAME_LABEL) or "" for node in cluster.nodes)
            _existing_names[cluster.groups] = frozenset(
                (*hosts, *(node.name for node in cluster.nodes))
            )
        if name not in _existing_names[cluster.groups]:
            yield name


_BUILD_LABELS = frozenset((BUILD_LABEL, OSVERSION_LABEL))
_COMMON_LABELS = _BUILD_LABELS | {OS_LABEL, ARCH_LABEL}
_STATUSES = (Status.RUNS, Status.MAY_FAIL, Status.WAITS)
_NEEDS_NODE = len(_STATUSES)
"""Rank of a selection that has no node yet."""
_IMPOSSIBLE = _NEEDS_NODE + 1

_TEMPORARY_CAUSES = frozenset((Cause.TAINT, Cause.CORDONED, Cause.RESOURCES))
"""Causes that may go away while a pod waits."""


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """The cluster and settings. `retiring` are classes that accept no new pods, with the reason."""

    cluster: Cluster
    settings: OperatorSettings
    retiring: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClassSelection:
    """The resulting pod, its placement, and what was added to it.

    `retiring` is the class that would have been selected but accepts no new pods, if no other fits.
    """

    pod: Pod
    placement: Placement
    runtime_class: str = ""
    node_selector: TextPairs = ()
    tolerations: tuple[Toleration, ...] = ()
    retiring: str = ""


_ANY_POD = Pod((), requests=(("cpu", Decimal(1)), ("memory", Decimal(1))))


def warm_up(cluster: Cluster) -> None:
    """Fill the caches of node groups and capacities ahead of the first review."""
    cluster.place(_ANY_POD, {})


def without_runtime_class(pod: Pod, classes: Mapping[str, RuntimeClass]) -> Pod:
    """Return the pod without what the API server merged from its RuntimeClass."""
    chosen = classes.get(pod.runtime_class)
    if chosen is None:
        return pod
    merged = set(chosen.node_selector)
    own = tuple(pair for pair in pod.node_selector if pair not in merged)
    overhead = () if pod.overhead == chosen.overhead else pod.overhead
    return replace(pod, node_selector=own, overhead=overhead)


def select_class(pod: Pod, context: SelectionContext, images: ImagesByReference) -> ClassSelection:
    """Return the best selection; the unchanged pod if it names a class or nothing fits."""
    cluster = context.cluster
    if pod.is_daemon:
        return ClassSelection(pod, _place_everywhere(pod, context, images))
    if pod.runtime_class or any(text not in images for text in pod.images):
        return ClassSelection(pod, cluster.place(pod, images))
    offers = _class_candidates if context.settings.classes else _node_candidates
    ranked = sorted(
        ((_rank(choice, cluster, images), choice) for choice in offers(pod, context, images)),
        key=lambda pair: pair[0],
    )
    fitting = [choice for rank, choice in ranked if rank[0] < _IMPOSSIBLE]
    for choice in fitting:
        if choice.runtime_class not in context.retiring:
            return choice
    retired = fitting[0].runtime_class if fitting else ""
    return ClassSelection(pod, cluster.place(pod, images), retiring=retired)


def _place_everywhere(pod: Pod, context: SelectionContext, images: ImagesByReference) -> Placement:
    """Evaluate a DaemonSet node by node, since each of its pods gets its own class."""
    cluster = context.cluster
    placement = cluster.place(pod, images)
    if placement.refusals:
        return placement
    nodes = {node.name: node for node in cluster.nodes}
    verdicts = []
    for verdict in placement.verdicts:
        if verdict.outcome is Outcome.FAILS:
            single = Cluster((nodes[verdict.nodes[0]],), cluster.classes.values(), cluster.handlers)
            choice = select_class(
                replace(pod, is_daemon=False), replace(context, cluster=single), images
            )
            if choice.placement.status is Status.RUNS:
                verdict = replace(choice.placement.verdicts[0], nodes=verdict.nodes)
        verdicts.append(verdict)
    outcomes = {verdict.outcome for verdict in verdicts}
    status = placement.status
    if Outcome.RUNS in outcomes:
        status = Status.MAY_FAIL if Outcome.FAILS in outcomes else Status.RUNS
    return replace(placement, status=status, verdicts=tuple(verdicts))


def _class_candidates(
    pod: Pod, context: SelectionContext, images: ImagesByReference
) -> Iterable[ClassSelection]:
    cluster = context.cluster
    for name, runtime_class in cluster.classes.items():
        if _selects_one_build(runtime_class) and cluster.handlers.find(runtime_class.handler):
            classed = replace(pod, runtime_class=name)
            yield ClassSelection(classed, cluster.place(classed, images), runtime_class=name)


def _selects_one_build(runtime_class: RuntimeClass) -> bool:
    """Whether the class selects only by build or handler; others must be named explicitly."""
    keys = {
        key for key, _ in runtime_class.node_selector if not key.startswith(HANDLER_LABEL_PREFIX)
    }
    by_handler = len(keys) < len(runtime_class.node_selector)
    return keys <= _COMMON_LABELS and (by_handler or bool(keys & _BUILD_LABELS))


def _node_candidates(
    pod: Pod, context: SelectionContext, images: ImagesByReference
) -> Iterable[ClassSelection]:
    """Apply the scheduling of the process isolation classes to the pod itself."""
    own = dict(pod.node_selector)
    for offered in _process_classes_of(context.cluster, context.settings):
        if any(own.get(key, value) != value for key, value in offered.node_selector):
            continue
        selector = tuple(pair for pair in offered.node_selector if pair[0] not in own)
        tolerations = tuple(t for t in offered.tolerations if t not in pod.tolerations)
        selecting = replace(
            pod,
            node_selector=tuple(sorted((*pod.node_selector, *selector))),
            tolerations=pod.tolerations + tolerations,
        )
        placement = context.cluster.place(selecting, images)
        yield ClassSelection(selecting, placement, node_selector=selector, tolerations=tolerations)


_process_classes: WeakKeyDictionary[
    NodeGroups, tuple[OperatorSettings, tuple[RuntimeClass, ...]]
] = WeakKeyDictionary()


def _process_classes_of(cluster: Cluster, settings: OperatorSettings) -> tuple[RuntimeClass, ...]:
    """Return the process isolation classes; cached until a node or the settings change."""
    cached_for, offered = _process_classes.get(cluster.groups, (None, ()))
    if cached_for != settings:
        desired = desired_classes(cluster.nodes, replace(settings, classes=True))
        classes = (d.runtime_class for d in desired)
        offered = tuple(c for c in classes if c.handler == PROCESS_HANDLER.name)
        _process_classes[cluster.groups] = (settings, offered)
    return offered


_Rank = tuple[int, bool, bool, int, Decimal, str]


def _rank(choice: ClassSelection, cluster: Cluster, images: ImagesByReference) -> _Rank:
    """Rank a selection; lower is better."""
    placement = choice.placement
    best = min(
        (_quality(v) for v in placement.verdicts if _is_candidate(v)), default=(True, True, 0)
    )
    runtime_class = cluster.classes.get(choice.runtime_class)
    overhead = (
        sum((amount for _, amount in runtime_class.overhead), Decimal(0))
        if runtime_class
        else Decimal(0)
    )
    return (_status_rank(choice, cluster, images), *best, overhead, choice.runtime_class)


def _status_rank(choice: ClassSelection, cluster: Cluster, images: ImagesByReference) -> int:
    if choice.placement.status in _STATUSES:
        return _STATUSES.index(choice.placement.status)
    if is_pending_only(choice.placement):
        return _STATUSES.index(Status.WAITS)
    return _NEEDS_NODE if may_be_provisioned(choice.pod, cluster, images) else _IMPOSSIBLE


def _is_candidate(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.RUNS or bool(verdict.manifests)


def _quality(verdict: Verdict) -> tuple[bool, bool, int]:
    kernel = verdict.kernel or Build(0, 0, 0)
    builds = [m.platform.build for _, m in verdict.manifests]
    exact = all(build is not None and build.base == kernel.base for build in builds)
    return (verdict.isolation is Isolation.HYPERVISOR, not exact, -kernel.number)


def is_pending_only(placement: Placement) -> bool:
    """Whether some node is blocked only by a taint, a cordon or insufficient resources."""
    return not placement.refusals and any(
        verdict.outcome is Outcome.BLOCKED
        and not is_excluded_by_pod(verdict.reasons)
        and all(reason.cause in _TEMPORARY_CAUSES for reason in verdict.reasons)
        for verdict in placement.verdicts
    )


def may_be_provisioned(pod: Pod, cluster: Cluster, images: ImagesByReference) -> bool:
    """Whether a future node could run the pod, and no existing node has the labels it selects."""
    placement = cluster.place(pod, images)
    if placement.refusals or not all(is_excluded_by_pod(v.reasons) for v in placement.verdicts):
        return False
    admitted, _ = admit_with_runtime_class(pod, cluster.classes)
    return any(
        evaluate_node(admitted, node, images, cluster.handlers).outcome
        in (Outcome.RUNS, Outcome.UNKNOWN)
        for node in pending_nodes(admitted.pod, cluster, images)
    )

"""RuntimeClass admission and scheduling predicates, as in the API server and the scheduler.

Inter-pod affinity, topology spread and the node affinity of volumes are not evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from winpod.field_reader import Quantities
from winpod.labels import UNSCHEDULABLE_TAINT
from winpod.placement.model import Node, Pod, RuntimeClass, Taint, Toleration
from winpod.placement.verdicts import Cause, Reason, Stage

_CORDON = Taint(UNSCHEDULABLE_TAINT)
TERMINAL_PHASES = ("Succeeded", "Failed")
"""Phases in which a pod no longer uses resources of its node."""


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod merged with its RuntimeClass, and which class each selected label came from."""

    pod: Pod
    handler: str = ""
    selector_from: Mapping[str, str] = field(default_factory=dict, compare=False)


def admit_with_runtime_class(
    pod: Pod, classes: Mapping[str, RuntimeClass]
) -> tuple[AdmittedPod, tuple[Reason, ...]]:
    """Merge the pod with its RuntimeClass as the API server does; return reasons to reject it."""
    if not pod.runtime_class:
        return AdmittedPod(pod), tuple(_stray_overhead(pod))
    chosen = classes.get(pod.runtime_class)
    if chosen is None:
        message = f'there is no RuntimeClass "{pod.runtime_class}"'
        symptom = f'pod rejected: RuntimeClass "{pod.runtime_class}" not found'
        return AdmittedPod(pod), (_refusal(message, symptom, pod.runtime_class),)
    selector = dict(pod.node_selector)
    refusals = [
        _refusal(
            f"the pod selects {key}={selector[key]}, but its RuntimeClass {chosen.name} "
            f"selects {value}",
            f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
            f"pod.spec.nodeSelector[{key}] = {selector[key]}",
            key,
        )
        for key, value in chosen.node_selector
        if selector.get(key, value) != value
    ]
    if not chosen.overhead:
        refusals += _stray_overhead(pod)
    elif pod.overhead and pod.overhead != chosen.overhead:
        refusals.append(
            _refusal(
                f"the pod's overhead differs from that of its RuntimeClass {chosen.name}",
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
                "overhead",
            )
        )
    merged = replace(
        pod,
        node_selector=tuple(sorted((dict(chosen.node_selector) | selector).items())),
        tolerations=pod.tolerations + chosen.tolerations,
        overhead=chosen.overhead,
    )
    origin = {key: chosen.name for key, _ in chosen.node_selector if key not in selector}
    return AdmittedPod(merged, chosen.handler, origin), tuple(refusals)


def _stray_overhead(pod: Pod) -> Iterable[Reason]:
    if pod.overhead:
        yield _refusal(
            "the pod sets an overhead, but its RuntimeClass defines none",
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            "overhead",
        )


def _refusal(message: str, symptom: str, subject: str) -> Reason:
    return Reason(Cause.RUNTIME_CLASS, Stage.ADMIT, message, symptom, subject)


def scheduling_reasons(admitted: AdmittedPod, node: Node) -> Iterable[Reason]:
    pod = admitted.pod
    if pod.node_name and pod.node_name != node.name:
        yield _unscheduled(Cause.NODE_NAME, f"spec.nodeName is {pod.node_name}", pod.node_name)
        return
    if node.unschedulable and not pod.node_name and not _tolerated(_CORDON, pod.tolerations):
        yield replace(_unscheduled(Cause.CORDONED, "the node is cordoned"), temporary=True)
    for taint in node.taints:
        if taint.key == UNSCHEDULABLE_TAINT and node.unschedulable:
            continue
        if pod.node_name and taint.effect == "NoSchedule":
            continue  # a pod with nodeName bypasses the scheduler, which checks this effect
        if taint.blocks_scheduling and not _tolerated(taint, pod.tolerations):
            yield _unscheduled(Cause.TAINT, f"taint {taint} is not tolerated", str(taint))
    for key, value in pod.node_selector:
        if node.label(key) != value:
            origin = admitted.selector_from.get(key)
            source = f"RuntimeClass {origin}" if origin else "nodeSelector"
            yield _unscheduled(Cause.SELECTOR, f"{source} requires {key}={value}", key)
    if pod.affinity is not None and not _matches_affinity(pod, node):
        terms = " or ".join(str(term) for term in pod.affinity) or "nothing"
        yield _unscheduled(Cause.AFFINITY, f"required node affinity is {terms}")


_CHOICES = (Cause.NODE_NAME, Cause.SELECTOR, Cause.AFFINITY)


def is_excluded_by_pod(reasons: Iterable[Reason]) -> bool:
    """Whether the pod or its RuntimeClass selects other nodes."""
    return any(reason.cause in _CHOICES for reason in reasons)


def _unscheduled(cause: Cause, message: str, subject: str = "") -> Reason:
    return Reason(cause, Stage.SCHEDULE, message, subject=subject)


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(t.tolerates(taint) for t in tolerations)


def _matches_affinity(pod: Pod, node: Node) -> bool:
    labels = dict(node.labels)
    return any(
        bool(term.labels or term.fields)
        and all(r.matches(labels.get(r.key)) for r in term.labels)
        and all(r.key == "metadata.name" and r.matches(node.name) for r in term.fields)
        for term in pod.affinity or ()
    )


def scheduling_requests(pod: Pod) -> Quantities:
    """Return what the scheduler accounts for: requests, RuntimeClass overhead and one pod."""
    total = dict(pod.requests)
    for resource, amount in (*pod.overhead, ("pods", Decimal(1))):
        total[resource] = total.get(resource, Decimal(0)) + amount
    return tuple(sorted((resource, amount) for resource, amount in total.items() if amount))


def with_allocated(nodes: Iterable[Node], pods: Iterable[Pod]) -> tuple[Node, ...]:
    """Return the nodes with the requests of their bound pods as `allocated`."""
    allocated: dict[str, dict[str, Decimal]] = {}
    for pod in pods:
        sums = allocated.setdefault(pod.node_name, {})
        for resource, amount in scheduling_requests(pod):
            sums[resource] = sums.get(resource, Decimal(0)) + amount
    return tuple(
        replace(node, allocated=tuple(sorted(allocated.get(node.name, {}).items())))
        for node in nodes
    )

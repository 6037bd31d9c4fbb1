"""What the API server and the scheduler ask of a pod before a node ever sees it.

Inter-pod affinity, topology spread and the node affinity of volumes are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from winpod.windows.objects import Node, Pod, RuntimeClass, Taint, Toleration
from winpod.windows.reading import Amounts
from winpod.windows.verdicts import Cause, Reason, Stage

CORDON = Taint("node.kubernetes.io/unschedulable")
ENDED_PHASES = ("Succeeded", "Failed")
"""A pod that has ended takes no room on its node."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod merged with its RuntimeClass, and which class each selected label came from."""

    pod: Pod
    handler: str = ""
    selector_from: Mapping[str, str] = field(default_factory=dict, compare=False)


def admit(pod: Pod, classes: Mapping[str, RuntimeClass]) -> tuple[Admitted, tuple[Reason, ...]]:
    """Merge the pod with its RuntimeClass as the API server does, or say why it refuses to."""
    if not pod.runtime_class:
        return Admitted(pod), tuple(_stray_overhead(pod))
    chosen = classes.get(pod.runtime_class)
    if chosen is None:
        sentence = f'there is no RuntimeClass "{pod.runtime_class}"'
        symptom = f'pod rejected: RuntimeClass "{pod.runtime_class}" not found'
        return Admitted(pod), (_refusal(sentence, symptom, pod.runtime_class),)
    selector = dict(pod.node_selector)
    refusals = [
        _refusal(
            f"the pod selects {key}={selector[key]}, and its RuntimeClass {chosen.name} {value}",
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
                f"the pod's overhead is not that of its RuntimeClass {chosen.name}",
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
    return Admitted(merged, chosen.handler, origin), tuple(refusals)


def _stray_overhead(pod: Pod) -> Iterable[Reason]:
    if pod.overhead:
        yield _refusal(
            "the pod has an overhead, and no RuntimeClass gives it one",
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            "overhead",
        )


def _refusal(sentence: str, symptom: str, about: str) -> Reason:
    return Reason(Cause.RUNTIME_CLASS, Stage.ADMIT, sentence, symptom, about)


def scheduling_reasons(admitted: Admitted, node: Node) -> Iterable[Reason]:
    pod = admitted.pod
    if pod.node_name and pod.node_name != node.name:
        yield _unscheduled(Cause.NODE_NAME, f"spec.nodeName is {pod.node_name}", pod.node_name)
        return
    if node.unschedulable and not pod.node_name and not _tolerated(CORDON, pod.tolerations):
        yield replace(_unscheduled(Cause.CORDONED, "the node is cordoned"), temporary=True)
    for taint in node.taints:
        if taint.key == CORDON.key and node.unschedulable:
            continue
        if pod.node_name and taint.effect == "NoSchedule":
            continue  # the scheduler, which would have looked at it, is not asked
        if taint.repels and not _tolerated(taint, pod.tolerations):
            yield _unscheduled(Cause.TAINT, f"taint {taint} is not tolerated", str(taint))
    for key, value in pod.node_selector:
        if node.label(key) != value:
            origin = admitted.selector_from.get(key)
            who = f"RuntimeClass {origin}" if origin else "nodeSelector"
            yield _unscheduled(Cause.SELECTOR, f"{who} wants {key}={value}", key)
    if pod.affinity is not None and not _affine(pod, node):
        wanted = " or ".join(str(term) for term in pod.affinity) or "nothing"
        yield _unscheduled(Cause.AFFINITY, f"required node affinity wants {wanted}")


_CHOICES = (Cause.NODE_NAME, Cause.SELECTOR, Cause.AFFINITY)


def is_out_of_reach(reasons: Iterable[Reason]) -> bool:
    """Whether the pod, or its RuntimeClass, has chosen other nodes than this."""
    return any(reason.cause in _CHOICES for reason in reasons)


def _unscheduled(cause: Cause, sentence: str, about: str = "") -> Reason:
    return Reason(cause, Stage.SCHEDULE, sentence, about=about)


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(t.tolerates(taint) for t in tolerations)


def _affine(pod: Pod, node: Node) -> bool:
    labels = dict(node.labels)
    return any(
        bool(term.labels or term.fields)
        and all(r.accepts(labels.get(r.key)) for r in term.labels)
        and all(r.key == "metadata.name" and r.accepts(node.name) for r in term.fields)
        for term in pod.affinity or ()
    )


def needs(pod: Pod) -> Amounts:
    """What the scheduler sets aside: requests, the RuntimeClass's overhead, and one pod."""
    total = dict(pod.requests)
    for resource, amount in (*pod.overhead, ("pods", Decimal(1))):
        total[resource] = total.get(resource, Decimal(0)) + amount
    return tuple(sorted((resource, amount) for resource, amount in total.items() if amount))


def with_allocated(nodes: Iterable[Node], pods: Iterable[Pod]) -> tuple[Node, ...]:
    """The nodes, with what the pods that are bound to them take counted as taken."""
    taken: dict[str, dict[str, Decimal]] = {}
    for pod in pods:
        sums = taken.setdefault(pod.node_name, {})
        for resource, amount in needs(pod):
            sums[resource] = sums.get(resource, Decimal(0)) + amount
    return tuple(
        replace(node, allocated=tuple(sorted(taken.get(node.name, {}).items()))) for node in nodes
    )

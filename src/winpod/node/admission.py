"""Whether the node takes a pod that was bound to it, and in which words it does not.

The scheduler has chosen already, but not always, and not always with what is true now. A pod that
is not taken has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

from lightkube.models import core_v1 as v1

from winpod.node.facts import NodeFacts
from winpod.node.known import Why
from winpod.node.pods import is_critical, qos_class
from winpod.node.requests import metadata_of, spec_of
from winpod.windows import objects
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import OS_LABEL
from winpod.windows.reading import Amounts
from winpod.windows.scheduling import Admitted, needs, scheduling_reasons
from winpod.windows.verdicts import Cause

_COUNTED = ("pods", "cpu", "memory", "ephemeral-storage")
_SCALE = {"cpu": 1000}
_PREDICATES = {
    Cause.SELECTOR: (
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
    ),
    Cause.AFFINITY: (
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
    ),
    Cause.NODE_NAME: ("NodeName", "node(s) didn't match the requested node name"),
    Cause.TAINT: ("TaintToleration", "node(s) had untolerated taint(s)"),
}


Port = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a pod that was taken leaves less of: amounts, and ports of the host."""

    needs: Amounts
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Lack:
    """A resource that the node has too little of for a pod."""

    name: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        return self.requested - (self.capacity - self.used)

    @property
    def why(self) -> Why:
        return Why(
            f"OutOf{self.name}",
            f"Node didn't have enough resource: {self.name}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}",
        )


def taken_by(pod: v1.Pod) -> Taken:
    """Nothing where it cannot be read: such a pod was not taken, or only the runtime knows it."""
    try:
        return Taken(needs(_read(pod)), tuple(_host_ports(pod)))
    except InvalidInput:
        return Taken(())


def refusal(
    pod: v1.Pod,
    others: Iterable[Taken],
    facts: NodeFacts,
    node: v1.Node | None,
    pressures: frozenset[str] = frozenset(),
) -> Why | None:
    """Why the pod is not taken beside the others; None where it is.

    `node` is the node as others see it: its labels and taints may have been changed. `pressures`
    are its conditions that keep pods away.
    """
    reasons = _reasons(pod, list(others), facts, node, pressures)
    try:
        return next(reasons, None)
    except InvalidInput as error:
        return Why("UnexpectedAdmissionError", str(error))


def _reasons(
    pod: v1.Pod,
    others: list[Taken],
    facts: NodeFacts,
    node: v1.Node | None,
    pressures: frozenset[str],
) -> Iterator[Why]:
    if pressed := _pressed(pod, pressures):
        yield Why("Evicted", f"The node had condition: [{pressed}]. ")
    yield from _other_system(pod)
    yield from (lack.why for lack in lacks(pod, others, facts))
    if _has_taken_port(pod, others):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    template = _read(pod)
    placed = replace(template, node_name=template.node_name or facts.name)
    for reason in scheduling_reasons(Admitted(placed), _as_seen(facts, node)):
        if reason.cause in _PREDICATES:
            yield _failed(*_PREDICATES[reason.cause])


def _failed(predicate: str, sentence: str) -> Why:
    return Why(predicate, f"Predicate {predicate} failed: {sentence}")


def _read(pod: v1.Pod) -> objects.Pod:
    """The pod as placement knows it."""
    return objects.Pod.from_template(pod.to_dict())


def _pressed(pod: v1.Pod, pressures: frozenset[str]) -> str:
    """The condition that keeps the pod away: memory keeps only those that ask for none.

    Critical pods come in any case.
    """
    if is_critical(pod):
        return ""
    keys = {"MemoryPressure": "memory-pressure", "DiskPressure": "disk-pressure"}
    tolerations = _read(pod).tolerations
    for condition in sorted(pressures):
        taint = objects.Taint(f"node.kubernetes.io/{keys.get(condition, condition)}")
        if any(toleration.tolerates(taint) for toleration in tolerations):
            continue
        if condition == "MemoryPressure" and qos_class(pod) != "BestEffort":
            continue
        return condition
    return ""


def _other_system(pod: v1.Pod) -> Iterator[Why]:
    label = (metadata_of(pod).labels or {}).get(OS_LABEL, "windows")
    if label != "windows":
        yield Why(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    stated = spec_of(pod).os
    if stated and stated.name != "windows":
        yield Why("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")


def lacks(pod: v1.Pod, others: Iterable[Taken], facts: NodeFacts) -> list[Lack]:
    """What the node has too little of beside the others."""
    used: dict[str, Decimal] = {}
    for other in others:
        for name, amount in other.needs:
            used[name] = used.get(name, Decimal(0)) + amount
    tables = dict(needs(_read(pod))), used, facts.allocatable()
    found = [Lack(name, *(whole(name, table) for table in tables)) for name in _COUNTED]
    return [lack for lack in found if lack.requested and lack.missing > 0]


def whole(name: str, amounts: Mapping[str, Decimal]) -> int:
    """An amount as refusals write it: thousandths of processors, bytes, pods."""
    amount = amounts.get(name, Decimal(0)) * _SCALE.get(name, 1)
    return int(amount.to_integral_value(ROUND_CEILING))


def _has_taken_port(pod: v1.Pod, others: Iterable[Taken]) -> bool:
    taken = [port for other in others for port in other.ports]
    return any(_collide(mine, theirs) for mine in _host_ports(pod) for theirs in taken)


def _host_ports(pod: v1.Pod) -> Iterator[Port]:
    for container in spec_of(pod).containers:
        for port in container.ports or ():
            if port.hostPort:
                yield port.hostIP or "0.0.0.0", port.protocol or "TCP", port.hostPort  # noqa: S104


def _collide(one: Port, other: Port) -> bool:
    anywhere = "0.0.0.0" in (one[0], other[0])  # noqa: S104
    return one[1:] == other[1:] and (anywhere or one[0] == other[0])


def _as_seen(facts: NodeFacts, node: v1.Node | None) -> objects.Node:
    own = objects.Node(
        name=facts.name, labels=tuple(sorted(facts.all_labels.items())), taints=facts.taints
    )
    if node is None:
        return own
    seen = objects.Node.from_object(node.to_dict())
    labels = facts.all_labels | dict(seen.labels)
    return replace(own, labels=tuple(sorted(labels.items())), taints=seen.taints)

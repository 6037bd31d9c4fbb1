"""Admission predicates: whether the node can run a pod that was bound to it, or resize one.

The scheduler may have been bypassed, or have used outdated data; a rejected pod fails. A kubelet on
Windows refuses to resize pods in place. Here it is supported because the runtime can do it; until
the node accepts new resources, the pod keeps the allocated ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

from winpod.errors import InvalidInput
from winpod.field_reader import Quantities
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import is_critical, metadata_of, qos_class, spec_of, with_fields
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.status.phase import PodCondition, StatusReason
from winpod.labels import DISK_PRESSURE_TAINT, MEMORY_PRESSURE_TAINT, OS_LABEL, PID_PRESSURE_TAINT
from winpod.placement import model
from winpod.placement.predicates import AdmittedPod, scheduling_reasons, scheduling_requests
from winpod.placement.verdicts import Cause

_CHECKED_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")
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
_PRESSURE_TAINTS = {
    "MemoryPressure": MEMORY_PRESSURE_TAINT,
    "DiskPressure": DISK_PRESSURE_TAINT,
    "PIDPressure": PID_PRESSURE_TAINT,
}


Port = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class AllocatedResources:
    """The resources and host ports that an admitted pod occupies."""

    needs: Quantities
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class InsufficientResource:
    """A resource that the node has too little of for a pod."""

    name: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        return self.requested - (self.capacity - self.used)

    @property
    def message(self) -> StatusReason:
        return StatusReason(
            f"OutOf{self.name}",
            f"Node didn't have enough resource: {self.name}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}",
        )


def allocated_by(pod: v1.Pod) -> AllocatedResources:
    """Return what a pod occupies.

    Empty if it cannot be parsed: such a pod was rejected, or is known from the runtime only.
    """
    try:
        return AllocatedResources(scheduling_requests(_placement_pod(pod)), tuple(_host_ports(pod)))
    except InvalidInput:
        return AllocatedResources(())


def admission_failure(
    pod: v1.Pod,
    others: Iterable[AllocatedResources],
    node_config: NodeConfig,
    node: v1.Node | None,
    pressures: frozenset[str] = frozenset(),
) -> StatusReason | None:
    """Return why the pod is rejected beside the others, or None.

    `node` is the Node object, whose labels and taints may have been changed. `pressures` are its
    conditions that reject pods.
    """
    reasons = _reasons(pod, list(others), node_config, node, pressures)
    try:
        return next(reasons, None)
    except InvalidInput as error:
        return StatusReason("UnexpectedAdmissionError", str(error))


def _reasons(
    pod: v1.Pod,
    others: list[AllocatedResources],
    node_config: NodeConfig,
    node: v1.Node | None,
    pressures: frozenset[str],
) -> Iterator[StatusReason]:
    if pressure := _rejecting_pressure(pod, pressures):
        yield StatusReason("Evicted", f"The node had condition: [{pressure}]. ")
    yield from _os_mismatches(pod)
    yield from (shortage.message for shortage in insufficient_resources(pod, others, node_config))
    if _has_port_conflict(pod, others):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    template = _placement_pod(pod)
    placed = replace(template, node_name=template.node_name or node_config.name)
    for reason in scheduling_reasons(AdmittedPod(placed), _placement_node(node_config, node)):
        if reason.cause in _PREDICATES:
            yield _failed(*_PREDICATES[reason.cause])


def _failed(predicate: str, sentence: str) -> StatusReason:
    return StatusReason(predicate, f"Predicate {predicate} failed: {sentence}")


def _placement_pod(pod: v1.Pod) -> model.Pod:
    """Convert the pod to placement's model."""
    return model.Pod.from_template(pod.to_dict())


def _rejecting_pressure(pod: v1.Pod, pressures: frozenset[str]) -> str:
    """Return the pressure condition that rejects the pod.

    Memory pressure rejects only BestEffort pods. Critical pods are always admitted.
    """
    if is_critical(pod):
        return ""
    tolerations = _placement_pod(pod).tolerations
    for condition in sorted(pressures):
        taint = model.Taint(_PRESSURE_TAINTS[condition])
        if any(toleration.tolerates(taint) for toleration in tolerations):
            continue
        if condition == "MemoryPressure" and qos_class(pod) != "BestEffort":
            continue
        return condition
    return ""


def _os_mismatches(pod: v1.Pod) -> Iterator[StatusReason]:
    label = (metadata_of(pod).labels or {}).get(OS_LABEL, "windows")
    if label != "windows":
        yield StatusReason(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    pod_os = spec_of(pod).os
    if pod_os and pod_os.name != "windows":
        yield StatusReason(
            "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
        )


def insufficient_resources(
    pod: v1.Pod, others: Iterable[AllocatedResources], node_config: NodeConfig
) -> list[InsufficientResource]:
    """Return the resources that do not suffice beside the others."""
    used: dict[str, Decimal] = {}
    for other in others:
        for name, amount in other.needs:
            used[name] = used.get(name, Decimal(0)) + amount
    tables = dict(scheduling_requests(_placement_pod(pod))), used, node_config.allocatable()
    resources = [
        InsufficientResource(name, *(format_amount(name, table) for table in tables))
        for name in _CHECKED_RESOURCES
    ]
    return [r for r in resources if r.requested and r.missing > 0]


def format_amount(name: str, amounts: Mapping[str, Decimal]) -> int:
    """Return an amount in the units of rejection messages: millicores, bytes, pods."""
    amount = amounts.get(name, Decimal(0)) * _SCALE.get(name, 1)
    return int(amount.to_integral_value(ROUND_CEILING))


def _has_port_conflict(pod: v1.Pod, others: Iterable[AllocatedResources]) -> bool:
    occupied = [port for other in others for port in other.ports]
    return any(_collide(requested, used) for requested in _host_ports(pod) for used in occupied)


def _host_ports(pod: v1.Pod) -> Iterator[Port]:
    for container in spec_of(pod).containers:
        for port in container.ports or ():
            if port.hostPort:
                yield port.hostIP or "0.0.0.0", port.protocol or "TCP", port.hostPort  # noqa: S104


def _collide(port: Port, other: Port) -> bool:
    anywhere = "0.0.0.0" in (port[0], other[0])  # noqa: S104
    return port[1:] == other[1:] and (anywhere or port[0] == other[0])


def _placement_node(node_config: NodeConfig, node: v1.Node | None) -> model.Node:
    own = model.Node(
        name=node_config.name,
        labels=tuple(sorted(node_config.all_labels.items())),
        taints=node_config.taints,
    )
    if node is None:
        return own
    registered = model.Node.from_object(node.to_dict())
    labels = node_config.all_labels | dict(registered.labels)
    return replace(own, labels=tuple(sorted(labels.items())), taints=registered.taints)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The pod with its allocated resources, and why a resize is pending."""

    pod: v1.Pod
    pending: PodCondition | None = None


def allocate_resize(
    pod: v1.Pod, allocated: v1.Pod, others: Iterable[AllocatedResources], node_config: NodeConfig
) -> Allocation:
    if not is_resized(pod, allocated):
        return Allocation(pod)
    if failure := admission_failure(pod, (), node_config, None):
        return Allocation(
            _with_resources(pod, _by_name(allocated)), _pending("Infeasible", failure.message)
        )
    if failure := admission_failure(pod, others, node_config, None):
        return Allocation(
            _with_resources(pod, _by_name(allocated)), _pending("Deferred", failure.message)
        )
    return Allocation(pod)


def with_allocated_resources(pod: v1.Pod) -> v1.Pod:
    """Restore the allocated resources from the status that an earlier process reported."""
    statuses = (pod.status and pod.status.containerStatuses) or ()
    return _with_resources(pod, {s.name: s.resources for s in statuses if s.resources})


def is_resized(pod: v1.Pod, allocated: v1.Pod) -> bool:
    return _by_name(pod) != _by_name(allocated)


_Resources = Mapping[str, v1.ResourceRequirements | None]


def _by_name(pod: v1.Pod) -> _Resources:
    return {
        container.name: container.resources or v1.ResourceRequirements()
        for container in spec_of(pod).containers
    }


def _with_resources(pod: v1.Pod, allocated: _Resources) -> v1.Pod:
    containers = [
        with_fields(container, resources=allocated.get(container.name, container.resources))
        for container in spec_of(pod).containers
    ]
    return with_fields(pod, spec=with_fields(spec_of(pod), containers=containers))


def _pending(reason: str, message: str) -> PodCondition:
    return PodCondition("PodResizePending", True, reason, message)

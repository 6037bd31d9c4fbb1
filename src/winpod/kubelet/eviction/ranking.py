"""Which pods to evict when the node runs low, and the messages of their eviction.

Ranked as in the kubelet: pods whose usage exceeds their requests first, then by priority, then by
the excess. Pods that exceed a limit of their own are evicted in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    init_containers,
    is_critical,
    metadata_of,
    priority_of,
    regular_containers,
    spec_of,
)
from winpod.kubelet.admission.predicates import allocated_by
from winpod.kubelet.eviction.thresholds import EvictionThresholds
from winpod.kubelet.stats import DiskSpace
from winpod.quantities import format_quantity, parse_quantity

MEMORY, STORAGE = "memory", "ephemeral-storage"
EVICTED_REASON = "Evicted"
PRESSURE_CONDITIONS = {MEMORY: "MemoryPressure", STORAGE: "DiskPressure"}


@dataclass(frozen=True, slots=True)
class EvictionSignals:
    memory: DiskSpace
    node_disk: DiskSpace
    image_disk: DiskSpace


@dataclass(frozen=True, slots=True)
class ExceededThreshold:
    resource: str
    threshold: int
    available: int


@dataclass(frozen=True, slots=True)
class MeasuredContainer:
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredPod:
    """The usage of a pod: containers including logs, and emptyDir volumes."""

    containers: Mapping[str, MeasuredContainer] = field(default_factory=dict)
    volumes: Mapping[str, int] = field(default_factory=dict)

    def of_resource(self, resource: str) -> int:
        if resource == MEMORY:
            return sum(use.memory_bytes for use in self.containers.values())
        used = sum(use.disk_bytes for use in self.containers.values())
        return used + sum(self.volumes.values())


def exceeded_thresholds(
    signals: EvictionSignals, thresholds: EvictionThresholds
) -> list[ExceededThreshold]:
    """Return each exceeded resource once, memory first."""
    checks = [
        (MEMORY, signals.memory, thresholds.memory),
        (STORAGE, signals.node_disk, thresholds.node_disk),
        (STORAGE, signals.image_disk, thresholds.image_disk),
    ]
    exceeded: dict[str, ExceededThreshold] = {}
    for resource, space, limit in checks:
        threshold = limit.bytes_of(space.size)
        if space.size and space.available < threshold:
            exceeded.setdefault(resource, ExceededThreshold(resource, threshold, space.available))
    return list(exceeded.values())


def select_victim(
    pods: Iterable[v1.Pod], use: Mapping[str, MeasuredPod], resource: str
) -> v1.Pod | None:
    """Return the pod to evict; critical pods are never evicted."""
    candidates = [pod for pod in pods if not is_critical(pod)]

    def order(pod: v1.Pod) -> tuple[bool, int, Decimal]:
        over = _over_request(pod, use, resource)
        return (over <= 0, priority_of(pod), -over)

    return min(candidates, key=order, default=None)


def _over_request(pod: v1.Pod, use: Mapping[str, MeasuredPod], resource: str) -> Decimal:
    used = use.get(metadata_of(pod).uid or "", MeasuredPod()).of_resource(resource)
    return used - dict(allocated_by(pod).needs).get(resource, Decimal(0))


def eviction_message(pod: v1.Pod, use: MeasuredPod, shortage: ExceededThreshold) -> str:
    resource = shortage.resource
    threshold, available = (
        _format_amount(resource, n) for n in (shortage.threshold, shortage.available)
    )
    message = f"The node was low on resource: {resource}. "
    message += f"Threshold quantity: {threshold}, available: {available}. "
    for container in (*regular_containers(pod), *init_containers(pod)):
        measured = use.containers.get(container.name, MeasuredContainer())
        used = measured.memory_bytes if resource == MEMORY else measured.disk_bytes
        requested = _limit(container.resources.requests if container.resources else None, resource)
        if used > requested:
            message += (
                f"Container {container.name} was using {_format_amount(resource, used)}, "
                f"request is {_format_amount(resource, requested)}, "
                f"has larger consumption of {resource}. "
            )
    return message


def exceeded_limit(pod: v1.Pod, use: MeasuredPod) -> str:
    """Return the message for a storage limit of its own that the pod exceeds, or ""."""
    for volume in spec_of(pod).volumes or ():
        text = volume.emptyDir.sizeLimit if volume.emptyDir else None
        size = parse_quantity(str(text)) if text else None
        if size and use.volumes.get(volume.name, 0) > size:
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{text}". '
    limits = {c.name: _limit(_limits(c), STORAGE) for c in regular_containers(pod)}
    total = sum(limits.values())
    if all(limits.values()) and use.of_resource(STORAGE) > total:
        return (
            "Pod ephemeral local storage usage exceeds the total limit of containers "
            f"{_format_amount(STORAGE, total)}. "
        )
    for container in regular_containers(pod):
        limit = limits[container.name]
        if limit and use.containers.get(container.name, MeasuredContainer()).disk_bytes > limit:
            shown = (_limits(container) or {})[STORAGE]
            return (
                f'Container {container.name} exceeded its local ephemeral storage limit "{shown}". '
            )
    return ""


def has_disk_limits(pod: v1.Pod) -> bool:
    """Whether the pod's disk usage must be measured even without disk pressure."""
    sized = any(v.emptyDir and v.emptyDir.sizeLimit for v in spec_of(pod).volumes or ())
    return sized or any(_limit(_limits(c), STORAGE) for c in regular_containers(pod))


def _limits(container: v1.Container) -> Mapping[str, str] | None:
    return container.resources.limits if container.resources else None


def _limit(amounts: Mapping[str, str] | None, resource: str) -> int:
    return int(parse_quantity(str((amounts or {}).get(resource, "0"))) or 0)


def _format_amount(resource: str, amount: int) -> str:
    return format_quantity(resource, Decimal(amount))

"""Which pods have to go when the node runs short, in which order, and with which words.

First those that use more than they asked for, then by priority, then by how much more. Pods that
break a limit of their own go in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from lightkube.models import core_v1 as v1

from winpod.node.admission import taken_by
from winpod.node.pods import init_containers, is_critical, priority_of, regular_containers
from winpod.node.requests import metadata_of, spec_of
from winpod.node.thresholds import Thresholds
from winpod.windows.quantities import format_quantity, parse_quantity

MEMORY, STORAGE = "memory", "ephemeral-storage"
EVICTED = "Evicted"
CONDITIONS = {MEMORY: "MemoryPressure", STORAGE: "DiskPressure"}


@dataclass(frozen=True, slots=True)
class Room:
    available: int
    size: int


@dataclass(frozen=True, slots=True)
class Signals:
    memory: Room
    node_disk: Room
    image_disk: Room


@dataclass(frozen=True, slots=True)
class Shortage:
    resource: str
    threshold: int
    available: int


@dataclass(frozen=True, slots=True)
class ContainerUse:
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PodUse:
    """What a pod uses: its containers, with their logs, and its empty directories."""

    containers: Mapping[str, ContainerUse] = field(default_factory=dict)
    volumes: Mapping[str, int] = field(default_factory=dict)

    def of(self, resource: str) -> int:
        if resource == MEMORY:
            return sum(use.memory_bytes for use in self.containers.values())
        used = sum(use.disk_bytes for use in self.containers.values())
        return used + sum(self.volumes.values())


def shortages(signals: Signals, thresholds: Thresholds) -> list[Shortage]:
    """Each resource once, the memory first."""
    asked = [
        (MEMORY, signals.memory, thresholds.memory),
        (STORAGE, signals.node_disk, thresholds.node_disk),
        (STORAGE, signals.image_disk, thresholds.image_disk),
    ]
    found: dict[str, Shortage] = {}
    for resource, room, bound in asked:
        threshold = bound.of(room.size)
        if room.size and room.available < threshold:
            found.setdefault(resource, Shortage(resource, threshold, room.available))
    return list(found.values())


def next_to_go(pods: Iterable[v1.Pod], use: Mapping[str, PodUse], resource: str) -> v1.Pod | None:
    """The pod whose end helps most and hurts least; critical ones stay."""
    candidates = [pod for pod in pods if not is_critical(pod)]

    def order(pod: v1.Pod) -> tuple[bool, int, Decimal]:
        over = _over_request(pod, use, resource)
        return (over <= 0, priority_of(pod), -over)

    return min(candidates, key=order, default=None)


def _over_request(pod: v1.Pod, use: Mapping[str, PodUse], resource: str) -> Decimal:
    used = use.get(metadata_of(pod).uid or "", PodUse()).of(resource)
    return used - dict(taken_by(pod).needs).get(resource, Decimal(0))


def eviction_message(pod: v1.Pod, use: PodUse, shortage: Shortage) -> str:
    resource = shortage.resource
    threshold, available = (_shown(resource, n) for n in (shortage.threshold, shortage.available))
    message = f"The node was low on resource: {resource}. "
    message += f"Threshold quantity: {threshold}, available: {available}. "
    for container in (*regular_containers(pod), *init_containers(pod)):
        known = use.containers.get(container.name, ContainerUse())
        used = known.memory_bytes if resource == MEMORY else known.disk_bytes
        asked = _limit(container.resources.requests if container.resources else None, resource)
        if used > asked:
            message += (
                f"Container {container.name} was using {_shown(resource, used)}, request is "
                f"{_shown(resource, asked)}, has larger consumption of {resource}. "
            )
    return message


def broken_limit(pod: v1.Pod, use: PodUse) -> str:
    """What a pod has filled beyond its own limit; empty where it has kept to all of them."""
    for volume in spec_of(pod).volumes or ():
        text = volume.emptyDir.sizeLimit if volume.emptyDir else None
        size = parse_quantity(str(text)) if text else None
        if size and use.volumes.get(volume.name, 0) > size:
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{text}". '
    limits = {c.name: _limit(_limits(c), STORAGE) for c in regular_containers(pod)}
    total = sum(limits.values())
    if all(limits.values()) and use.of(STORAGE) > total:
        return (
            "Pod ephemeral local storage usage exceeds the total limit of containers "
            f"{_shown(STORAGE, total)}. "
        )
    for container in regular_containers(pod):
        limit = limits[container.name]
        if limit and use.containers.get(container.name, ContainerUse()).disk_bytes > limit:
            shown = (_limits(container) or {})[STORAGE]
            return (
                f'Container {container.name} exceeded its local ephemeral storage limit "{shown}". '
            )
    return ""


def has_disk_limits(pod: v1.Pod) -> bool:
    """Whether its disk has to be measured even while there is room."""
    sized = any(v.emptyDir and v.emptyDir.sizeLimit for v in spec_of(pod).volumes or ())
    return sized or any(_limit(_limits(c), STORAGE) for c in regular_containers(pod))


def _limits(container: v1.Container) -> Mapping[str, str] | None:
    return container.resources.limits if container.resources else None


def _limit(amounts: Mapping[str, str] | None, resource: str) -> int:
    return int(parse_quantity(str((amounts or {}).get(resource, "0"))) or 0)


def _shown(resource: str, amount: int) -> str:
    return format_quantity(resource, Decimal(amount))

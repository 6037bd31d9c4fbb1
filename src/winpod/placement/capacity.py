"""Free capacity of nodes, and the resources a pod is short of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal

from winpod.field_reader import Quantities
from winpod.placement.model import Node
from winpod.placement.node_groups import NodeGroup
from winpod.placement.verdicts import Cause, Reason, Stage
from winpod.quantities import format_quantity

_MAX_RESOURCES = 50
"""Resources that are cached. Pods may name any resource, so the cache must be bounded."""
_UNLIMITED = Decimal("Infinity")
_NONE = Decimal(0)


class FreeCapacity:
    """The free amount of each resource on each node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._amounts: dict[str, list[Decimal]] = {}

    def of_resource(self, resource: str) -> list[Decimal]:
        if resource not in self._amounts:
            if len(self._amounts) >= _MAX_RESOURCES:
                self._amounts.clear()
            self._amounts[resource] = [_free(node, resource) for node in self.nodes]
        return self._amounts[resource]

    def with_nodes(self, nodes: Sequence[Node], indexes: Iterable[int]) -> FreeCapacity:
        """Copy, with the amounts of the nodes at these indexes recalculated."""
        new = FreeCapacity(nodes)
        indexes = tuple(indexes)
        for resource, amounts in self._amounts.items():
            new._amounts[resource] = copied = amounts.copy()
            for index in indexes:
                copied[index] = _free(nodes[index], resource)
        return new


class SortedCapacity:
    """A group's nodes, sorted by free amount so that those too small are found by bisection."""

    def __init__(self, group: NodeGroup, free: FreeCapacity) -> None:
        self._group = group
        self._free = free
        self._sorted: dict[str, list[int]] = {}

    def split_by_fit(self, requests: Quantities) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names of the nodes that fit all requests, and the indexes of the others."""
        short: set[int] = set()
        for resource, amount in requests:
            ascending, free = self._ascending(resource), self._free.of_resource(resource)
            short.update(ascending[: bisect_left(ascending, amount, key=free.__getitem__)])
        if not short:
            return self._group.names, ()
        pairs = zip(self._group.names, self._group.indexes, strict=True)
        return tuple(name for name, index in pairs if index not in short), tuple(sorted(short))

    def _ascending(self, resource: str) -> list[int]:
        if resource not in self._sorted:
            if len(self._sorted) >= _MAX_RESOURCES:
                self._sorted.clear()
            free = self._free.of_resource(resource)
            self._sorted[resource] = sorted(self._group.indexes, key=free.__getitem__)
        return self._sorted[resource]

    def shortfall(self, requests: Quantities, short: Sequence[int]) -> tuple[Reason, ...]:
        """Return what the nodes at these indexes lack; none of them fits the requests."""
        nodes = [self._free.nodes[index] for index in short]
        temporary = any(_fits_empty(size, requests) for size in {n.allocatable for n in nodes})
        reasons = []
        for resource, amount in requests:
            free = self._free.of_resource(resource)
            most = max(free[index] for index in short)
            if most >= amount:
                continue
            emptiest = (n for n, index in zip(nodes, short, strict=True) if free[index] == most)
            size = max(_amount(node.allocatable or (), resource) or _NONE for node in emptiest)
            requested = format_quantity(resource, amount, rounding=ROUND_CEILING)
            left = f"{format_quantity(resource, most)} of {format_quantity(resource, size)}"
            message = f"{resource}: requests {requested}; {left} is free"
            reasons.append(_reason(message, resource, temporary))
        return tuple(reasons) or (
            _reason("no single node has all requested resources free", "", temporary),
        )


def _fits_empty(size: Quantities | None, requests: Quantities) -> bool:
    empty = Node("", allocatable=size)
    return all(_free(empty, resource) >= amount for resource, amount in requests)


def capacity_reasons(node: Node) -> SortedCapacity:
    return SortedCapacity(NodeGroup((0,), (node.name,), node), FreeCapacity((node,)))


def _reason(message: str, resource: str, temporary: bool) -> Reason:
    symptom = f"Insufficient {resource}" if resource else ""
    return Reason(Cause.RESOURCES, Stage.SCHEDULE, message, symptom, resource, temporary)


def _free(node: Node, resource: str) -> Decimal:
    """Unlimited if the node reports no allocatable, or no pod limit."""
    if node.allocatable is None:
        return _UNLIMITED
    size = _amount(node.allocatable, resource)
    if size is None:
        return _UNLIMITED if resource == "pods" else -(_amount(node.allocated, resource) or _NONE)
    allocated = _amount(node.allocated, resource)
    return size - allocated if allocated else size


def _amount(amounts: Quantities, resource: str) -> Decimal | None:
    for name, amount in amounts:
        if name == resource:
            return amount
    return None

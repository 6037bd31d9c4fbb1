"""What is free on nodes, and what a pod lacks there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal

from winpod.windows.alike import Group
from winpod.windows.objects import Node
from winpod.windows.quantities import format_quantity
from winpod.windows.reading import Amounts
from winpod.windows.verdicts import Cause, Reason, Stage

_MOST_RESOURCES = 50
"""By whose amounts nodes are kept; pods may name any."""
_ENDLESS = Decimal("Infinity")
_NONE = Decimal(0)


class Free:
    """How much is free on each node, resource by resource."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._amounts: dict[str, list[Decimal]] = {}

    def of(self, resource: str) -> list[Decimal]:
        if resource not in self._amounts:
            if len(self._amounts) >= _MOST_RESOURCES:
                self._amounts.clear()
            self._amounts[resource] = [_free(node, resource) for node in self.nodes]
        return self._amounts[resource]

    def changed(self, nodes: Sequence[Node], places: Iterable[int]) -> Free:
        """The same, where something else is taken on the nodes at these places."""
        new = Free(nodes)
        places = tuple(places)
        for resource, amounts in self._amounts.items():
            new._amounts[resource] = copied = amounts.copy()
            for place in places:
                copied[place] = _free(nodes[place], resource)
        return new


class Room:
    """Some nodes, sorted by how much is free on each, so that the short ones are found at once."""

    def __init__(self, group: Group, free: Free) -> None:
        self._group = group
        self._free = free
        self._sorted: dict[str, list[int]] = {}

    def split(self, wanted: Amounts) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The names of the nodes with room for all of it, and the places of those without."""
        short: set[int] = set()
        for resource, amount in wanted:
            rising, free = self._rising(resource), self._free.of(resource)
            short.update(rising[: bisect_left(rising, amount, key=free.__getitem__)])
        if not short:
            return self._group.names, ()
        pairs = zip(self._group.names, self._group.places, strict=True)
        return tuple(name for name, place in pairs if place not in short), tuple(sorted(short))

    def _rising(self, resource: str) -> list[int]:
        if resource not in self._sorted:
            if len(self._sorted) >= _MOST_RESOURCES:
                self._sorted.clear()
            free = self._free.of(resource)
            self._sorted[resource] = sorted(self._group.places, key=free.__getitem__)
        return self._sorted[resource]

    def lack(self, wanted: Amounts, short: Sequence[int]) -> tuple[Reason, ...]:
        """What the nodes at these places, none of which has room, are short of."""
        nodes = [self._free.nodes[place] for place in short]
        waiting = any(_is_size_for(size, wanted) for size in {node.allocatable for node in nodes})
        reasons = []
        for resource, amount in wanted:
            free = self._free.of(resource)
            most = max(free[place] for place in short)
            if most >= amount:
                continue
            emptiest = (n for n, place in zip(nodes, short, strict=True) if free[place] == most)
            size = max(_amount(node.allocatable or (), resource) or _NONE for node in emptiest)
            asked = format_quantity(resource, amount, rounding=ROUND_CEILING)
            left = f"{format_quantity(resource, most)} of {format_quantity(resource, size)}"
            sentence = f"{resource}: asks for {asked}; {left} is free"
            reasons.append(_reason(sentence, resource, waiting))
        return tuple(reasons) or (
            _reason("each resource is free on some node, all of them on none", "", waiting),
        )


def _is_size_for(size: Amounts | None, wanted: Amounts) -> bool:
    empty = Node("", allocatable=size)
    return all(_free(empty, resource) >= amount for resource, amount in wanted)


def room_on(node: Node) -> Room:
    return Room(Group((0,), (node.name,), node), Free((node,)))


def _reason(sentence: str, resource: str, waiting: bool) -> Reason:
    symptom = f"Insufficient {resource}" if resource else ""
    return Reason(Cause.RESOURCES, Stage.SCHEDULE, sentence, symptom, resource, waiting)


def _free(node: Node, resource: str) -> Decimal:
    """Endless where a node does not tell its size, or how many pods it takes."""
    if node.allocatable is None:
        return _ENDLESS
    size = _amount(node.allocatable, resource)
    if size is None:
        return _ENDLESS if resource == "pods" else -(_amount(node.allocated, resource) or _NONE)
    taken = _amount(node.allocated, resource)
    return size - taken if taken else size


def _amount(amounts: Amounts, resource: str) -> Decimal | None:
    for name, amount in amounts:
        if name == resource:
            return amount
    return None

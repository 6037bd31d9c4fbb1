"""Nodes of a cluster in groups: those that no rule tells apart for a pod are judged once.

What is taken on nodes plays no part. A pod's own choice of nodes only asks whether a node is meant,
so the groups are those that all rules make, divided by what is meant: a pod for one of thousands of
nodes makes one group more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from winpod.windows.objects import (
    ARCH_LABEL,
    BUILD_LABEL,
    OS_LABEL,
    OSVERSION_LABEL,
    Node,
    NodeTerm,
    Pod,
    Requirement,
)

_RULE_LABELS = frozenset(
    (
        OS_LABEL,
        "beta.kubernetes.io/os",
        ARCH_LABEL,
        "beta.kubernetes.io/arch",
        BUILD_LABEL,
        OSVERSION_LABEL,
    )
)
MOST_KEPT = 1000
"""Pods, and choices of nodes, that are remembered; their authors choose how many there are."""
Places = frozenset[int]
"""Where nodes stand in the cluster's list of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """`example` is one of its nodes; what is taken on it may be out of date."""

    places: tuple[int, ...]
    names: tuple[str, ...]
    example: Node


class Alike:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._everywhere = frozenset(range(len(nodes)))
        self._groups: dict[tuple[Places, ...], tuple[Group, ...]] = {}
        self._numbers: dict[object, int] = {}

    def changed(self, nodes: Sequence[Node], places: Iterable[int]) -> Alike:
        """The same, with other nodes at these places."""
        new = Alike(nodes)
        new._numbers = self._numbers
        new._shapes = self._shapes.copy()
        for place in places:
            new._shapes[place] = self._number(nodes[place])
        return new

    def groups(self, pod: Pod) -> tuple[Group, ...]:
        """For a pod as its RuntimeClass has completed it."""
        meant = tuple(one for one in self._meant(pod) if one and one != self._everywhere)
        if meant not in self._groups:
            make_room(self._groups)
            self._groups[meant] = tuple(self._divided(meant))
        return self._groups[meant]

    def _meant(self, pod: Pod) -> Iterator[Places]:
        for key, value in pod.node_selector:
            if key not in _RULE_LABELS:
                yield self._labelled.get(key, {}).get(value, frozenset())
        if pod.affinity is not None:
            yield frozenset(place for term in pod.affinity for place in self._held(term))
        if pod.node_name:
            yield self._named.get(pod.node_name, frozenset())

    def _held(self, term: NodeTerm) -> Places:
        if not (term.labels or term.fields):
            return frozenset()
        by_label = (self._accepted(r, self._labelled.get(r.key, {})) for r in term.labels)
        by_field = (
            self._accepted(r, self._named) if r.key == "metadata.name" else frozenset[int]()
            for r in term.fields
        )
        return self._everywhere.intersection(*by_label, *by_field)

    def _accepted(self, requirement: Requirement, values: dict[str, Places]) -> Places:
        held = frozenset().union(
            *(at for value, at in values.items() if requirement.accepts(value))
        )
        if requirement.accepts(None):
            held |= self._everywhere.difference(*values.values())
        return held

    def _divided(self, meant: Sequence[Places]) -> Iterator[Group]:
        marks = [0] * len(self._nodes)
        for number, places in enumerate(meant):
            for place in places:
                marks[place] |= 1 << number
        groups: dict[tuple[int, int], list[int]] = {}
        for place, key in enumerate(zip(self._shapes, marks, strict=True)):
            groups.setdefault(key, []).append(place)
        for found in groups.values():
            names = tuple(self._nodes[place].name for place in found)
            yield Group(tuple(found), names, self._nodes[found[0]])

    @cached_property
    def _shapes(self) -> list[int]:
        """A number for each node, the same for those that all rules see alike."""
        return [self._number(node) for node in self._nodes]

    def _number(self, node: Node) -> int:
        return self._numbers.setdefault(_shape(node), len(self._numbers))

    @cached_property
    def _labelled(self) -> dict[str, dict[str, Places]]:
        found: dict[str, dict[str, list[int]]] = {}
        for place, node in enumerate(self._nodes):
            for key, value in node.labels:
                found.setdefault(key, {}).setdefault(value, []).append(place)
        return {
            key: {value: frozenset(places) for value, places in values.items()}
            for key, values in found.items()
        }

    @cached_property
    def _named(self) -> dict[str, Places]:
        return {node.name: frozenset((place,)) for place, node in enumerate(self._nodes)}


def make_room(kept: dict[Any, Any]) -> None:
    """What was kept first is forgotten, and found out again by who needs it."""
    while len(kept) >= MOST_KEPT:
        del kept[next(iter(kept))]


def _shape(node: Node) -> object:
    return (
        tuple(pair for pair in node.labels if pair[0] in _RULE_LABELS),
        node.taints,
        node.unschedulable,
        node.handlers,
        node.runtime,
        node.build,
        node.os,
        node.architecture,
    )

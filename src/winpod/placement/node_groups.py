"""Groups of equivalent nodes, so that nodes no predicate distinguishes are evaluated once.

Allocated resources are not considered. Nodes are grouped by the properties the predicates read, and
each group is split by whether the pod's selector, affinity and nodeName match: a pod bound to one
of thousands of nodes adds one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from winpod.labels import (
    ARCH_LABEL,
    BETA_ARCH_LABEL,
    BETA_OS_LABEL,
    BUILD_LABEL,
    OS_LABEL,
    OSVERSION_LABEL,
)
from winpod.placement.model import Node, NodeSelectorRequirement, NodeSelectorTerm, Pod

_RULE_LABELS = frozenset(
    (
        OS_LABEL,
        BETA_OS_LABEL,
        ARCH_LABEL,
        BETA_ARCH_LABEL,
        BUILD_LABEL,
        OSVERSION_LABEL,
    )
)
MAX_CACHED = 1000
"""Size of the caches. Users decide how many distinct pods exist, so the caches are bounded."""
NodeIndexes = frozenset[int]
"""Indexes into the cluster's list of nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """Equivalent nodes. The allocation of `representative` may be out of date."""

    indexes: tuple[int, ...]
    names: tuple[str, ...]
    representative: Node


class NodeGroups:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._all = frozenset(range(len(nodes)))
        self._groups: dict[tuple[NodeIndexes, ...], tuple[NodeGroup, ...]] = {}
        self._ids: dict[object, int] = {}

    def with_nodes(self, nodes: Sequence[Node], indexes: Iterable[int]) -> NodeGroups:
        """Copy, with the nodes at these indexes replaced."""
        new = NodeGroups(nodes)
        new._ids = self._ids
        new._signature_ids = self._signature_ids.copy()
        for index in indexes:
            new._signature_ids[index] = self._signature_id(nodes[index])
        return new

    def groups_for(self, pod: Pod) -> tuple[NodeGroup, ...]:
        """Return the groups for a pod already merged with its RuntimeClass."""
        matches = tuple(m for m in self._matching_sets(pod) if m and m != self._all)
        if matches not in self._groups:
            trim_cache(self._groups)
            self._groups[matches] = tuple(self._split(matches))
        return self._groups[matches]

    def _matching_sets(self, pod: Pod) -> Iterator[NodeIndexes]:
        for key, value in pod.node_selector:
            if key not in _RULE_LABELS:
                yield self._by_label.get(key, {}).get(value, frozenset())
        if pod.affinity is not None:
            yield frozenset(index for term in pod.affinity for index in self._matching_term(term))
        if pod.node_name:
            yield self._by_name.get(pod.node_name, frozenset())

    def _matching_term(self, term: NodeSelectorTerm) -> NodeIndexes:
        if not (term.labels or term.fields):
            return frozenset()
        by_label = (
            self._matching_requirement(r, self._by_label.get(r.key, {})) for r in term.labels
        )
        by_field = (
            self._matching_requirement(r, self._by_name)
            if r.key == "metadata.name"
            else frozenset[int]()
            for r in term.fields
        )
        return self._all.intersection(*by_label, *by_field)

    def _matching_requirement(
        self, requirement: NodeSelectorRequirement, values: dict[str, NodeIndexes]
    ) -> NodeIndexes:
        matching = frozenset().union(
            *(nodes for value, nodes in values.items() if requirement.matches(value))
        )
        if requirement.matches(None):
            matching |= self._all.difference(*values.values())
        return matching

    def _split(self, matches: Sequence[NodeIndexes]) -> Iterator[NodeGroup]:
        marks = [0] * len(self._nodes)
        for number, indexes in enumerate(matches):
            for index in indexes:
                marks[index] |= 1 << number
        groups: dict[tuple[int, int], list[int]] = {}
        for index, key in enumerate(zip(self._signature_ids, marks, strict=True)):
            groups.setdefault(key, []).append(index)
        for members in groups.values():
            names = tuple(self._nodes[index].name for index in members)
            yield NodeGroup(tuple(members), names, self._nodes[members[0]])

    @cached_property
    def _signature_ids(self) -> list[int]:
        """A signature id per node; nodes that no predicate distinguishes share an id."""
        return [self._signature_id(node) for node in self._nodes]

    def _signature_id(self, node: Node) -> int:
        return self._ids.setdefault(_signature(node), len(self._ids))

    @cached_property
    def _by_label(self) -> dict[str, dict[str, NodeIndexes]]:
        by_label: dict[str, dict[str, list[int]]] = {}
        for index, node in enumerate(self._nodes):
            for key, value in node.labels:
                by_label.setdefault(key, {}).setdefault(value, []).append(index)
        return {
            key: {value: frozenset(indexes) for value, indexes in values.items()}
            for key, values in by_label.items()
        }

    @cached_property
    def _by_name(self) -> dict[str, NodeIndexes]:
        return {node.name: frozenset((index,)) for index, node in enumerate(self._nodes)}


def trim_cache(cache: dict[Any, Any]) -> None:
    """Evict the oldest entries until there is room for one more."""
    while len(cache) >= MAX_CACHED:
        del cache[next(iter(cache))]


def _signature(node: Node) -> object:
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

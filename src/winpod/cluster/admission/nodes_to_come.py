"""Nodes that are not there yet and that a pod could be waiting for, as it and its images ask.

Whether the pod would run there is still to be judged. None has the name of a node that is there, so
that a pod which names such a node waits for no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from weakref import WeakKeyDictionary

from winpod.windows.alike import Alike
from winpod.windows.builds import parse_version
from winpod.windows.objects import (
    ARCH_LABEL,
    BUILD_LABEL,
    HOSTNAME_LABEL,
    OS_LABEL,
    Node,
    NodeTerm,
    Pod,
    Requirement,
)
from winpod.windows.placement import Cluster
from winpod.windows.starting import Images

_TRIED_ONE_BY_ONE = frozenset((BUILD_LABEL, ARCH_LABEL))
_MOST_OF_A_TERM = 200


def nodes_to_come(pod: Pod, cluster: Cluster, images: Images) -> Iterable[Node]:
    """For a pod as its RuntimeClass has completed it."""
    builds = tuple(
        str(m.platform.build.base)
        for image in images.values()
        for m in image.manifests
        if m.platform.build
    )
    offered = {OS_LABEL: ("windows",), BUILD_LABEL: builds}
    offered |= {key: (value,) for key, value in pod.node_selector}
    for term in (NodeTerm(),) if pod.affinity is None else pod.affinity:
        asked: dict[str, list[Requirement]] = {key: [] for key in offered}
        for requirement in term.labels:
            asked.setdefault(requirement.key, []).append(requirement)
        labels = {key: _values(some, offered.get(key, ())) for key, some in asked.items()}
        named = [pod.node_name] if pod.node_name else _values(term.fields)
        name = next(_new(named, cluster), "")
        labels[HOSTNAME_LABEL] = [*_new(labels.get(HOSTNAME_LABEL, ()), cluster)]
        yield from islice(_labelled(name, labels), _MOST_OF_A_TERM)


def _labelled(name: str, labels: Mapping[str, Sequence[str]]) -> Iterable[Node]:
    """Each build and architecture that is possible, and of all else the first that is."""
    tried = {
        key: values if key in _TRIED_ONE_BY_ONE else values[:1]
        for key, values in labels.items()
        if values
    }
    for values in product(*tried.values()):
        told = dict(zip(tried, values, strict=True))
        if told.get(OS_LABEL) == "windows" and parse_version(told.get(BUILD_LABEL, "")):
            yield Node(name, tuple(sorted(told.items())))


def _values(requirements: Sequence[Requirement], offered: Iterable[str] = ()) -> list[str]:
    values = (*offered, *(value for r in requirements for value in _suggested(r)))
    return [one for one in dict.fromkeys(values) if all(r.accepts(one) for r in requirements)]


def _suggested(requirement: Requirement) -> Sequence[str]:
    match requirement.operator:
        case "In":
            return requirement.values
        case "Exists":
            return ("true",)
        case "Gt":
            return (str(int(requirement.values[0]) + 1),)
        case "Lt":
            return (str(int(requirement.values[0]) - 1),)
    return ()


_names: WeakKeyDictionary[Alike, frozenset[str]] = WeakKeyDictionary()


def _new(names: Iterable[str], cluster: Cluster) -> Iterator[str]:
    """Those that no node has."""
    for name in names:
        if cluster.alike not in _names:
            hosts = (node.label(HOSTNAME_LABEL) or "" for node in cluster.nodes)
            _names[cluster.alike] = frozenset((*hosts, *(node.name for node in cluster.nodes)))
        if name not in _names[cluster.alike]:
            yield name

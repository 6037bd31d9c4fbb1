"""Cache of a cluster's nodes, with what is allocated on them, its RuntimeClasses and its pods.

It is kept up to date by reflectors, so reads never block. Controllers subscribe to be woken by
changes; changes to fields that are not cached do not wake subscribers.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from winpod.errors import InvalidInput
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.objects import NodeObject, RuntimeClassObject
from winpod.operator.cached_objects import (
    CachedNode,
    CachedPod,
    CachedRuntimeClass,
    PackedPod,
    TemplateCache,
    to_cached_class,
    to_cached_node,
)
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node
from winpod.placement.predicates import scheduling_requests

NODES = "/api/v1/nodes"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
PODS = "/api/v1/pods"
_MIN_STALENESS, _STALENESS_PER_NODE = 0.05, 0.001
"""Seconds. Allocations change constantly and may be slightly stale in clusters with many nodes."""
_BATCH = 200
"""Listed objects that are decoded before yielding to other tasks, such as admission reviews."""
_log = logging.getLogger(__name__)
_Object = TypeVar("_Object", bound=msgspec.Struct)
_Cached = TypeVar("_Cached")


class CachedKind(StrEnum):
    NODE = "node"
    CLASS = "class"
    POD = "pod"
    USAGE = "use"
    """A RuntimeClass got its first pod or lost its last."""


class ClusterCache:
    def __init__(self, api: ApiClient) -> None:
        templates = TemplateCache()
        self._nodes = _ObjectCache(to_cached_node, self._node_changed)
        self._classes = _ObjectCache(to_cached_class, self._class_changed)
        self._pods = _ObjectCache(templates.to_cached_pod, self._pod_changed)
        self._reflectors = (
            Reflector(api, NodeObject, NODES, self._nodes),
            Reflector(api, RuntimeClassObject, CLASSES, self._classes),
            Reflector(api, PackedPod, PODS, self._pods),
        )
        self._subscribers: list[tuple[frozenset[CachedKind], asyncio.Event]] = []
        self._allocated = _AllocatedResources()
        self._users: Counter[str] = Counter()
        self._cluster: Cluster | None = None
        self._changed: set[str] = set()
        """Nodes that changed since `_cluster` was built."""
        self._built_at = float("-inf")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    async def wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.is_known.wait()

    @property
    def is_synced(self) -> bool:
        return all(reflector.is_known.is_set() for reflector in self._reflectors)

    def subscribe(self, *kinds: CachedKind, wake: asyncio.Event | None = None) -> asyncio.Event:
        """Return an event that is set when one of these kinds changes; the waiter clears it."""
        event = wake or asyncio.Event()
        self._subscribers.append((frozenset(kinds or CachedKind), event))
        return event

    @property
    def nodes(self) -> Collection[CachedNode]:
        """The nodes without allocations, which are in `cluster()`."""
        return self._nodes.objects.values()

    @property
    def classes(self) -> Mapping[str, CachedRuntimeClass]:
        return {cached.name: cached for cached in self._classes.objects.values()}

    @property
    def pods(self) -> Collection[CachedPod]:
        return self._pods.objects.values()

    def pods_using_class(self, runtime_class: str) -> int:
        """Return the number of non-terminal pods that use this class."""
        return self._users[runtime_class]

    def used_classes(self) -> frozenset[str]:
        return frozenset(name for name, count in self._users.items() if count)

    def retiring_classes(self) -> dict[str, str]:
        """Return the classes that accept no new pods, each with the reason."""
        return {name: cached.retiring for name, cached in self.classes.items() if cached.retiring}

    @property
    def usage_staleness(self) -> float:
        """Seconds by which the allocations in `cluster()` may be out of date."""
        return max(_MIN_STALENESS, _STALENESS_PER_NODE * len(self._nodes.objects))

    def cluster(self) -> Cluster:
        """Return the cluster for placement; the same object until something changes."""
        now = time.monotonic()
        if self._cluster is None:
            self._cluster = Cluster(
                (self._allocated.apply(cached.node) for cached in self._nodes.objects.values()),
                (cached.runtime_class for cached in self._classes.objects.values()),
            )
        elif self._changed or (
            self._allocated.stale and now >= self._built_at + self.usage_staleness
        ):
            names = self._changed | self._allocated.stale
            stale = (self._nodes.objects.get(("", name)) for name in names)
            updated = (self._allocated.apply(cached.node) for cached in stale if cached)
            self._cluster = self._cluster.with_nodes(updated)
        else:
            return self._cluster
        self._changed.clear()
        self._allocated.stale.clear()
        self._built_at = now
        return self._cluster

    def _node_changed(self, old: CachedNode | None, new: CachedNode | None) -> None:
        if old and new:
            self._changed.add(new.node.name)
        else:
            self._cluster = None
        self._wake(CachedKind.NODE)

    def _class_changed(
        self, old: CachedRuntimeClass | None, new: CachedRuntimeClass | None
    ) -> None:
        del old, new
        self._cluster = None
        self._wake(CachedKind.CLASS)

    def _pod_changed(self, old: CachedPod | None, new: CachedPod | None) -> None:
        for pod, sign in ((old, -1), (new, 1)):
            if pod and not pod.is_terminal:
                self._count_user(pod.runtime_class, sign)
                self._allocated.add(pod, sign)
        self._wake(CachedKind.POD)

    def _count_user(self, runtime_class: str, sign: int) -> None:
        before = self._users[runtime_class]
        self._users[runtime_class] += sign
        if not before or not self._users[runtime_class]:
            self._wake(CachedKind.USAGE)

    def _wake(self, kind: CachedKind) -> None:
        for kinds, event in self._subscribers:
            if kind in kinds:
                event.set()


class _ObjectCache(Generic[_Object, _Cached]):
    """All objects of a kind in their cached form, by namespace and name."""

    def __init__(
        self,
        convert: Callable[[_Object], _Cached],
        on_change: Callable[[_Cached | None, _Cached | None], None],
    ) -> None:
        self.objects: dict[tuple[str, str], _Cached] = {}
        self._convert = convert
        self._on_change = on_change

    async def on_list(self, objects: Sequence[_Object]) -> None:
        gone = self.objects.keys() - {_key(obj) for obj in objects}
        for key in gone:
            self._put(key, None)
        for index, obj in enumerate(objects):
            self.on_change(obj)
            if index % _BATCH == 0:
                await asyncio.sleep(0)

    def on_change(self, obj: _Object) -> None:
        try:
            cached = self._convert(obj)
        except InvalidInput as error:
            _log.warning("Failed to decode %s: %s", "/".join(filter(None, _key(obj))), error)
            self.on_delete(obj)
        else:
            self._put(_key(obj), cached)

    def on_delete(self, obj: _Object) -> None:
        self._put(_key(obj), None)

    def _put(self, key: tuple[str, str], new: _Cached | None) -> None:
        old = self.objects.get(key)
        if old == new:
            return
        if new is None:
            del self.objects[key]
        else:
            self.objects[key] = new
        self._on_change(old, new)


def _key(obj: msgspec.Struct) -> tuple[str, str]:
    metadata = getattr(obj, "metadata", None)
    return (sys.intern(getattr(metadata, "namespace", "")), getattr(metadata, "name", ""))


class _AllocatedResources:
    """Resources allocated to the pods of each node; `stale` are nodes whose sums changed."""

    def __init__(self) -> None:
        self.stale: set[str] = set()
        self._sums: dict[str, dict[str, Decimal]] = {}

    def add(self, pod: CachedPod, sign: int) -> None:
        if not pod.node:
            return
        sums = self._sums.setdefault(pod.node, {})
        for resource, amount in scheduling_requests(pod.template):
            sums[resource] = sums.get(resource, Decimal(0)) + sign * amount
        if not sums["pods"]:
            del self._sums[pod.node]
        self.stale.add(pod.node)

    def apply(self, node: Node) -> Node:
        sums = self._sums.get(node.name)
        if not sums:
            return node
        allocated = tuple(sorted((key, amount) for key, amount in sums.items() if amount))
        return replace(node, allocated=allocated)

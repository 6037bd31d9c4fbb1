"""A cluster as it is now: its nodes with what is taken on them, its classes and its pods.

It is followed, never asked: whoever decides reads it at once. Who has to act on a change subscribes
and is woken; a change that no rule would notice wakes nobody.
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

from lightkube.core.dictmixin import DictMixin

from winpod.cluster.seen import (
    ClassObject,
    NodeObject,
    PodObject,
    SeenClass,
    SeenNode,
    SeenPod,
    Templates,
    see_class,
    see_node,
)
from winpod.node.api import ApiServer
from winpod.node.following import Following
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Node
from winpod.windows.placement import Cluster
from winpod.windows.scheduling import needs

NODES = "/api/v1/nodes"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
PODS = "/api/v1/pods"
_LEAST_REST, _REST_FOR_A_NODE = 0.05, 0.001
"""Seconds. What is taken changes all the time, and may be a little old, where nodes are many."""
_AT_ONCE = 200
"""Objects of a list that are taken before others have a turn, who may have to answer in time."""
_log = logging.getLogger(__name__)
_Object = TypeVar("_Object", bound=DictMixin)
_Seen = TypeVar("_Seen")


class Kind(StrEnum):
    NODE = "node"
    CLASS = "class"
    POD = "pod"
    USE = "use"
    """A class has got its first pod, or lost its last."""


class View:
    def __init__(self, api: ApiServer) -> None:
        templates = Templates()
        self._nodes = _Kept(see_node, self._node_changed)
        self._classes = _Kept(see_class, self._class_changed)
        self._pods = _Kept(templates.see_pod, self._pod_changed)
        self._followings = (
            Following(api, NodeObject, NODES, self._nodes),
            Following(api, ClassObject, CLASSES, self._classes),
            Following(api, PodObject, PODS, self._pods),
        )
        self._subscribers: list[tuple[frozenset[Kind], asyncio.Event]] = []
        self._taken = _Taken()
        self._users: Counter[str] = Counter()
        self._cluster: Cluster | None = None
        self._changed: set[str] = set()
        """Nodes that have changed since the cluster was put together."""
        self._built_at = float("-inf")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for following in self._followings:
                group.create_task(following.run())

    async def until_known(self) -> None:
        for following in self._followings:
            await following.is_known.wait()

    @property
    def is_known(self) -> bool:
        return all(following.is_known.is_set() for following in self._followings)

    def subscribe(self, *kinds: Kind, wake: asyncio.Event | None = None) -> asyncio.Event:
        """Set whenever one of these kinds has changed; whoever waits for it clears it."""
        event = wake or asyncio.Event()
        self._subscribers.append((frozenset(kinds or Kind), event))
        return event

    @property
    def nodes(self) -> Collection[SeenNode]:
        """As they are; what is taken on them is in `cluster()`."""
        return self._nodes.seen.values()

    @property
    def classes(self) -> Mapping[str, SeenClass]:
        return {seen.name: seen for seen in self._classes.seen.values()}

    @property
    def pods(self) -> Collection[SeenPod]:
        return self._pods.seen.values()

    def users(self, runtime_class: str) -> int:
        """How many pods name this class and have not ended."""
        return self._users[runtime_class]

    def used_classes(self) -> frozenset[str]:
        return frozenset(name for name, count in self._users.items() if count)

    def retiring(self) -> dict[str, str]:
        """Classes that take no new pods, each with the sentence that says why."""
        return {name: seen.retiring for name, seen in self.classes.items() if seen.retiring}

    @property
    def rest_seconds(self) -> float:
        """How old what is taken may be in `cluster()`."""
        return max(_LEAST_REST, _REST_FOR_A_NODE * len(self._nodes.seen))

    def cluster(self) -> Cluster:
        """For placement. The same one until something changes."""
        now = time.monotonic()
        if self._cluster is None:
            self._cluster = Cluster(
                map(self._taken.count_in, (seen.node for seen in self._nodes.seen.values())),
                (seen.runtime_class for seen in self._classes.seen.values()),
            )
        elif self._changed or (self._taken.stale and now >= self._built_at + self.rest_seconds):
            names = self._changed | self._taken.stale
            stale = (self._nodes.seen.get(("", name)) for name in names)
            counted = (self._taken.count_in(seen.node) for seen in stale if seen)
            self._cluster = self._cluster.changed(counted)
        else:
            return self._cluster
        self._changed.clear()
        self._taken.stale.clear()
        self._built_at = now
        return self._cluster

    def _node_changed(self, old: SeenNode | None, new: SeenNode | None) -> None:
        if old and new:
            self._changed.add(new.node.name)
        else:
            self._cluster = None
        self._wake(Kind.NODE)

    def _class_changed(self, old: SeenClass | None, new: SeenClass | None) -> None:
        del old, new
        self._cluster = None
        self._wake(Kind.CLASS)

    def _pod_changed(self, old: SeenPod | None, new: SeenPod | None) -> None:
        for seen, sign in ((old, -1), (new, 1)):
            if seen and not seen.has_ended:
                self._use(seen.runtime_class, sign)
                self._taken.add(seen, sign)
        self._wake(Kind.POD)

    def _use(self, runtime_class: str, sign: int) -> None:
        before = self._users[runtime_class]
        self._users[runtime_class] += sign
        if not before or not self._users[runtime_class]:
            self._wake(Kind.USE)

    def _wake(self, kind: Kind) -> None:
        for kinds, event in self._subscribers:
            if kind in kinds:
                event.set()


class _Kept(Generic[_Object, _Seen]):
    """All objects of a kind as they are kept, by namespace and name."""

    def __init__(
        self,
        see: Callable[[_Object], _Seen],
        on_change: Callable[[_Seen | None, _Seen | None], None],
    ) -> None:
        self.seen: dict[tuple[str, str], _Seen] = {}
        self._see = see
        self._on_change = on_change

    async def listed(self, objects: Sequence[_Object]) -> None:
        gone = self.seen.keys() - {_key(obj) for obj in objects}
        for key in gone:
            self._put(key, None)
        for number, obj in enumerate(objects):
            self.changed(obj)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def changed(self, obj: _Object) -> None:
        try:
            seen = self._see(obj)
        except InvalidInput as error:
            _log.warning("%s cannot be read: %s", " ".join(_key(obj)).strip(), error)
            self.deleted(obj)
        else:
            self._put(_key(obj), seen)

    def deleted(self, obj: _Object) -> None:
        self._put(_key(obj), None)

    def _put(self, key: tuple[str, str], new: _Seen | None) -> None:
        old = self.seen.get(key)
        if old == new:
            return
        if new is None:
            del self.seen[key]
        else:
            self.seen[key] = new
        self._on_change(old, new)


def _key(obj: DictMixin) -> tuple[str, str]:
    metadata = getattr(obj, "metadata", None)
    return (sys.intern(getattr(metadata, "namespace", "")), getattr(metadata, "name", ""))


class _Taken:
    """What the pods of each node take, kept up pod by pod; `stale` are nodes where that changed."""

    def __init__(self) -> None:
        self.stale: set[str] = set()
        self._sums: dict[str, dict[str, Decimal]] = {}

    def add(self, pod: SeenPod, sign: int) -> None:
        if not pod.node:
            return
        sums = self._sums.setdefault(pod.node, {})
        for resource, amount in needs(pod.template):
            sums[resource] = sums.get(resource, Decimal(0)) + sign * amount
        if not sums["pods"]:
            del self._sums[pod.node]
        self.stale.add(pod.node)

    def count_in(self, node: Node) -> Node:
        sums = self._sums.get(node.name)
        if not sums:
            return node
        taken = tuple(sorted((key, amount) for key, amount in sums.items() if amount))
        return replace(node, allocated=taken)

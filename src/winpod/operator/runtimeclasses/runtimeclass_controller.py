"""Reconciles RuntimeClasses and node labels with the cluster's nodes.

Every action may be interrupted; the next reconciliation starts from the current state. A class
without nodes is removed only after a delay, since nodes may return and pods may be in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from winpod.concurrency import Backoff
from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.event_recorder import Event, ObjectReference
from winpod.k8s.models import node_v1
from winpod.k8s.objects import NodeObject
from winpod.labels import (
    ABOUT_ANNOTATION,
    FILLED_LABELS_ANNOTATION,
    MANAGED_BY_LABEL,
    MANAGED_BY_VALUE,
)
from winpod.operator.cached_objects import CachedNode
from winpod.operator.cluster_cache import CLASSES, NODES, CachedKind, ClusterCache
from winpod.operator.runtimeclasses.desired_classes import (
    ClassAction,
    ClassChange,
    class_shape,
    desired_classes,
    plan_classes,
)
from winpod.operator.runtimeclasses.node_labels import LabelChange, change_labels, with_labels
from winpod.operator.settings_watcher import SettingsWatcher
from winpod.placement.model import Node

RecordEvent = Callable[[Event], None]
_SETTLE_SECONDS = 0.1
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ReconciledNode:
    """A cached node, its label change, and its class signature after the change."""

    cached: CachedNode
    is_labelling: bool
    change: LabelChange
    signature: Node


class RuntimeClassController:
    """`on_reconcile` is called with the duration of each reconciliation and its success."""

    def __init__(
        self,
        api: ApiClient,
        cache: ClusterCache,
        settings: SettingsWatcher,
        record_event: RecordEvent = lambda _: None,
        on_reconcile: Callable[[float, bool], None] = lambda _, __: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._record_event = record_event
        self._on_reconcile = on_reconcile
        self._wake = asyncio.Event()
        cache.subscribe(CachedKind.NODE, CachedKind.CLASS, CachedKind.USAGE, wake=self._wake)
        settings.subscribe(wake=self._wake)
        self._reported: dict[str, str] = {}
        self._removable_since: dict[str, float] = {}
        self._nodes: dict[str, _ReconciledNode] = {}

    async def run(self) -> None:
        """Reconcile at start, on changes, and when a removal is due."""
        backoff = Backoff(_MIN_BACKOFF, _MAX_BACKOFF)
        while True:
            self._wake.clear()
            started, succeeded = time.monotonic(), False
            try:
                wait = await self._reconcile()
                backoff.reset()
                succeeded = True
            except WinpodError as error:
                _log.warning("Failed to reconcile RuntimeClasses and labels: %s", error)
                wait = backoff.next()
            self._on_reconcile(time.monotonic() - started, succeeded)
            await self._wait(wait)

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLE_SECONDS)

    async def _reconcile(self) -> float | None:
        """Reconcile once; return the seconds until the next removal is due, or None."""
        settings = self._settings.now
        nodes = [self._reconciled_node(cached, settings.labels) for cached in self._cache.nodes]
        self._nodes = {node.cached.node.name: node for node in nodes}
        failure = await self._label([node for node in nodes if node.change])
        signatures = {node.signature for node in nodes}
        changes = plan_classes(
            desired_classes(signatures, settings), self._cache.classes, self._cache.used_classes()
        )
        due = self._removals_due(changes, settings.remove_after_seconds)
        for change in changes:
            if due.get(change.name, 0.0) <= 0:
                await self._apply(change)
        if failure:
            raise failure
        return min((seconds for seconds in due.values() if seconds > 0), default=None)

    def _reconciled_node(self, cached: CachedNode, is_labelling: bool) -> _ReconciledNode:
        """Return the node's result, cached until the node or the setting changes."""
        previous = self._nodes.get(cached.node.name)
        if previous and previous.cached is cached and previous.is_labelling == is_labelling:
            return previous
        change = change_labels(cached.node, cached.filled_in) if is_labelling else LabelChange()
        return _ReconciledNode(
            cached, is_labelling, change, class_shape(with_labels(cached.node, change))
        )

    def _removals_due(self, changes: Iterable[ClassChange], after: float) -> dict[str, float]:
        """Return the seconds until each removal is due."""
        now = time.monotonic()
        removals = [change.name for change in changes if change.action is ClassAction.REMOVE]
        since = {name: self._removable_since.get(name, now) for name in removals}
        self._removable_since = since
        return {name: started + after - now for name, started in since.items()}

    async def _label(self, nodes: Sequence[_ReconciledNode]) -> WinpodError | None:
        """Label nodes; return the first error, which does not stop other nodes or classes."""
        done = await asyncio.gather(*(self._label_node(node) for node in nodes))
        return next((error for error in done if error), None)

    async def _label_node(self, node: _ReconciledNode) -> WinpodError | None:
        cached, change = node.cached, node.change
        filled = ",".join(sorted(change.filled_in)) or None
        metadata: dict[str, Any] = {"uid": cached.uid, "labels": dict(change.labels)}
        if change.filled_in != cached.filled_in:
            metadata["annotations"] = {FILLED_LABELS_ANNOTATION: filled}
        name = cached.node.name
        try:
            async with self._api.status_turns:
                await self._api.patch(NodeObject, f"{NODES}/{name}", {"metadata": metadata})
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                return None
            return error
        except WinpodError as error:
            return error
        _log.info("Labelled node %s: %s", name, change.labels, extra={"node": name})
        if change.filled_in - cached.filled_in:
            subject = ObjectReference("Node", "", name, name)
            message = f"{filled} was set from the kernel version {cached.node.kernel_version}"
            self._record_event(Event(subject, "Normal", "LabelFilledIn", message))
        return None

    async def _apply(self, change: ClassChange) -> None:
        if change.action is ClassAction.KEEP:
            self._report_once(change)
            return
        try:
            await _ACTIONS[change.action](self._api, change)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                _log.info(
                    "RuntimeClass %s was changed concurrently: %s",
                    *(change.name, error),
                    extra={"runtime_class": change.name},
                )
                return
            self._report_once(replace(change, reason=str(error)))
            return
        self._reported.pop(change.name, None)
        verb = f"{change.action.capitalize()}d"
        _log.info(
            "%s RuntimeClass %s: %s",
            *(verb, change.name, change.reason),
            extra={"runtime_class": change.name, "action": change.action},
        )
        self._record_event(
            Event(_subject(change), "Normal", f"Class{verb}", f"{verb}: {change.reason}.")
        )

    def _report_once(self, change: ClassChange) -> None:
        """Report why a class is not as desired, once per reason."""
        if self._reported.get(change.name, "") == change.reason:
            return
        self._reported[change.name] = change.reason
        if change.reason:
            _log.warning(
                "RuntimeClass %s not changed: %s",
                *(change.name, change.reason),
                extra={"runtime_class": change.name},
            )
            self._record_event(Event(_subject(change), "Warning", "ClassNotChanged", change.reason))


def _subject(change: ClassChange) -> ObjectReference:
    return ObjectReference(
        "RuntimeClass", "", change.name, change.existing.uid if change.existing else ""
    )


async def _create(api: ApiClient, change: ClassChange) -> None:
    if change.desired:
        await api.create(CLASSES, msgspec.convert(change.desired.to_object(), node_v1.RuntimeClass))


async def _update(api: ApiClient, change: ClassChange) -> None:
    """Update the current object, keeping fields that others set."""
    path = f"{CLASSES}/{change.name}"
    current = await api.get(node_v1.RuntimeClass, path)
    if current is None or current.metadata is None or change.desired is None:
        return
    if (current.metadata.labels or {}).get(MANAGED_BY_LABEL) != MANAGED_BY_VALUE:
        return
    desired = msgspec.convert(change.desired.to_object(), node_v1.RuntimeClass)
    current.metadata.annotations = {
        **(current.metadata.annotations or {}),
        ABOUT_ANNOTATION: change.desired.about,
    }
    current.scheduling, current.overhead = desired.scheduling, desired.overhead
    await api.replace(path, current)


async def _remove(api: ApiClient, change: ClassChange) -> None:
    """Delete exactly the object that was evaluated."""
    if cached := change.existing:
        preconditions = {"uid": cached.uid, "resourceVersion": cached.version}
        await api.delete(f"{CLASSES}/{change.name}", {"preconditions": preconditions})


async def _replace(api: ApiClient, change: ClassChange) -> None:
    """Delete and create. If interrupted, the next reconciliation creates it."""
    await _remove(api, change)
    await _create(api, change)


_ACTIONS: Mapping[ClassAction, Callable[[ApiClient, ClassChange], Awaitable[None]]] = {
    ClassAction.CREATE: _create,
    ClassAction.UPDATE: _update,
    ClassAction.REPLACE: _replace,
    ClassAction.REMOVE: _remove,
}

"""Classes and node labels of a cluster, made to be what its nodes say: the acting part.

Every deed can be cut short: the next look decides anew from what is there. A class that is no
longer true goes only after a while, since nodes come back and pods may be on their way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from lightkube.models import node_v1

from winpod.cluster.classes import ABOUT, Deed, Step, desired_classes, plan_classes, shape_of
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.node_labels import LabelChange, change_labels, with_labels
from winpod.cluster.seen import FILLED, MANAGED_BY, OURS, NodeObject, SeenNode
from winpod.cluster.view import CLASSES, NODES, Kind, View
from winpod.node.api import ApiServer, Refused
from winpod.node.event_series import Event, Subject
from winpod.windows.errors import WinpodError
from winpod.windows.objects import Node

Tell = Callable[[Event], None]
_SETTLE_SECONDS = 0.1
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Look:
    """A node as it was looked at, what is to be changed of it, and its shape afterwards."""

    seen: SeenNode
    is_labelling: bool
    change: LabelChange
    shape: Node


class Reconciling:
    """`tell` hears what people should know about classes and nodes.

    `on_look` hears of each look how many seconds it took, and whether it ended well.
    """

    def __init__(
        self,
        api: ApiServer,
        view: View,
        settings: LiveSettings,
        tell: Tell = lambda _: None,
        on_look: Callable[[float, bool], None] = lambda _, __: None,
    ) -> None:
        self._api = api
        self._view = view
        self._settings = settings
        self._tell = tell
        self._on_look = on_look
        self._wake = asyncio.Event()
        view.subscribe(Kind.NODE, Kind.CLASS, Kind.USE, wake=self._wake)
        settings.subscribe(wake=self._wake)
        self._told: dict[str, str] = {}
        self._unwanted_since: dict[str, float] = {}
        self._looks: dict[str, _Look] = {}

    async def run(self) -> None:
        """Look at once, whenever something has changed, and when something is due."""
        trouble = _FIRST_WAIT
        while True:
            self._wake.clear()
            began, is_well = time.monotonic(), False
            try:
                wait = await self._reconcile()
                trouble, is_well = _FIRST_WAIT, True
            except WinpodError as error:
                _log.warning("classes and labels are not as they should be yet: %s", error)
                wait, trouble = trouble, min(trouble * 2, _LONGEST_WAIT)
            self._on_look(time.monotonic() - began, is_well)
            await self._until_woken(wait)

    async def _until_woken(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLE_SECONDS)

    async def _reconcile(self) -> float | None:
        """Seconds until the next deed is due, None where none is."""
        settings = self._settings.now
        looks = [self._look(seen, settings.labels) for seen in self._view.nodes]
        self._looks = {look.seen.node.name: look for look in looks}
        trouble = await self._label([look for look in looks if look.change])
        shapes = {look.shape for look in looks}
        steps = plan_classes(
            desired_classes(shapes, settings), self._view.classes, self._view.used_classes()
        )
        due = self._removals_due(steps, settings.remove_after_seconds)
        for step in steps:
            if due.get(step.name, 0.0) <= 0:
                await self._take_step(step)
        if trouble:
            raise trouble
        return min((seconds for seconds in due.values() if seconds > 0), default=None)

    def _look(self, seen: SeenNode, is_labelling: bool) -> _Look:
        """What was found of a node stays true until it changes, and most of thousands do not."""
        before = self._looks.get(seen.node.name)
        if before and before.seen is seen and before.is_labelling == is_labelling:
            return before
        change = change_labels(seen.node, seen.filled) if is_labelling else LabelChange()
        return _Look(seen, is_labelling, change, shape_of(with_labels(seen.node, change)))

    def _removals_due(self, steps: Iterable[Step], after: float) -> dict[str, float]:
        """Seconds until each class that is to be removed may be."""
        now = time.monotonic()
        leaving = [step.name for step in steps if step.deed is Deed.REMOVE]
        since = {name: self._unwanted_since.get(name, now) for name in leaving}
        self._unwanted_since = since
        return {name: began + after - now for name, began in since.items()}

    async def _label(self, looks: Sequence[_Look]) -> WinpodError | None:
        """What went wrong first, if anything; it keeps neither other nodes nor classes waiting."""
        if looks:
            _log.info("labels of %s nodes are set", len(looks))
        done = await asyncio.gather(*(self._label_node(look) for look in looks))
        return next((error for error in done if error), None)

    async def _label_node(self, look: _Look) -> WinpodError | None:
        seen, change = look.seen, look.change
        filled = ",".join(sorted(change.filled)) or None
        metadata: dict[str, Any] = {"uid": seen.uid, "labels": dict(change.labels)}
        if change.filled != seen.filled:
            metadata["annotations"] = {FILLED: filled}
        name = seen.node.name
        try:
            async with self._api.status_turns:
                await self._api.patch(NodeObject, f"{NODES}/{name}", {"metadata": metadata})
        except Refused as error:
            if error.is_missing or error.is_conflict:
                return None
            return error
        except WinpodError as error:
            return error
        if change.filled - seen.filled:
            subject = Subject("Node", "", name, name)
            message = f"{filled} was filled in from the kernel's version {seen.node.kernel_version}"
            self._tell(Event(subject, "Normal", "LabelFilledIn", message))
        return None

    async def _take_step(self, step: Step) -> None:
        if step.deed is Deed.KEEP:
            self._tell_once(step)
            return
        try:
            await _DEEDS[step.deed](self._api, step)
        except Refused as error:
            if error.is_missing or error.is_conflict:
                _log.info("class %s has changed meanwhile: %s", step.name, error)
                return
            self._tell_once(replace(step, reason=str(error)))
            return
        self._told.pop(step.name, None)
        _log.info("class %s: %s, because %s", step.name, step.deed, step.reason)
        told = f"{step.deed.capitalize()}d: {step.reason}."
        self._tell(Event(_subject(step), "Normal", f"Class{step.deed.capitalize()}d", told))

    def _tell_once(self, step: Step) -> None:
        """Why a class is not as it would be; only where that is news."""
        if self._told.get(step.name, "") == step.reason:
            return
        self._told[step.name] = step.reason
        if step.reason:
            _log.warning("class %s: %s", step.name, step.reason)
            self._tell(Event(_subject(step), "Warning", "ClassNotChanged", step.reason))


def _subject(step: Step) -> Subject:
    return Subject("RuntimeClass", "", step.name, step.existing.uid if step.existing else "")


async def _create(api: ApiServer, step: Step) -> None:
    if step.wanted:
        await api.create(CLASSES, msgspec.convert(step.wanted.to_object(), node_v1.RuntimeClass))


async def _update(api: ApiServer, step: Step) -> None:
    """Into the object as it is now, so that what others wrote there stays."""
    path = f"{CLASSES}/{step.name}"
    now = await api.get(node_v1.RuntimeClass, path)
    if now is None or now.metadata is None or step.wanted is None:
        return
    if (now.metadata.labels or {}).get(MANAGED_BY) != OURS:
        return
    wanted = msgspec.convert(step.wanted.to_object(), node_v1.RuntimeClass)
    now.metadata.annotations = {**(now.metadata.annotations or {}), ABOUT: step.wanted.about}
    now.scheduling, now.overhead = wanted.scheduling, wanted.overhead
    await api.replace(path, now)


async def _remove(api: ApiServer, step: Step) -> None:
    """Only the very object that was looked at."""
    if seen := step.existing:
        preconditions = {"uid": seen.uid, "resourceVersion": seen.version}
        await api.delete(f"{CLASSES}/{step.name}", {"preconditions": preconditions})


async def _replace(api: ApiServer, step: Step) -> None:
    """Cut short in between, it is created at the next look."""
    await _remove(api, step)
    await _create(api, step)


_DEEDS: Mapping[Deed, Callable[[ApiServer, Step], Awaitable[None]]] = {
    Deed.CREATE: _create,
    Deed.UPDATE: _update,
    Deed.REPLACE: _replace,
    Deed.REMOVE: _remove,
}

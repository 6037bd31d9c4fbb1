"""What happens to pods, told to the API server: statuses, events, and that one is gone.

Nobody waits for the server. Of a pod only its newest status is told, and only what has changed in
it; while the server does not answer, it waits here. What others wrote over it is told again. A
deleted pod is let go of after its last status was told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from lightkube.models import core_v1 as v1

from winpod.node.api import ApiServer, Refused
from winpod.node.event_series import Event, Subject
from winpod.node.event_telling import EventTelling
from winpod.node.means import utc_now
from winpod.node.pods import ENDED, field_path, is_deleted, show, uid_of
from winpod.node.requests import metadata_of
from winpod.node.sources import Kind
from winpod.node.static_pods import is_static
from winpod.node.status_patch import as_told, status_patch
from winpod.node.timings import Timings
from winpod.windows.errors import Unavailable, WinpodError

_AT_ONCE = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0
_COMPONENT = "kubelet"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pod:
    """What the server was told of a pod last, and what is to be told of it now.

    There may be many, so of the pod there is only its metadata, and what was told is encoded.
    """

    pod: v1.Pod
    told: bytes
    status: v1.PodStatus
    version: int = 0
    is_changed: bool = False
    changed_at: float = 0.0
    is_gone: bool = False
    is_queued: bool = False
    annotations: Mapping[str, str] | None = None
    is_annotated: bool = True


class ApiReporter:
    def __init__(
        self,
        api: ApiServer,
        node: str,
        timings: Timings,
        clock: Callable[[], datetime] = utc_now,
        forgotten: Callable[[str], None] | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._timings = timings
        self._forgotten = forgotten
        self._pods: dict[str, _Pod] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._events = EventTelling(api, _COMPONENT, node, clock)

    async def run(self) -> None:
        workers = [self._tell_pods() for _ in range(_AT_ONCE)]
        await asyncio.gather(self._events.run(), *workers)

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        known = self._known(pod)
        known.status, known.is_gone = status, False
        self._to_tell(known)

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        known = self._known(pod)
        known.annotations, known.is_annotated = annotations, False
        self._to_tell(known)

    def tell_again(self, uid: str) -> None:
        """The server has the pod anew, without what it was told."""
        if known := self._pods.get(uid):
            known.told = _encoded({})
            self._to_tell(known)

    def heard(self, pod: v1.Pod) -> None:
        """What the server has of a pod, which others may have changed since it was told."""
        known, version = self._pods.get(uid_of(pod)), _version(pod)
        if known is None or version <= known.version:
            return
        known.version = version
        ours = known.status.to_dict()
        has = as_told(pod.status.to_dict() if pod.status else {}, ours)
        if has.get("phase") not in ENDED and status_patch(has, ours):
            known.told = _encoded(has)
            self._to_tell(known)

    async def gone(self, pod: v1.Pod) -> None:
        known = self._known(pod)
        known.is_gone = True
        self._enqueue(known)

    async def event(
        self, pod: v1.Pod, kind: Kind, reason: str, message: str, container: str = ""
    ) -> None:
        metadata = metadata_of(pod)
        subject = Subject(
            "Pod",
            metadata.namespace or "default",
            metadata.name or "",
            metadata.uid or "",
            metadata.resourceVersion or "",
            field_path(pod, container) if container else "",
        )
        self._events.tell(Event(subject, kind, reason, message))

    def node_event(self, kind: Kind, reason: str, message: str) -> None:
        """About the node itself; its uid is its name, since it tells before it has one."""
        self._events.tell(Event(Subject("Node", "", self._node, self._node), kind, reason, message))

    def _known(self, pod: v1.Pod) -> _Pod:
        known = self._pods.get(uid_of(pod))
        if known is None:
            told = pod.status or v1.PodStatus()
            known = self._pods[uid_of(pod)] = _Pod(pod, _encoded(told.to_dict()), told)
        known.pod = v1.Pod(metadata=pod.metadata)
        return known

    def _to_tell(self, known: _Pod) -> None:
        if not known.is_changed:
            known.changed_at = time.monotonic()
        known.is_changed = True
        self._enqueue(known)

    def _enqueue(self, known: _Pod) -> None:
        if not known.is_queued:
            known.is_queued = True
            self._queue.put_nowait(uid_of(known.pod))

    async def _tell_pods(self) -> None:
        wait = _FIRST_WAIT
        while True:
            known = self._pods[await self._queue.get()]
            try:
                async with self._api.status_turns:
                    await self._tell_pod(known)
                wait = _FIRST_WAIT
            except Unavailable as error:
                _log.info("the status of %s waits: %s", show(known.pod), error)
                is_back = await self._api.pause(wait)
                wait = _FIRST_WAIT if is_back else min(wait * 2, _LONGEST_WAIT)
            except WinpodError as error:
                _log.warning("the status of %s is not taken: %s", show(known.pod), error)
                known.is_changed = False
            known.is_queued = False
            if uid_of(known.pod) in self._pods and (known.is_changed or known.is_gone):
                self._enqueue(known)

    async def _tell_pod(self, known: _Pod) -> None:
        metadata = metadata_of(known.pod)
        path = f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}"
        if known.is_changed:
            status, known.is_changed = known.status, False
            changed_at = known.changed_at
            try:
                await self._tell_status(known, status, path)
                self._timings.status_told(time.monotonic() - changed_at)
            except Unavailable:
                known.is_changed = True
                raise
        if known.is_gone and not known.is_changed:
            await self._let_go(known, path)

    async def _tell_status(self, known: _Pod, status: v1.PodStatus, path: str) -> None:
        ours = status.to_dict()
        patch: dict[str, Any] = {"status": status_patch(msgspec.json.decode(known.told), ours)}
        if not patch["status"] and known.is_annotated:
            return
        patch["metadata"] = {"annotations": known.annotations} if known.annotations else {}
        if not is_static(known.pod):
            patch["metadata"]["uid"] = uid_of(known.pod)
        try:
            answered = _version(await self._api.patch(v1.Pod, f"{path}/status", patch))
        except Refused as error:
            _raise_unless_settled(error)
            return
        known.is_annotated = True
        if answered >= known.version:
            known.told, known.version = _encoded(ours), answered

    async def _let_go(self, known: _Pod, path: str) -> None:
        """Only of a pod that was deleted: one that took its name is another."""
        uid = uid_of(known.pod)
        if is_deleted(known.pod) and not is_static(known.pod):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            try:
                await self._api.delete(path, options)
            except Refused as error:
                _raise_unless_settled(error)
        self._pods.pop(uid, None)
        if self._forgotten:
            self._forgotten(uid)


def _raise_unless_settled(error: Refused) -> None:
    """A pod that is gone, or another by now, has nothing to be told."""
    if error.is_forbidden:
        raise Unavailable(error.sentence)
    if not (error.is_missing or error.is_conflict):
        raise error


def _encoded(status: dict[str, Any]) -> bytes:
    return msgspec.json.encode(status)


def _version(pod: v1.Pod) -> int:
    """Later ones are greater."""
    return int(metadata_of(pod).resourceVersion or 0)

"""Status manager: sends pod statuses, annotations, events and deletions to the API server.

Callers never wait for the server. Only the newest status of a pod is sent, as a patch, and it is
queued while the server is unreachable. Statuses that others overwrote are sent again. A deleted pod
is removed from the API only after its last status was sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from winpod.clock import Clock, utc_now
from winpod.concurrency import Backoff
from winpod.errors import Unavailable, WinpodError
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.event_recorder import Event, EventRecorder, ObjectReference
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    field_path,
    format_pod,
    is_deleted,
    metadata_of,
    pod_log_fields,
    uid_of,
)
from winpod.kubelet.interfaces import EventType
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.static_pods import is_static
from winpod.kubelet.status.patch import status_patch, with_foreign_conditions
from winpod.placement.predicates import TERMINAL_PHASES

_WORKERS = 8
_FIRST_WAIT, _MAX_WAIT = 0.5, 15.0
_COMPONENT = "kubelet"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ReportedPod:
    """The last status the server accepted for a pod, and the status to send.

    There may be many: only the pod's metadata is kept, and the reported status is encoded.
    """

    pod: v1.Pod
    reported: bytes
    status: v1.PodStatus
    version: int = 0
    is_changed: bool = False
    changed_at: float = 0.0
    is_gone: bool = False
    is_queued: bool = False
    annotations: Mapping[str, str] | None = None
    is_annotated: bool = True


class StatusManager:
    def __init__(
        self,
        api: ApiClient,
        node: str,
        metrics: KubeletMetrics,
        clock: Clock = utc_now,
        on_forgotten: Callable[[str], None] | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._metrics = metrics
        self._on_forgotten = on_forgotten
        self._pods: dict[str, _ReportedPod] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._events = EventRecorder(api, _COMPONENT, node, clock)

    async def run(self) -> None:
        workers = [self._send_loop() for _ in range(_WORKERS)]
        await asyncio.gather(self._events.run(), *workers)

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        entry = self._entry(pod)
        entry.status, entry.is_gone = status, False
        self._mark_changed(entry)

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        entry = self._entry(pod)
        entry.annotations, entry.is_annotated = annotations, False
        self._mark_changed(entry)

    def resend(self, uid: str) -> None:
        """Send the whole status again, because the server recreated the pod without it."""
        if entry := self._pods.get(uid):
            entry.reported = _encoded({})
            self._mark_changed(entry)

    def on_server_status(self, pod: v1.Pod) -> None:
        """Compare the server's status with the reported one, which others may have overwritten."""
        entry, version = self._pods.get(uid_of(pod)), _version(pod)
        if entry is None or version <= entry.version:
            return
        entry.version = version
        desired = entry.status.to_dict()
        on_server = with_foreign_conditions(pod.status.to_dict() if pod.status else {}, desired)
        if on_server.get("phase") not in TERMINAL_PHASES and status_patch(on_server, desired):
            entry.reported = _encoded(on_server)
            self._mark_changed(entry)

    async def pod_deleted(self, pod: v1.Pod) -> None:
        entry = self._entry(pod)
        entry.is_gone = True
        self._enqueue(entry)

    async def event(
        self, pod: v1.Pod, kind: EventType, reason: str, message: str, container: str = ""
    ) -> None:
        metadata = metadata_of(pod)
        subject = ObjectReference(
            "Pod",
            metadata.namespace or "default",
            metadata.name or "",
            metadata.uid or "",
            metadata.resourceVersion or "",
            field_path(pod, container) if container else "",
        )
        self._events.record(Event(subject, kind, reason, message))

    def node_event(self, kind: EventType, reason: str, message: str) -> None:
        """Record an event about the node. Its UID is its name, as it may not be registered yet."""
        self._events.record(
            Event(ObjectReference("Node", "", self._node, self._node), kind, reason, message)
        )

    def _entry(self, pod: v1.Pod) -> _ReportedPod:
        entry = self._pods.get(uid_of(pod))
        if entry is None:
            status = pod.status or v1.PodStatus()
            entry = self._pods[uid_of(pod)] = _ReportedPod(pod, _encoded(status.to_dict()), status)
        entry.pod = v1.Pod(metadata=pod.metadata)
        return entry

    def _mark_changed(self, entry: _ReportedPod) -> None:
        if not entry.is_changed:
            entry.changed_at = time.monotonic()
        entry.is_changed = True
        self._enqueue(entry)

    def _enqueue(self, entry: _ReportedPod) -> None:
        if not entry.is_queued:
            entry.is_queued = True
            self._queue.put_nowait(uid_of(entry.pod))

    async def _send_loop(self) -> None:
        backoff = Backoff(_FIRST_WAIT, _MAX_WAIT)
        while True:
            entry = self._pods[await self._queue.get()]
            try:
                async with self._api.status_turns:
                    await self._send_pod(entry)
                backoff.reset()
            except Unavailable as error:
                _log.info(
                    "Failed to update status of pod %s, retrying: %s",
                    *(format_pod(entry.pod), error),
                    extra=pod_log_fields(entry.pod),
                )
                if await self._api.wait_before_retry(backoff.next()):
                    backoff.reset()
            except WinpodError as error:
                _log.warning(
                    "Failed to update status of pod %s: %s",
                    *(format_pod(entry.pod), error),
                    extra=pod_log_fields(entry.pod),
                )
                entry.is_changed = False
            entry.is_queued = False
            if uid_of(entry.pod) in self._pods and (entry.is_changed or entry.is_gone):
                self._enqueue(entry)

    async def _send_pod(self, entry: _ReportedPod) -> None:
        metadata = metadata_of(entry.pod)
        path = f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}"
        if entry.is_changed:
            status, entry.is_changed = entry.status, False
            changed_at = entry.changed_at
            try:
                await self._send_status(entry, status, path)
                self._metrics.observe_status_update(time.monotonic() - changed_at)
            except Unavailable:
                entry.is_changed = True
                raise
        if entry.is_gone and not entry.is_changed:
            await self._finalize(entry, path)

    async def _send_status(self, entry: _ReportedPod, status: v1.PodStatus, path: str) -> None:
        desired = status.to_dict()
        patch: dict[str, Any] = {
            "status": status_patch(msgspec.json.decode(entry.reported), desired)
        }
        if not patch["status"] and entry.is_annotated:
            return
        patch["metadata"] = {"annotations": entry.annotations} if entry.annotations else {}
        if not is_static(entry.pod):
            patch["metadata"]["uid"] = uid_of(entry.pod)
        try:
            answered = _version(await self._api.patch(v1.Pod, f"{path}/status", patch))
        except ApiError as error:
            _raise_unless_settled(error)
            return
        entry.is_annotated = True
        if answered >= entry.version:
            entry.reported, entry.version = _encoded(desired), answered

    async def _finalize(self, entry: _ReportedPod, path: str) -> None:
        """Finalize a pod. Delete it only if it was marked deleted; its name may be reused."""
        uid = uid_of(entry.pod)
        if is_deleted(entry.pod) and not is_static(entry.pod):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            try:
                await self._api.delete(path, options)
            except ApiError as error:
                _raise_unless_settled(error)
        self._pods.pop(uid, None)
        if self._on_forgotten:
            self._on_forgotten(uid)


def _raise_unless_settled(error: ApiError) -> None:
    """Ignore a pod that is gone or was replaced. Retry if access is forbidden."""
    if error.is_forbidden:
        raise Unavailable(error.message)
    if not (error.is_not_found or error.is_conflict):
        raise error


def _encoded(status: dict[str, Any]) -> bytes:
    return msgspec.json.encode(status)


def _version(pod: v1.Pod) -> int:
    """Return the resource version, which increases with every change."""
    return int(metadata_of(pod).resourceVersion or 0)

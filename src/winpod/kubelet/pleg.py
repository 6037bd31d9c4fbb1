"""Pod lifecycle event generator: caches the state of all pods in the runtime.

The runtime's event stream updates the cache. A relist finds what the stream missed, immediately
after the stream breaks and periodically otherwise. While the runtime does not answer, the last
known state stays in the cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import grpc

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import WinpodError
from winpod.kubelet.cri_convert import POD_UID_LABEL
from winpod.kubelet.runtime_client import RuntimeClient
from winpod.kubelet.runtime_status import (
    RuntimePod,
    RuntimeSandbox,
    to_runtime_pod,
    to_runtime_sandbox,
)
from winpod.kubelet.termination_message import termination_message

RELIST_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_MAX_DROPPED = 1000
_log = logging.getLogger(__name__)


class Pleg:
    def __init__(self, runtime: RuntimeClient, on_change: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._on_change = on_change
        self._sandboxes: dict[str, dict[str, RuntimeSandbox]] = {}
        self._termination_messages: dict[str, str] = {}
        self._dropped: deque[str] = deque(maxlen=_MAX_DROPPED)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_interrupted = asyncio.Event()
        self.is_synced = asyncio.Event()
        self.is_answering = False

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._relist())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def uids(self) -> list[str]:
        return list(self._sandboxes)

    def pod(self, uid: str) -> RuntimePod:
        return to_runtime_pod(self._sandboxes.get(uid, {}).values())

    async def refresh(self, uid: str, new_sandbox: str = "") -> None:
        """Read a pod's sandboxes from the runtime now, ahead of its events.

        `new_sandbox` is one that no event has reported yet.
        """
        for id_ in {*self._sandboxes.get(uid, ()), new_sandbox} - {""}:
            if not await self._read(id_):
                self._drop(uid, id_)

    async def _listen(self) -> None:
        while True:
            events = self._runtime.stream("GetContainerEvents", api.GetEventsRequest())
            with suppress(WinpodError):
                async for event in events:
                    self._handle_event(event)
            self._is_interrupted.set()
            await asyncio.sleep(_RETRY_SECONDS)

    def _handle_event(self, event: api.ContainerEventResponse) -> None:
        status = event.pod_sandbox_status
        is_deleted = event.container_event_type == api.CONTAINER_DELETED_EVENT
        if is_deleted and event.container_id == status.id:
            self._drop(status.labels.get(POD_UID_LABEL, ""), status.id)
            return
        statuses = [
            container
            for container in event.containers_statuses
            if not (is_deleted and container.id == event.container_id)
        ]
        self._update(status, statuses, event.created_at)

    async def _relist(self) -> None:
        """Relist periodically, and twice after the event stream breaks.

        The stream may be reconnected only after the first of the two.
        """
        while True:
            wait = RELIST_SECONDS if self.is_answering else _RETRY_SECONDS
            try:
                await self._list_all()
                self.is_answering = True
            except WinpodError as error:
                if self.is_answering:
                    _log.warning("PLEG relist failed: %s", error)
                self.is_answering, wait = False, _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._is_interrupted.wait()
                    self.is_answering = False
                    await asyncio.sleep(_RETRY_SECONDS)
            self._is_interrupted.clear()

    async def _list_all(self) -> None:
        listed_at = time.time_ns()
        sandboxes = await self._runtime.call("ListPodSandbox", api.ListPodSandboxRequest())
        containers = await self._runtime.call("ListContainers", api.ListContainersRequest())
        states: dict[str, set[tuple[str, int]]] = {}
        for container in containers.containers:
            states.setdefault(container.pod_sandbox_id, set()).add((container.id, container.state))
        listed: dict[str, set[str]] = {uid: set() for uid in self._sandboxes}
        for sandbox in sandboxes.items:
            if uid := sandbox.labels.get(POD_UID_LABEL):
                listed.setdefault(uid, set()).add(sandbox.id)
                cached = self._sandboxes.get(uid, {}).get(sandbox.id)
                if cached is None or _differs(cached, sandbox, states.get(sandbox.id, set())):
                    await self._read(sandbox.id)
        for uid, ids in listed.items():
            self._drop_unlisted(uid, ids, listed_at)
        self.is_synced.set()

    async def _read(self, sandbox: str) -> bool:
        """Update one sandbox from the runtime; return whether it still exists."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        try:
            answer = await self._runtime.call("PodSandboxStatus", request)
        except RemoteError as error:
            if error.status is not grpc.StatusCode.NOT_FOUND:
                raise
            return False
        self._update(answer.status, answer.containers_statuses, answer.timestamp)
        return True

    def _update(
        self,
        status: api.PodSandboxStatus,
        containers: Iterable[api.ContainerStatus],
        reported_at: int,
    ) -> None:
        uid = status.labels.get(POD_UID_LABEL)
        if not uid or status.id in self._dropped:
            return  # events may arrive after the sandbox was removed
        of_pod = self._sandboxes.setdefault(uid, {})
        cached = of_pod.get(status.id)
        if cached and reported_at <= cached.reported_at and not _is_in_future(cached):
            return
        sandbox = to_runtime_sandbox(status, containers, reported_at, self._termination_message)
        of_pod[status.id] = sandbox
        self._forget_messages(cached, kept=sandbox)
        if sandbox != cached:
            self._on_change(uid)

    def _termination_message(self, status: api.ContainerStatus) -> str:
        if status.id not in self._termination_messages:
            self._termination_messages[status.id] = termination_message(status)
        return self._termination_messages[status.id]

    def _forget_messages(
        self, before: RuntimeSandbox | None, kept: RuntimeSandbox | None = None
    ) -> None:
        """Drop the termination messages of containers that were removed."""
        ids = {container.id for container in kept.containers} if kept else set()
        for container in before.containers if before else ():
            if container.id not in ids:
                self._termination_messages.pop(container.id, None)

    def _drop_unlisted(self, uid: str, listed: set[str], listed_at: int) -> None:
        for id_, sandbox in list(self._sandboxes.get(uid, {}).items()):
            if id_ not in listed and (sandbox.reported_at < listed_at or _is_in_future(sandbox)):
                self._drop(uid, id_)

    def _drop(self, uid: str, sandbox: str) -> None:
        of_pod = self._sandboxes.get(uid, {})
        dropped = of_pod.pop(sandbox, None)
        if dropped is None:
            return
        self._dropped.append(sandbox)
        self._forget_messages(dropped)
        if not of_pod:
            del self._sandboxes[uid]
        self._on_change(uid)


_STATES = {
    "created": api.CONTAINER_CREATED,
    "running": api.CONTAINER_RUNNING,
    "exited": api.CONTAINER_EXITED,
    "unknown": api.CONTAINER_UNKNOWN,
}


def _is_in_future(sandbox: RuntimeSandbox) -> bool:
    """Whether the report has a timestamp in the future, because the clock was set back since."""
    return sandbox.reported_at > time.time_ns()


def _differs(
    cached: RuntimeSandbox, listed: api.PodSandbox, containers: set[tuple[str, int]]
) -> bool:
    states = {(container.id, int(_STATES[container.state])) for container in cached.containers}
    return cached.is_ready != (listed.state == api.SANDBOX_READY) or states != containers

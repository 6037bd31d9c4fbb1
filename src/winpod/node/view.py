"""What the runtime has of all pods, kept up to date by its events.

A relist finds what events have missed, after a break at once and now and then anyway. While the
runtime does not answer, what was known last stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.node.last_words import last_words
from winpod.node.requests import POD_UID
from winpod.node.seen import PodSeen, SandboxSeen, pod_seen, sandbox_seen
from winpod.windows.errors import Unavailable, WinpodError

RELIST_SECONDS = 60.0
CALL_SECONDS = 120.0
_RETRY_SECONDS = 1.0
_REMEMBERED = 1000
_log = logging.getLogger(__name__)


async def call_in_time(
    client: Client, name: str, request: Message, seconds: float = CALL_SECONDS
) -> Any:
    """A runtime that does not answer is one that is away."""
    try:
        async with asyncio.timeout(seconds):
            return await client.call(name, request)
    except TimeoutError:
        raise Unavailable(f"the runtime did not answer {name} in {seconds:g} s.") from None


class RuntimeView:
    def __init__(self, client: Client, changed: Callable[[str], None]) -> None:
        self._client = client
        self._changed = changed
        self._sandboxes: dict[str, dict[str, SandboxSeen]] = {}
        self._words: dict[str, str] = {}
        self._dropped: deque[str] = deque(maxlen=_REMEMBERED)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_interrupted = asyncio.Event()
        self.is_known = asyncio.Event()
        self.is_answering = False

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._relist())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def uids(self) -> list[str]:
        return list(self._sandboxes)

    def seen(self, uid: str) -> PodSeen:
        return pod_seen(self._sandboxes.get(uid, {}).values())

    async def refresh(self, uid: str, made: str = "") -> None:
        """What the runtime has of a pod now, which its events may tell a moment later.

        `made` is a sandbox that no event has told of yet.
        """
        for id_ in {*self._sandboxes.get(uid, ()), made} - {""}:
            if not await self._read(id_):
                self._drop(uid, id_)

    async def _listen(self) -> None:
        while True:
            events = self._client.stream("GetContainerEvents", api.GetEventsRequest())
            with suppress(WinpodError):
                async for event in events:
                    self._take_event(event)
            self._is_interrupted.set()
            await asyncio.sleep(_RETRY_SECONDS)

    def _take_event(self, event: api.ContainerEventResponse) -> None:
        status = event.pod_sandbox_status
        is_deleted = event.container_event_type == api.CONTAINER_DELETED_EVENT
        if is_deleted and event.container_id == status.id:
            self._drop(status.labels.get(POD_UID, ""), status.id)
            return
        statuses = [
            container
            for container in event.containers_statuses
            if not (is_deleted and container.id == event.container_id)
        ]
        self._take(status, statuses, event.created_at)

    async def _relist(self) -> None:
        """Twice after a break, because events may be listened to only after the first."""
        while True:
            wait = RELIST_SECONDS if self.is_answering else _RETRY_SECONDS
            try:
                await self._list_all()
                self.is_answering = True
            except WinpodError as error:
                if self.is_answering:
                    _log.warning("what pods do is not known: %s", error)
                self.is_answering, wait = False, _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._is_interrupted.wait()
                    self.is_answering = False
                    await asyncio.sleep(_RETRY_SECONDS)
            self._is_interrupted.clear()

    async def _list_all(self) -> None:
        asked_at = time.time_ns()
        sandboxes = await call_in_time(self._client, "ListPodSandbox", api.ListPodSandboxRequest())
        containers = await call_in_time(self._client, "ListContainers", api.ListContainersRequest())
        states: dict[str, set[tuple[str, int]]] = {}
        for container in containers.containers:
            states.setdefault(container.pod_sandbox_id, set()).add((container.id, container.state))
        listed: dict[str, set[str]] = {uid: set() for uid in self._sandboxes}
        for sandbox in sandboxes.items:
            if uid := sandbox.labels.get(POD_UID):
                listed.setdefault(uid, set()).add(sandbox.id)
                known = self._sandboxes.get(uid, {}).get(sandbox.id)
                if known is None or _differs(known, sandbox, states.get(sandbox.id, set())):
                    await self._read(sandbox.id)
        for uid, ids in listed.items():
            self._drop_unlisted(uid, ids, asked_at)
        self.is_known.set()

    async def _read(self, sandbox: str) -> bool:
        """Whether there is such a sandbox still."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        try:
            answer = await call_in_time(self._client, "PodSandboxStatus", request)
        except RemoteError as error:
            if error.status is not grpc.StatusCode.NOT_FOUND:
                raise
            return False
        self._take(answer.status, answer.containers_statuses, answer.timestamp)
        return True

    def _take(
        self, status: api.PodSandboxStatus, containers: Iterable[api.ContainerStatus], told_at: int
    ) -> None:
        uid = status.labels.get(POD_UID)
        if not uid or status.id in self._dropped:
            return  # an event may come after what it is about is gone
        of_pod = self._sandboxes.setdefault(uid, {})
        known = of_pod.get(status.id)
        if known and told_at <= known.told_at and not _is_to_come(known):
            return
        found = sandbox_seen(status, containers, told_at, self._last_words)
        of_pod[status.id] = found
        if found != known:
            self._changed(uid)

    def _last_words(self, status: api.ContainerStatus) -> str:
        if status.id not in self._words:
            self._words[status.id] = last_words(status)
        return self._words[status.id]

    def _drop_unlisted(self, uid: str, listed: set[str], asked_at: int) -> None:
        for id_, sandbox in list(self._sandboxes.get(uid, {}).items()):
            if id_ not in listed and (sandbox.told_at < asked_at or _is_to_come(sandbox)):
                self._drop(uid, id_)

    def _drop(self, uid: str, sandbox: str) -> None:
        of_pod = self._sandboxes.get(uid, {})
        dropped = of_pod.pop(sandbox, None)
        if dropped is None:
            return
        self._dropped.append(sandbox)
        for container in dropped.containers:
            self._words.pop(container.id, None)
        if not of_pod:
            del self._sandboxes[uid]
        self._changed(uid)


_STATES = {
    "created": api.CONTAINER_CREATED,
    "running": api.CONTAINER_RUNNING,
    "exited": api.CONTAINER_EXITED,
    "unknown": api.CONTAINER_UNKNOWN,
}


def _is_to_come(sandbox: SandboxSeen) -> bool:
    """Told at a time that has not come yet: the clock was put back since."""
    return sandbox.told_at > time.time_ns()


def _differs(known: SandboxSeen, listed: api.PodSandbox, containers: set[tuple[str, int]]) -> bool:
    has = {(container.id, int(_STATES[container.state])) for container in known.containers}
    return known.is_ready != (listed.state == api.SANDBOX_READY) or has != containers

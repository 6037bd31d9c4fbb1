"""The starts of one pod's containers: what keeps each waiting, and when it is tried again.

What can take long, a pull or a hook, is left when the pod is to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from lightkube.models import core_v1 as v1

from winpod.node.backoff import Backoff, show_wait
from winpod.node.beginning import StartFailed, after_start, get_images, start_container
from winpod.node.ending import end_container
from winpod.node.known import Why
from winpod.node.means import Means
from winpod.node.pods import grace_seconds, show, uid_of
from winpod.node.pulling import PullFailed
from winpod.node.requests import container_hash
from winpod.node.seen import ContainerSeen, PodSeen
from winpod.node.volumes import Mounted

RETRY_SECONDS = 10.0
SOON_SECONDS = 2.0
_Result = TypeVar("_Result")


class Interrupted(Exception):
    """The pod is to end, and what it waited for no longer matters."""


class Starts:
    def __init__(self, means: Means, ending: asyncio.Event) -> None:
        self._means = means
        self._ending = ending
        self._backoffs: dict[tuple[str, str], Backoff] = {}
        self._ready_at: dict[str, float] = {}
        self.waiting: dict[str, Why] = {}

    async def start(
        self,
        pod: v1.Pod,
        container: v1.Container,
        seen: PodSeen,
        mounted: Mounted,
        restart_count: int,
    ) -> float | None:
        """In how many seconds to try again, if the container could not be started now."""
        name, sandbox = container.name, seen.newest
        if sandbox is None:
            return None
        if wait := await self._has_to_wait(pod, container, seen.last(name)):
            return wait
        try:
            image = await self._unless_ending(
                get_images(pod, container, sandbox.handler, self._means)
            )
            id_ = await start_container(
                pod, container, image, mounted, restart_count, sandbox, self._means
            )
            ip = sandbox.ips[0] if sandbox.ips else ""
            await self._unless_ending(after_start(pod, container, id_, ip, self._means))
        except (PullFailed, StartFailed) as error:
            self.waiting[name] = Why(error.reason, str(error))
            if error.reason == "PostStartHookError":
                await self._end_after_hook(pod, name)
            # The next attempt of a pull only says that it has to wait.
            return SOON_SECONDS if error.reason == "ErrImagePull" else RETRY_SECONDS
        self.waiting.pop(name, None)
        return None

    async def _has_to_wait(
        self, pod: v1.Pod, container: v1.Container, last: ContainerSeen | None
    ) -> float:
        """How long, because the container ended too often and too recently; mostly not at all."""
        if last is None or not last.has_ended:
            return 0
        pace, now = self._means.pace, self._means.clock()
        ended = last.finished_at or last.created_at
        key = container.name, container_hash(container)
        known = self._backoffs.get(key)
        left = self._left(last.id, pace.ready_at(known, ended) - now, known)
        if known is None or left <= 0:
            self._ready_at.pop(last.id, None)
            self._backoffs[key] = pace.next(known, ended, now)
            return 0
        about = f"restarting failed container={container.name} pod={show(pod)}"
        why = Why("CrashLoopBackOff", f"back-off {show_wait(known.wait)} {about}")
        if self.waiting.get(container.name) != why:
            self.waiting[container.name] = why
            text = f"Back-off restarting failed container {container.name} in pod {show(pod)}"
            await self._means.tell(pod, "Warning", "BackOff", text, container.name)
        return left

    def _left(self, id_: str, wait: timedelta, known: Backoff | None) -> float:
        """The seconds left of a wait; the clock of the machine is asked only at its beginning."""
        longest = known.wait.total_seconds() if known else 0.0
        first = time.monotonic() + min(wait.total_seconds(), longest)
        return self._ready_at.setdefault(id_, first) - time.monotonic()

    async def _end_after_hook(self, pod: v1.Pod, name: str) -> None:
        await self._means.view.refresh(uid_of(pod))
        seen = self._means.view.seen(uid_of(pod))
        last, ip = seen.last(name), seen.ips[0] if seen.ips else ""
        if last and last.is_running:
            grace, text = grace_seconds(pod), "FailedPostStartHook"
            await end_container(pod, last, ip, grace, self._means, message=text)

    async def _unless_ending(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        task = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Interrupted
            return task.result()
        finally:
            ending.cancel()
            task.cancel()

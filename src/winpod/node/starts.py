"""The starts of one pod's containers: what keeps each waiting, and when it is tried again.

What can take long, a pull or a hook, is left when the pod is to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from lightkube.models import core_v1 as v1

from winpod.node.backoff import Backoff, show_wait
from winpod.node.beginning import StartFailed, after_start, get_images, start_container
from winpod.node.ending import end_container
from winpod.node.means import Means
from winpod.node.pods import grace_seconds, show, uid_of
from winpod.node.pulling import PullFailed
from winpod.node.requests import container_hash
from winpod.node.seen import ContainerSeen, PodSeen
from winpod.node.status import Why
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
        self.waiting: dict[str, Why] = {}

    async def start(
        self,
        pod: v1.Pod,
        container: v1.Container,
        seen: PodSeen,
        mounted: Mounted,
        restart_count: int,
    ) -> datetime | None:
        """When to try again, if the container could not be started now."""
        name, sandbox = container.name, seen.newest
        if sandbox is None:
            return None
        if again_at := await self._has_to_wait(pod, container, seen.last(name)):
            return again_at
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
            wait = SOON_SECONDS if error.reason == "ErrImagePull" else RETRY_SECONDS
            return self._means.clock() + timedelta(seconds=wait)
        self.waiting.pop(name, None)
        return None

    async def _has_to_wait(
        self, pod: v1.Pod, container: v1.Container, last: ContainerSeen | None
    ) -> datetime | None:
        """Until when, if the container ended too often and too recently to be started now."""
        if last is None or not last.has_ended:
            return None
        pace, now = self._means.pace, self._means.clock()
        ended = last.finished_at or last.created_at
        key = container.name, container_hash(container)
        known = self._backoffs.get(key)
        ready_at = pace.ready_at(known, ended)
        if known is None or now >= ready_at:
            self._backoffs[key] = pace.next(known, ended, now)
            return None
        about = f"restarting failed container={container.name} pod={show(pod)}"
        why = Why("CrashLoopBackOff", f"back-off {show_wait(known.wait)} {about}")
        if self.waiting.get(container.name) != why:
            self.waiting[container.name] = why
            text = f"Back-off restarting failed container {container.name} in pod {show(pod)}"
            await self._means.tell(pod, "Warning", "BackOff", text, container.name)
        return ready_at

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

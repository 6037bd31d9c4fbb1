"""One pod's life on the node, from its admission to its last trace.

The worker sleeps until something has changed: the pod, what the runtime has of it, an answer of a
probe, or a time that was waited for. Then it decides and acts until there is nothing left to do.
What fails is tried again; what has been said is said again only when it changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.node.admission import Taken, taken_by
from winpod.node.beginning import make_sandbox, mount_volumes, tell_accelerator
from winpod.node.decide import Plan, Resize, decide
from winpod.node.ending import (
    end_container,
    end_containers,
    end_containers_in_time,
    grace_of,
    remove_sandboxes,
    reset_containers,
    stop_sandboxes,
)
from winpod.node.eviction import EVICTED
from winpod.node.health import Result
from winpod.node.known import Known, Why
from winpod.node.means import Means
from winpod.node.phase import Told
from winpod.node.pods import ENDED, grace_seconds, is_deleted, show, uid_of
from winpod.node.probes import Kind, Probes
from winpod.node.requests import container_resources, spec_of
from winpod.node.resize import allocate, as_given, is_resized
from winpod.node.seen import ContainerSeen, PodSeen
from winpod.node.starts import RETRY_SECONDS, SOON_SECONDS, Interrupted, Starts
from winpod.node.status import make_status, rejected
from winpod.node.tidying import remove_logs, tidy
from winpod.node.volumes import Mounted
from winpod.windows.errors import Unavailable, WinpodError

_log = logging.getLogger(__name__)

DEADLINE = Why("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What a worker knows of the node beside its pod."""

    taken: Callable[[str], Iterable[Taken]]
    refusal: Callable[[v1.Pod], Awaitable[Why | None]]


class Worker:
    def __init__(self, pod: v1.Pod, means: Means, neighbours: Neighbours) -> None:
        self.pod = pod
        self.given = as_given(pod)
        self.takes = Taken(())
        self.status: v1.PodStatus | None = None
        self.is_taken = False
        self.is_removed = False
        self.is_gone = False
        self.ended = asyncio.Event()
        self._means = means
        self._neighbours = neighbours
        self._first_seen: float | None = time.monotonic()
        self._start_time = (pod.status and pod.status.startTime) or means.clock()
        self._failure: Why | None = None
        self._grace: float | None = None
        self._is_rejected = False
        self._is_over = False
        self._conditions: dict[str, Told] = {}
        self._wake = asyncio.Event()
        self._wake_at: float | None = None
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._starts = Starts(means, self._ending)
        self._probes = Probes(
            means.checks,
            means.reporter,
            means.clock,
            self.wake,
            is_simulated=means.facts.is_simulated,
        )

    @property
    def uid(self) -> str:
        return uid_of(self.pod)

    @property
    def is_active(self) -> bool:
        """Whether the pod counts against what the node has."""
        return self.is_taken and not self._is_over

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    @property
    def waits_for_room(self) -> bool:
        return "PodResizePending" in self._conditions

    @property
    def probed(self) -> Mapping[tuple[str, Kind, Result], int]:
        """How many answers of each kind the probes have had."""
        return self._probes.answers

    def wake(self) -> None:
        self._wake.set()

    def set(self, pod: v1.Pod) -> None:
        if is_deleted(pod):
            if is_deleted(self.pod) and grace_seconds(pod) < grace_seconds(self.pod):
                self._hurry.set()
            self._ending.set()
        self.pod = pod
        self.wake()

    def remove(self) -> None:
        """Nobody knows the pod any longer: it ends, and nothing more is told of it."""
        self.is_removed = True
        self._ending.set()
        self.wake()

    def fail(self, why: Why, grace: float, condition: Told | None = None) -> None:
        """The pod ends here and has failed, whatever its containers do."""
        self._failure, self._grace = why, grace
        if condition:
            self._conditions[condition.type] = condition
        self._ending.set()
        self.wake()

    async def run(self) -> None:
        await self._means.view.is_known.wait()
        if is_deleted(self.pod):
            self._ending.set()
        while not self.is_gone:
            self._wake.clear()
            self._wake_at = None
            try:
                await self._sync()
            except Interrupted:
                continue
            except WinpodError as error:
                _log.info("pod %s has to wait: %s", show(self.pod), error)
                is_away = isinstance(error, Unavailable)
                self._again_in(SOON_SECONDS if is_away else RETRY_SECONDS)
            except Exception:
                _log.exception("pod %s cannot go on", show(self.pod))
                self._again_in(RETRY_SECONDS)
            await self._sleep()

    def _again_in(self, seconds: float) -> None:
        time_then = time.monotonic() + seconds
        self._wake_at = min(time_then, self._wake_at) if self._wake_at else time_then

    async def _sleep(self) -> None:
        if self.is_gone:
            self._probes.stop()
            return
        wait = max(self._wake_at - time.monotonic(), 0) if self._wake_at else None
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._wake.wait()

    async def _sync(self) -> None:
        if not self.is_taken and not await self._take():
            return
        self._allocate()
        seen = self._seen()
        await self._check_deadline()
        if self._ending.is_set():
            await self._end()
            return
        if not self._is_over:
            await self._report()
            self._is_over = bool(self.status and self.status.phase in ENDED)
        if self._is_over:
            await self._end()
            return
        plan = decide(self.given, seen, self._probes.health, self._means.facts.cpus)
        if plan.end_pod and not plan.make_sandbox:
            self._is_over = True
            await self._end()
            return
        if plan != Plan():
            try:
                await self._act(plan, seen)
            except (WinpodError, Interrupted):
                await self._catch_up()
                raise
            await self._catch_up()
        await tidy(self._seen(), self._means)

    async def _catch_up(self) -> None:
        await self._means.view.refresh(self.uid)
        await self._report()

    def _seen(self) -> PodSeen:
        return self._means.view.seen(self.uid)

    def _allocate(self) -> None:
        """A pod that asks for other resources gets them when there is room."""
        if not is_resized(self.pod, self.given):
            self.given = self.pod
            self._note("PodResizePending", None)
            return
        found = allocate(self.pod, self.given, self._others(), self._means.facts)
        self.given, self.takes = found.pod, taken_by(found.pod)
        self._note("PodResizePending", found.pending)

    def _others(self) -> Iterable[Taken]:
        return self._neighbours.taken(self.uid)

    async def _take(self) -> bool:
        """Whether the pod is the node's. One that runs already is not asked again."""
        if self._is_rejected:
            if self._ending.is_set():
                await self._end()
            return False
        sandboxes = self._seen().sandboxes
        is_known = bool(sandboxes)
        if is_known:
            self._first_seen = None
            await tell_accelerator(self.pod, sandboxes[0], self._means)
        if is_known and not (self.pod.status and self.pod.status.startTime):
            self._start_time = min(sandbox.created_at for sandbox in sandboxes)
        if not is_known and self.pod.status and self.pod.status.phase in ENDED:
            self.status = self.pod.status
            self._is_over = True
            self.ended.set()
        why = None
        if not (is_known or self._is_over or self._ending.is_set()):
            why = await self._neighbours.refusal(self.pod)
        if why:
            self._is_rejected = True
            await self._means.tell(self.pod, "Warning", why.reason, why.message)
            self.status = rejected(self.pod, why, self._means.clock())
            await self._means.reporter.status(self.pod, self.status)
            return False
        self.is_taken, self.takes = True, taken_by(self.given)
        return True

    async def _check_deadline(self) -> None:
        seconds = spec_of(self.pod).activeDeadlineSeconds
        if seconds is None or self._failure or self._is_over:
            return
        deadline = self._start_time + timedelta(seconds=seconds)
        left = (deadline - self._means.clock()).total_seconds()
        if left > 0:
            self._again_in(left)
            return
        self._failure = DEADLINE
        self._ending.set()
        await self._means.tell(self.pod, "Normal", DEADLINE.reason, DEADLINE.message)

    def _note(self, kind: str, told: Told | None) -> None:
        if told:
            self._conditions[kind] = told
        else:
            self._conditions.pop(kind, None)

    async def _report(self) -> None:
        """Containers that run are asked how they are from now on, and are not ready before."""
        if self.is_removed:
            return
        if not self._is_over and not self._ending.is_set():
            self._probes.follow(self.given, self._seen(), self.status or self.pod.status)
        known = Known(
            start_time=self._start_time,
            waiting=self._starts.waiting,
            health=self._probes.health,
            failure=self._failure,
            is_over=self._is_over,
            conditions=tuple(self._conditions.values()),
        )
        status = make_status(
            self.given,
            self._seen(),
            known,
            self.status,
            self._means.facts.internal_ip,
            self._means.clock(),
        )
        if status != self.status:
            self.status = status
            self._time_start(status)
            await self._means.reporter.status(self.pod, status)

    def _time_start(self, status: v1.PodStatus) -> None:
        """Once, and not of a pod that ran already when the agent came."""
        if status.phase == "Running" and self._first_seen is not None:
            self._means.timings.pod_runs(time.monotonic() - self._first_seen)
            self._first_seen = None

    async def _act(self, plan: Plan, seen: PodSeen) -> None:
        ip = seen.ips[0] if seen.ips else ""
        if plan.resets:
            await reset_containers(self.given, plan.resets, ip, self._means)
            self.wake()
            return
        if plan.end_pod:
            text = "Pod sandbox changed, it will be killed and re-created."
            await self._means.tell(self.pod, "Normal", "SandboxChanged", text)
            await end_containers(self.given, seen, grace_seconds(self.given), self._means)
            await stop_sandboxes(seen, self._means)
        mounted = await self._mount() if plan.starts else None
        if plan.make_sandbox:
            made = await make_sandbox(self.given, plan.attempt, self._means)
            await self._means.view.refresh(self.uid, made)
            seen = self._seen()
            await tell_accelerator(self.pod, seen.newest, self._means)
        for kill in plan.kills:
            grace = grace_of(self.given, kill)
            await end_container(
                self.given, kill.container, ip, grace, self._means, message=kill.message
            )
        if plan.kills:
            await self._means.view.refresh(self.uid)
            seen = self._seen()
        await self._resize(plan.resizes)
        if mounted is None:
            return
        for container in plan.starts:
            count = self._restart_count(container.name, seen.last(container.name))
            wait = await self._starts.start(self.given, container, seen, mounted, count)
            if wait:
                self._again_in(wait)
            else:
                self.wake()

    async def _mount(self) -> Mounted:
        with self._means.timings.volumes("mount"):
            return await mount_volumes(self.given, self._means)

    async def _unmount(self) -> None:
        with self._means.timings.volumes("unmount"):
            await self._means.volumes.unmount(self.uid)

    def _restart_count(self, name: str, last: ContainerSeen | None) -> int:
        if last:
            return last.restart_count + 1
        told = self.status or self.pod.status or v1.PodStatus()
        known = (*(told.initContainerStatuses or ()), *(told.containerStatuses or ()))
        return next((one.restartCount for one in known if one.name == name), 0)

    async def _resize(self, resizes: Iterable[Resize]) -> None:
        kind = "PodResizeInProgress"
        for resize in resizes:
            self._note(kind, Told(kind, True))
            await self._report()
            request = api.UpdateContainerResourcesRequest(
                container_id=resize.seen.id,
                windows=container_resources(resize.container.resources, self._means.facts.cpus),
            )
            try:
                await self._means.call("UpdateContainerResources", request)
            except WinpodError as error:
                self._note(kind, Told(kind, True, "Error", str(error)))
                await self._means.tell(self.pod, "Warning", "ResizeError", str(error))
                raise
            text = f"Pod resize completed: container {resize.seen.name}"
            await self._means.tell(self.pod, "Normal", "ResizeCompleted", text, resize.seen.name)
        self._note(kind, None)

    async def _end(self) -> None:
        if not self.ended.is_set():
            self._probes.stop(("startup", "liveness"))
            await self._report_end()
            await end_containers_in_time(
                lambda: self.pod, self._seen, self._grace, self._hurry, self._means
            )
            await stop_sandboxes(self._seen(), self._means)
            await self._means.view.refresh(self.uid)
            self._is_over = True
            self.ended.set()
            self._probes.stop()
            await self._report_end()
            if self._is_known():
                await self._unmount()
                await self._keep_little()
        if not self._is_known():
            await self._vanish()

    async def _keep_little(self) -> None:
        """Of a pod that was evicted, nothing: its room was needed."""
        if self._failure and self._failure.reason == EVICTED:
            await remove_sandboxes(self._seen(), self._means)
            await remove_logs(self.pod, self._means)
        else:
            await tidy(self._seen(), self._means)

    def _is_known(self) -> bool:
        return not (self.is_removed or is_deleted(self.pod))

    async def _report_end(self) -> None:
        if not self._is_rejected:
            await self._report()

    async def _vanish(self) -> None:
        await remove_sandboxes(self._seen(), self._means)
        await self._means.view.refresh(self.uid)
        await self._unmount()
        await remove_logs(self.pod, self._means)
        self.is_gone = True
        await self._means.reporter.gone(self.pod)

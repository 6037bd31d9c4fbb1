"""Pod worker: syncs one pod from admission to the removal of its last resource.

The worker sleeps until the pod, its state in the runtime, or a probe result changes, or a timer
expires. It then computes and executes actions until none are left. Failed syncs are retried, and
the status is reported only when it changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from winpod.cri.proto import api_pb2 as api
from winpod.errors import Unavailable, WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    format_pod,
    grace_seconds,
    is_deleted,
    pod_log_fields,
    spec_of,
    uid_of,
)
from winpod.kubelet.admission.predicates import (
    AllocatedResources,
    allocate_resize,
    allocated_by,
    is_resized,
    with_allocated_resources,
)
from winpod.kubelet.container_gc import remove_dead_containers, remove_logs
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.cri_convert import container_resources
from winpod.kubelet.eviction.ranking import EVICTED_REASON
from winpod.kubelet.lifecycle.kill import (
    grace_period,
    kill_container,
    kill_containers,
    kill_containers_until_deadline,
    remove_sandboxes,
    reset_containers,
    stop_sandboxes,
)
from winpod.kubelet.lifecycle.start import (
    RETRY_SECONDS,
    SHORT_RETRY_SECONDS,
    ContainerStarter,
    StartInterrupted,
    annotate_accelerator,
    create_sandbox,
    mount_volumes,
)
from winpod.kubelet.pod_actions import ContainerResize, PodActions, compute_pod_actions
from winpod.kubelet.prober.results import ProbeResult
from winpod.kubelet.prober.worker import ProbeType, ProbeWorker
from winpod.kubelet.runtime_status import RuntimePod
from winpod.kubelet.status.phase import PodCondition, PodState, StatusReason
from winpod.kubelet.status.pod_status import generate_status, rejected_status
from winpod.placement.predicates import TERMINAL_PHASES

_log = logging.getLogger(__name__)

DEADLINE = StatusReason(
    "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a worker needs from the node: other pods' allocations, and admission."""

    allocated: Callable[[str], Iterable[AllocatedResources]]
    admission_failure: Callable[[v1.Pod], Awaitable[StatusReason | None]]


class PodWorker:
    def __init__(self, pod: v1.Pod, context: KubeletContext, worker_context: WorkerContext) -> None:
        self.pod = pod
        self.allocated_pod = with_allocated_resources(pod)
        self.allocated_resources = AllocatedResources(())
        self.status: v1.PodStatus | None = None
        self.is_admitted = False
        self.is_removed = False
        self.is_cleaned_up = False
        self.ended = asyncio.Event()
        self._context = context
        self._worker_context = worker_context
        self._first_seen: float | None = time.monotonic()
        self._start_time = (pod.status and pod.status.startTime) or context.clock()
        self._failure: StatusReason | None = None
        self._grace: float | None = None
        self._is_rejected = False
        self._is_finished = False
        self._conditions: dict[str, PodCondition] = {}
        self._wake = asyncio.Event()
        self._wake_at: float | None = None
        self._terminating = asyncio.Event()
        self._grace_shortened = asyncio.Event()
        self._starter = ContainerStarter(context, self._terminating)
        self._probe_worker = ProbeWorker(
            context.prober,
            context.reporter,
            context.clock,
            self.wake,
            is_simulated=context.node_config.is_simulated,
        )

    @property
    def uid(self) -> str:
        return uid_of(self.pod)

    @property
    def is_active(self) -> bool:
        """Whether the pod counts against the node's allocatable resources."""
        return self.is_admitted and not self._is_finished

    @property
    def is_terminating(self) -> bool:
        return self._terminating.is_set()

    @property
    def is_resize_deferred(self) -> bool:
        return "PodResizePending" in self._conditions

    @property
    def probe_counts(self) -> Mapping[tuple[str, ProbeType, ProbeResult], int]:
        """The number of probe results by container, probe type and result."""
        return self._probe_worker.counts

    def wake(self) -> None:
        self._wake.set()

    def set(self, pod: v1.Pod) -> None:
        if is_deleted(pod):
            if is_deleted(self.pod) and grace_seconds(pod) < grace_seconds(self.pod):
                self._grace_shortened.set()
            self._terminating.set()
        self.pod = pod
        self.wake()

    def remove(self) -> None:
        """Kill the pod, which its source no longer has, without reporting its status."""
        self.is_removed = True
        self._terminating.set()
        self.wake()

    def fail_pod(
        self, reason: StatusReason, grace: float, condition: PodCondition | None = None
    ) -> None:
        """Kill the pod and report it as failed, regardless of its containers."""
        self._failure, self._grace = reason, grace
        if condition:
            self._conditions[condition.type] = condition
        self._terminating.set()
        self.wake()

    async def run(self) -> None:
        await self._context.pleg.is_synced.wait()
        if is_deleted(self.pod):
            self._terminating.set()
        while not self.is_cleaned_up:
            self._wake.clear()
            self._wake_at = None
            try:
                await self._sync()
            except StartInterrupted:
                continue
            except WinpodError as error:
                fields = pod_log_fields(self.pod) | {"reason": error.reason}
                _log.info(
                    "Failed to sync pod %s, retrying: %s",
                    *(format_pod(self.pod), error),
                    extra=fields,
                )
                is_unavailable = isinstance(error, Unavailable)
                self._requeue_after(SHORT_RETRY_SECONDS if is_unavailable else RETRY_SECONDS)
            except Exception:
                fields = pod_log_fields(self.pod)
                _log.exception("Error syncing pod %s", format_pod(self.pod), extra=fields)
                self._requeue_after(RETRY_SECONDS)
            await self._sleep()

    def _requeue_after(self, seconds: float) -> None:
        wake_at = time.monotonic() + seconds
        self._wake_at = min(wake_at, self._wake_at) if self._wake_at else wake_at

    async def _sleep(self) -> None:
        if self.is_cleaned_up:
            self._probe_worker.stop()
            return
        wait = max(self._wake_at - time.monotonic(), 0) if self._wake_at else None
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._wake.wait()

    async def _sync(self) -> None:
        if not self.is_admitted and not await self._admit():
            return
        self._allocate_resize()
        runtime_pod = self._runtime_pod()
        await self._check_deadline()
        if self._terminating.is_set():
            await self._terminate()
            return
        if not self._is_finished:
            await self._report_status()
            self._is_finished = bool(self.status and self.status.phase in TERMINAL_PHASES)
        if self._is_finished:
            await self._terminate()
            return
        actions = compute_pod_actions(
            self.allocated_pod,
            runtime_pod,
            self._probe_worker.health,
            self._context.node_config.cpus,
        )
        if actions.kill_pod and not actions.make_sandbox:
            self._is_finished = True
            await self._terminate()
            return
        if actions != PodActions():
            try:
                await self._execute(actions, runtime_pod)
            except (WinpodError, StartInterrupted):
                await self._refresh_and_report()
                raise
            await self._refresh_and_report()
        await remove_dead_containers(self._runtime_pod(), self._context)

    async def _refresh_and_report(self) -> None:
        await self._context.pleg.refresh(self.uid)
        await self._report_status()

    def _runtime_pod(self) -> RuntimePod:
        return self._context.pleg.pod(self.uid)

    def _allocate_resize(self) -> None:
        """Allocate resized resources if the node has enough of them."""
        if not is_resized(self.pod, self.allocated_pod):
            self.allocated_pod = self.pod
            self._set_condition("PodResizePending", None)
            return
        allocation = allocate_resize(
            self.pod, self.allocated_pod, self._other_allocations(), self._context.node_config
        )
        self.allocated_pod, self.allocated_resources = allocation.pod, allocated_by(allocation.pod)
        self._set_condition("PodResizePending", allocation.pending)

    def _other_allocations(self) -> Iterable[AllocatedResources]:
        return self._worker_context.allocated(self.uid)

    async def _admit(self) -> bool:
        """Admit the pod; return whether it is admitted.

        A pod that already has a sandbox was admitted before and skips the checks.
        """
        if self._is_rejected:
            if self._terminating.is_set():
                await self._terminate()
            return False
        sandboxes = self._runtime_pod().sandboxes
        has_sandbox = bool(sandboxes)
        if has_sandbox:
            self._first_seen = None
            await annotate_accelerator(self.pod, sandboxes[0], self._context)
        if has_sandbox and not (self.pod.status and self.pod.status.startTime):
            self._start_time = min(sandbox.created_at for sandbox in sandboxes)
        if not has_sandbox and self.pod.status and self.pod.status.phase in TERMINAL_PHASES:
            self.status = self.pod.status
            self._is_finished = True
            self.ended.set()
        failure = None
        if not (has_sandbox or self._is_finished or self._terminating.is_set()):
            failure = await self._worker_context.admission_failure(self.pod)
        if failure:
            self._is_rejected = True
            await self._context.record_event(self.pod, "Warning", failure.reason, failure.message)
            await self._report(rejected_status(self.pod, failure, self._context.clock()))
            return False
        self.is_admitted, self.allocated_resources = True, allocated_by(self.allocated_pod)
        return True

    async def _check_deadline(self) -> None:
        seconds = spec_of(self.pod).activeDeadlineSeconds
        if seconds is None or self._failure or self._is_finished:
            return
        deadline = self._start_time + timedelta(seconds=seconds)
        left = (deadline - self._context.clock()).total_seconds()
        if left > 0:
            self._requeue_after(left)
            return
        self._failure = DEADLINE
        self._terminating.set()
        await self._context.record_event(self.pod, "Normal", DEADLINE.reason, DEADLINE.message)

    def _set_condition(self, condition_type: str, condition: PodCondition | None) -> None:
        if condition:
            self._conditions[condition_type] = condition
        else:
            self._conditions.pop(condition_type, None)

    async def _report_status(self) -> None:
        """Update the probes, and report the status if it changed.

        Probes start first: a container with a readiness probe is not ready before its first result.
        """
        if self.is_removed:
            return
        if not self._is_finished and not self._terminating.is_set():
            self._probe_worker.update(
                self.allocated_pod, self._runtime_pod(), self.status or self.pod.status
            )
        state = PodState(
            start_time=self._start_time,
            waiting=self._starter.waiting,
            health=self._probe_worker.health,
            failure=self._failure,
            is_finished=self._is_finished,
            conditions=tuple(self._conditions.values()),
        )
        status = generate_status(
            self.allocated_pod,
            self._runtime_pod(),
            state,
            self.status,
            self._context.node_config.internal_ip,
            self._context.clock(),
        )
        if status != self.status:
            self._observe_start(status)
            await self._report(status)

    async def _report(self, status: v1.PodStatus) -> None:
        before, self.status = self.status, status
        if before is None or before.phase != status.phase:
            fields = {"phase": status.phase or "", "reason": status.reason or ""}
            _log.info(
                "Pod %s changed from phase %s to %s",
                *(format_pod(self.pod), before.phase if before else "Unknown", status.phase),
                extra=pod_log_fields(self.pod) | fields,
            )
        await self._context.reporter.status(self.pod, status)

    def _observe_start(self, status: v1.PodStatus) -> None:
        """Observe the start duration once, unless the pod ran before the agent started."""
        if status.phase == "Running" and self._first_seen is not None:
            self._context.metrics.observe_pod_start(time.monotonic() - self._first_seen)
            self._first_seen = None

    async def _execute(self, actions: PodActions, runtime_pod: RuntimePod) -> None:
        ip = runtime_pod.ips[0] if runtime_pod.ips else ""
        if actions.resets:
            await reset_containers(self.allocated_pod, actions.resets, ip, self._context)
            self.wake()
            return
        if actions.kill_pod:
            text = "Pod sandbox changed, it will be killed and re-created."
            await self._context.record_event(self.pod, "Normal", "SandboxChanged", text)
            await kill_containers(
                self.allocated_pod, runtime_pod, grace_seconds(self.allocated_pod), self._context
            )
            await stop_sandboxes(runtime_pod, self._context)
        mounted = None
        if actions.starts:
            mounted = await mount_volumes(self.allocated_pod, self._context)
        if actions.make_sandbox:
            await create_sandbox(self.allocated_pod, actions.attempt, self._context)
        for kill in actions.kills:
            grace = grace_period(self.allocated_pod, kill)
            await kill_container(
                self.allocated_pod, kill.container, ip, grace, self._context, message=kill.message
            )
        if actions.kills:
            await self._context.pleg.refresh(self.uid)
        await self._resize(actions.resizes)
        if mounted:
            status = self.status or self.pod.status
            wait = await self._starter.start(self.allocated_pod, actions.starts, mounted, status)
            self._requeue_after(wait)

    async def _unmount(self) -> None:
        with self._context.metrics.time_volume_operation("unmount"):
            await self._context.volumes.unmount(self.uid)

    async def _resize(self, resizes: Iterable[ContainerResize]) -> None:
        condition_type = "PodResizeInProgress"
        for resize in resizes:
            self._set_condition(condition_type, PodCondition(condition_type, True))
            await self._report_status()
            request = api.UpdateContainerResourcesRequest(
                container_id=resize.current.id,
                windows=container_resources(
                    resize.container.resources, self._context.node_config.cpus
                ),
            )
            try:
                await self._context.runtime.call("UpdateContainerResources", request)
            except WinpodError as error:
                self._set_condition(
                    condition_type, PodCondition(condition_type, True, "Error", str(error))
                )
                await self._context.record_event(self.pod, "Warning", "ResizeError", str(error))
                raise
            text = f"Pod resize completed: container {resize.current.name}"
            await self._context.record_event(
                self.pod, "Normal", "ResizeCompleted", text, resize.current.name
            )
        self._set_condition(condition_type, None)

    async def _terminate(self) -> None:
        if not self.ended.is_set():
            self._probe_worker.stop(("startup", "liveness"))
            await self._report_termination()
            await kill_containers_until_deadline(
                lambda: self.pod,
                self._runtime_pod,
                self._grace,
                self._grace_shortened,
                self._context,
            )
            await stop_sandboxes(self._runtime_pod(), self._context)
            await self._context.pleg.refresh(self.uid)
            self._is_finished = True
            self.ended.set()
            self._probe_worker.stop()
            await self._report_termination()
            if self._is_in_source():
                await self._unmount()
                await self._clean_up_terminated()
        if not self._is_in_source():
            await self._clean_up()

    async def _clean_up_terminated(self) -> None:
        """Remove what a terminated pod no longer needs; all of it if the pod was evicted."""
        if self._failure and self._failure.reason == EVICTED_REASON:
            await remove_sandboxes(self._runtime_pod(), self._context)
            await remove_logs(self.pod, self._context)
        else:
            await remove_dead_containers(self._runtime_pod(), self._context)

    def _is_in_source(self) -> bool:
        return not (self.is_removed or is_deleted(self.pod))

    async def _report_termination(self) -> None:
        if not self._is_rejected:
            await self._report_status()

    async def _clean_up(self) -> None:
        await remove_sandboxes(self._runtime_pod(), self._context)
        await self._context.pleg.refresh(self.uid)
        await self._unmount()
        await remove_logs(self.pod, self._context)
        self.is_cleaned_up = True
        await self._context.reporter.pod_deleted(self.pod)

"""Reconciles one upgrade: plans it, applies or undoes steps, and removes the finalizer.

What is needed to undo a step is saved before the step starts; a step is marked done after its
result was read back. The finalizer is set before the first step and removed after everything was
done or undone, so deleting an upgrade in progress undoes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from winpod.clock import Clock, format_timestamp
from winpod.errors import InvalidInput, Unavailable, WinpodError
from winpod.k8s.client import MERGE_PATCH, ApiClient, ApiError
from winpod.k8s.event_recorder import Event, ObjectReference
from winpod.labels import UPGRADE_FINALIZER
from winpod.operator.upgrade import progress
from winpod.operator.upgrade.drain import UnplannedChange, WorkloadsLeftBehind
from winpod.operator.upgrade.progress import Progress
from winpod.operator.upgrade.resource import (
    KIND,
    UPGRADES,
    StepRecord,
    UpgradeStatus,
    WindowsUpgrade,
)
from winpod.operator.upgrade.snapshot import SnapshotReader
from winpod.operator.upgrade.spec import UpgradeSpec, read_spec
from winpod.operator.upgrade.steps import StepExecutor

_RETRIABLE = frozenset((403, 409, 410))
"""Errors that are retried: an API server that is starting, or a concurrent change."""
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class UpgradeReconciler:
    def __init__(
        self,
        api: ApiClient,
        snapshots: SnapshotReader,
        record_event: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self._api = api
        self._snapshots = snapshots
        self._record_event = record_event
        self._clock = clock
        self._saved = b""
        self._timed: set[tuple[str, str, str, str]] = set()

    async def reconcile(self, upgrade: WindowsUpgrade) -> bool:
        """Reconcile; return whether to continue without waiting."""
        status = upgrade.status
        self._saved = msgspec.json.encode(status)
        if progress.is_settled(upgrade) or (upgrade.is_deleting and not status.started_at):
            return await self._remove_finalizer(upgrade)
        try:
            spec = read_spec(upgrade.spec)
        except InvalidInput as error:
            status.failure = str(error)
            return await self._settle(upgrade, progress.UNDONE, str(error))
        steps = StepExecutor(self._api, self._snapshots, spec, upgrade.name)
        if status.started_at and not upgrade.has_finalizer and not upgrade.is_deleting:
            await self._add_finalizer(upgrade)
        if status.phase != progress.UNDOING and progress.must_undo(upgrade):
            reason = "it is being deleted" if upgrade.is_deleting else "on request"
            status.phase = progress.UNDOING
            return await self._save(upgrade, f"undoing the upgrade: {reason}")
        if status.phase == progress.UNDOING:
            return await self._undo(upgrade, steps, spec.step_timeout)
        if not status.started_at:
            return await self._start(upgrade, spec)
        steps_to_apply = progress.next_steps(status)
        if not steps_to_apply:
            return await self._settle(upgrade, progress.DONE, progress.summary(status))
        return await self._apply(
            upgrade, await steps.select_parallel(steps_to_apply), steps, spec.step_timeout
        )

    async def _start(self, upgrade: WindowsUpgrade, spec: UpgradeSpec) -> bool:
        plan = await self._snapshots.plan(spec, await self._snapshots.snapshot(spec))
        planned = progress.planned_status(plan)
        planned.conditions = upgrade.status.conditions
        if blockers := progress.blockers(plan):
            fits = not progress.too_large_message(planned)
            upgrade.status = planned if fits else UpgradeStatus(conditions=planned.conditions)
            upgrade.status.phase = progress.BLOCKED
            await self._save(upgrade, "; ".join(blockers))
            return False
        if not upgrade.has_finalizer:
            await self._add_finalizer(upgrade)
        upgrade.status = planned
        upgrade.status.phase = progress.RUNNING
        upgrade.status.started_at = self._now()
        moves = f"{len(plan.moves)} workloads, {len(plan.moves_left_behind)} of which cannot move"
        message = f"{len(plan.old_nodes)} nodes, {moves}; {len(plan.steps)} steps"
        self.record_event(upgrade, "UpgradePlanned", message)
        return await self._save(upgrade, message)

    async def _apply(
        self,
        upgrade: WindowsUpgrade,
        batch: Sequence[StepRecord],
        steps: StepExecutor,
        step_timeout: int,
    ) -> bool:
        status = upgrade.status
        self._start_timers(upgrade, batch)
        await self._save_baseline(upgrade, [s for s in batch if s.state == progress.PENDING], steps)
        applying = (steps.apply(step, status) for step in batch)
        outcomes = await asyncio.gather(*applying, return_exceptions=True)
        results = []
        for step, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, WinpodError) and _is_retriable(outcome):
                results.append((step, Progress(message=outcome.message)))
            elif isinstance(outcome, WinpodError) and not isinstance(outcome, Unavailable):
                return await self._handle_error(upgrade, step, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results.append((step, outcome))
        if status.phase == progress.BLOCKED:
            status.phase, batch[0].started_at = progress.RUNNING, self._now()
        for step, result in results:
            if not result.is_done and not result.requeue and self._is_timed_out(step, step_timeout):
                reason = f"timed out after {step_timeout} s: {result.message}"
                return await self._fail(upgrade, step, reason)
        return await self._record_results(upgrade, results, progress.DONE)

    async def _save_baseline(
        self, upgrade: WindowsUpgrade, pending: Sequence[StepRecord], steps: StepExecutor
    ) -> None:
        """Save what is needed to undo the steps, before they start."""
        status = upgrade.status
        new = [step for step in pending if not step.before]
        for step, baseline in zip(
            new, await _gather(steps.baseline(s, status) for s in new), strict=True
        ):
            step.before = dict(baseline.before)
            status.ready = progress.max_ready(status.ready, baseline.ready)
        for step in pending:
            step.state, step.started_at = progress.RUNNING, self._now()
        if pending:
            await self._save(upgrade, progress.format_steps(pending))

    async def _handle_error(
        self, upgrade: WindowsUpgrade, step: StepRecord, error: WinpodError
    ) -> bool:
        status = upgrade.status
        if isinstance(error, WorkloadsLeftBehind):
            return await self._block(upgrade, step, error)
        if isinstance(error, UnplannedChange):
            status.steps = progress.with_steps_before(step, status.steps, error.steps)
            if too_large := progress.too_large_message(status):
                return await self._fail(upgrade, step, too_large)
            return await self._save(upgrade, error.message)
        return await self._fail(upgrade, step, error.message)

    async def _record_results(
        self, upgrade: WindowsUpgrade, results: Sequence[tuple[StepRecord, Progress]], state: str
    ) -> bool:
        """Record finished steps with this state, and what the others wait for."""
        prefix = "undoing: " if state == progress.UNDONE else ""
        done = [step for step, result in results if result.is_done]
        for step, result in results:
            step.message = result.message
            if result.is_done:
                step.state, step.finished_at = state, self._now()
        described = done or [step for step, _ in results]
        message = (
            f"{prefix}{progress.format_steps(described)}: {described[0].message}".removesuffix(": ")
        )
        if done:
            reason = "StepUndone" if state == progress.UNDONE else "StepDone"
            self.record_event(upgrade, reason, message)
        await self._save(upgrade, message)
        return bool(done) or any(result.requeue for _, result in results)

    async def _block(
        self, upgrade: WindowsUpgrade, step: StepRecord, error: WorkloadsLeftBehind
    ) -> bool:
        """Block until the user acts; the step's timeout does not run meanwhile."""
        if upgrade.status.phase != progress.BLOCKED:
            self.record_event(upgrade, "UpgradeBlocked", str(error), "Warning")
        upgrade.status.phase = progress.BLOCKED
        step.message = error.message
        now = {str(move.workload): progress.workload_record(move) for move in error.moves}
        upgrade.status.workloads = [now.get(str(w), w) for w in upgrade.status.workloads]
        await self._save(upgrade, str(error))
        return False

    async def _fail(self, upgrade: WindowsUpgrade, step: StepRecord, message: str) -> bool:
        step.state, step.message, step.finished_at = "Failed", message, self._now()
        message = f"{progress.format_steps([step])}: {message}"
        self.record_event(upgrade, "StepFailed", message, "Warning")
        if progress.is_undone_on_failure(step):
            upgrade.status.failure = message
            upgrade.status.phase = progress.UNDOING
        return await self._save(upgrade, message)

    async def _undo(self, upgrade: WindowsUpgrade, steps: StepExecutor, step_timeout: int) -> bool:
        batch = progress.next_to_undo(upgrade.status)
        if not batch:
            reason = upgrade.status.failure or "on request"
            return await self._settle(upgrade, progress.UNDONE, f"the upgrade was undone: {reason}")
        pending = [step for step in batch if step.state != progress.UNDOING]
        for step in pending:
            step.state, step.message, step.started_at = progress.UNDOING, "", self._now()
        self._start_timers(upgrade, batch)
        if pending:
            await self._save(upgrade, f"undoing {progress.format_steps(pending)}")
        results = await _gather(
            self._undo_step(upgrade, step, steps, step_timeout) for step in batch
        )
        return await self._record_results(
            upgrade, list(zip(batch, results, strict=True)), progress.UNDONE
        )

    async def _undo_step(
        self, upgrade: WindowsUpgrade, step: StepRecord, steps: StepExecutor, step_timeout: int
    ) -> Progress:
        """Undo a step; an error does not stop undoing the others."""
        try:
            result = await steps.undo(step, upgrade.status)
        except Unavailable:
            raise
        except WinpodError as error:
            result = Progress(is_done=not _is_retriable(error), message=error.message)
        if not result.is_done and not result.requeue and self._is_timed_out(step, step_timeout):
            return Progress(is_done=True, message=f"gave up waiting: {result.message}")
        return result

    async def _settle(self, upgrade: WindowsUpgrade, phase: str, message: str) -> bool:
        upgrade.status.phase = phase
        upgrade.status.finished_at = self._now()
        kind = "Warning" if upgrade.status.failure else "Normal"
        self.record_event(upgrade, f"Upgrade{phase}", message, kind)
        return await self._save(upgrade, message)

    async def _add_finalizer(self, upgrade: WindowsUpgrade) -> None:
        await self._set_finalizers(upgrade, [*upgrade.metadata.finalizers, UPGRADE_FINALIZER])

    async def _remove_finalizer(self, upgrade: WindowsUpgrade) -> bool:
        others = [name for name in upgrade.metadata.finalizers if name != UPGRADE_FINALIZER]
        await self._set_finalizers(upgrade, others)
        return True

    async def _set_finalizers(self, upgrade: WindowsUpgrade, names: list[str]) -> None:
        """Set finalizers if unchanged since read: a deleted object accepts no new finalizers."""
        metadata = {"finalizers": names, "resourceVersion": upgrade.metadata.resource_version}
        path = f"{UPGRADES}/{upgrade.name}"
        answer = await self._api.request("PATCH", path, {"metadata": metadata}, content=MERGE_PATCH)
        upgrade.metadata = msgspec.json.decode(answer, type=WindowsUpgrade).metadata

    async def _save(self, upgrade: WindowsUpgrade, message: str) -> bool:
        """Save the status if unchanged since read; a conflict leads to another read."""
        status = upgrade.status
        status.message = message or status.message
        status.observed_generation = upgrade.metadata.generation
        status.nodes = progress.node_states(status)
        status.conditions = progress.with_conditions(status, self._clock())
        encoded = msgspec.json.encode(status)
        if encoded != self._saved:
            saved = await self._api.replace(f"{UPGRADES}/{upgrade.name}/status", upgrade)
            upgrade.metadata.resource_version = saved.metadata.resource_version
            self._saved = encoded
        return True

    def record_event(
        self, upgrade: WindowsUpgrade, reason: str, message: str, kind: str = "Normal"
    ) -> None:
        fields = {"upgrade": upgrade.name, "reason": reason}
        _log.info("Upgrade %s: %s: %s", upgrade.name, reason, message, extra=fields)
        subject = ObjectReference(KIND, "", upgrade.name, upgrade.metadata.uid)
        self._record_event(Event(subject, kind, reason, message))

    def reset_timers(self) -> None:
        self._timed.clear()

    def _start_timers(self, upgrade: WindowsUpgrade, batch: Sequence[StepRecord]) -> None:
        """Start the timers of steps; time without an operator or API server does not count."""
        for step in batch:
            key = (upgrade.metadata.uid, upgrade.status.phase, step.do, step.target)
            if key not in self._timed:
                self._timed.add(key)
                step.started_at = self._now()

    def _is_timed_out(self, step: StepRecord, step_timeout: int) -> bool:
        started = datetime.fromisoformat(step.started_at)
        return self._clock().astimezone(UTC) > started + timedelta(seconds=step_timeout)

    def _now(self) -> str:
        return format_timestamp(self._clock())


async def _gather(works: Iterable[Awaitable[_T]]) -> list[_T]:
    """Run concurrently; raise the first error after all are finished."""
    results: list[_T] = []
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _is_retriable(error: WinpodError) -> bool:
    return isinstance(error, ApiError) and error.status in _RETRIABLE

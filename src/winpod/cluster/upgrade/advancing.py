"""One upgrade goes on: begun, a step done or undone, settled, let go.

What a step will take to undo is written before the step is begun, and that it is done after its
result was read again. A finalizer is there before the first step, and goes after everything was
done or undone: whoever deletes an upgrade under way has it undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from winpod.cluster.upgrade import progress
from winpod.cluster.upgrade.asked import read_asked
from winpod.cluster.upgrade.draining import LeftBehind, Unplanned
from winpod.cluster.upgrade.objects import MERGE
from winpod.cluster.upgrade.resource import (
    FINALIZER,
    KIND,
    UPGRADES,
    Status,
    StepRecord,
    WindowsUpgrade,
)
from winpod.cluster.upgrade.step_results import Progress
from winpod.cluster.upgrade.steps import Steps
from winpod.cluster.upgrade.survey import Survey
from winpod.node.api import ApiServer, Refused
from winpod.node.event_series import Event, Subject
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError

_PASSING = frozenset((403, 409, 410))
"""Refusals that an API server takes back: while it starts, or when somebody else was faster."""
_log = logging.getLogger(__name__)


class Advancing:
    def __init__(
        self,
        api: ApiServer,
        survey: Survey,
        tell: Callable[[Event], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._survey = survey
        self._tell_event = tell
        self._clock = clock
        self._saved = b""
        self._looked_at: set[tuple[str, str, str, str]] = set()

    async def go_on(self, upgrade: WindowsUpgrade) -> bool:
        """Whether there may be more to do at once."""
        status = upgrade.status
        self._saved = msgspec.json.encode(status)
        if progress.is_settled(upgrade) or (upgrade.is_being_deleted and not status.started_at):
            return await self._let_go(upgrade)
        try:
            asked = read_asked(upgrade.spec)
        except InvalidInput as error:
            status.failure = str(error)
            return await self._settle(upgrade, progress.UNDONE, str(error))
        steps = Steps(self._api, self._survey, asked, upgrade.name)
        if status.started_at and not upgrade.is_held and not upgrade.is_being_deleted:
            await self._hold(upgrade)
        if status.phase != progress.UNDOING and progress.is_to_go_back(upgrade):
            why = "since it is being deleted" if upgrade.is_being_deleted else "as asked"
            status.phase = progress.UNDOING
            return await self._save(upgrade, f"what was done is taken back, {why}")
        if status.phase == progress.UNDOING:
            return await self._undo_one(upgrade, steps, asked.patience)
        if not status.started_at:
            return await self._begin(upgrade)
        step = progress.next_step(status)
        if step is None:
            return await self._settle(upgrade, progress.DONE, _summary(status))
        return await self._do_one(upgrade, step, steps, asked.patience)

    async def _begin(self, upgrade: WindowsUpgrade) -> bool:
        asked = read_asked(upgrade.spec)
        _, plan = await self._survey.plan(asked)
        planned = progress.planned_status(plan)
        planned.conditions = upgrade.status.conditions
        if blockers := progress.blockers(plan):
            is_small = not progress.too_large_sentence(planned)
            upgrade.status = planned if is_small else Status(conditions=planned.conditions)
            upgrade.status.phase = progress.BLOCKED
            await self._save(upgrade, "; ".join(blockers))
            return False
        if not upgrade.is_held:
            await self._hold(upgrade)
        upgrade.status = planned
        upgrade.status.phase = progress.RUNNING
        upgrade.status.started_at = self._stamp()
        moves = f"{len(plan.moves)} workloads, {len(plan.staying)} of which cannot move"
        said = f"{len(plan.old_nodes)} nodes, {moves}; {len(plan.steps)} steps"
        self.tell(upgrade, "UpgradePlanned", said)
        return await self._save(upgrade, said)

    async def _do_one(
        self, upgrade: WindowsUpgrade, step: StepRecord, steps: Steps, patience: int
    ) -> bool:
        status = upgrade.status
        if step.state == progress.PENDING:
            if not step.before:
                noted = await steps.before(step, status)
                step.before = dict(noted.before)
                status.ready = progress.most_ready(status.ready, noted.ready)
            step.state, step.started_at = progress.RUNNING, self._stamp()
            await self._save(upgrade, _show(step))
        self._count_from_now(upgrade, step)
        try:
            made = await steps.forward(step, status)
        except LeftBehind as error:
            return await self._block(upgrade, step, error)
        except Unplanned as found:
            status.steps = progress.with_steps_before(step, status.steps, found.steps)
            if too_large := progress.too_large_sentence(status):
                return await self._fail(upgrade, step, too_large)
            return await self._save(upgrade, found.sentence)
        except Unavailable:
            raise
        except WinpodError as error:
            if not _may_pass(error):
                return await self._fail(upgrade, step, error.sentence)
            made = Progress(message=error.sentence)
        if status.phase == progress.BLOCKED:
            status.phase, step.started_at = progress.RUNNING, self._stamp()
        if made.is_done:
            return await self._finish(upgrade, step, progress.DONE, made)
        if not made.look_again and self._is_late(step, patience):
            late = f"after {patience} s it was not so yet: {made.message}"
            return await self._fail(upgrade, step, late)
        step.message = made.message
        await self._save(upgrade, f"{_show(step)}: {made.message}" if made.message else "")
        return made.look_again

    async def _block(self, upgrade: WindowsUpgrade, step: StepRecord, error: LeftBehind) -> bool:
        """It costs no patience: people have to do something, or say that nothing will be done."""
        if upgrade.status.phase != progress.BLOCKED:
            self.tell(upgrade, "UpgradeBlocked", str(error), "Warning")
        upgrade.status.phase = progress.BLOCKED
        step.message = error.sentence
        now = {str(move.workload): progress.record_of(move) for move in error.moves}
        upgrade.status.workloads = [now.get(str(w), w) for w in upgrade.status.workloads]
        await self._save(upgrade, str(error))
        return False

    async def _fail(self, upgrade: WindowsUpgrade, step: StepRecord, sentence: str) -> bool:
        step.state, step.message, step.finished_at = "Failed", sentence, self._stamp()
        said = f"{_show(step)}: {sentence}"
        self.tell(upgrade, "StepFailed", said, "Warning")
        if progress.is_undone_on_failure(step):
            upgrade.status.failure = said
            upgrade.status.phase = progress.UNDOING
        return await self._save(upgrade, said)

    async def _undo_one(self, upgrade: WindowsUpgrade, steps: Steps, patience: int) -> bool:
        step = progress.next_to_undo(upgrade.status)
        if step is None:
            why = upgrade.status.failure or "as asked"
            return await self._settle(upgrade, progress.UNDONE, f"what was done was undone: {why}")
        if not step.message.startswith("undoing"):
            step.message, step.started_at = "undoing", self._stamp()
            await self._save(upgrade, f"undoing {_show(step)}")
        self._count_from_now(upgrade, step)
        try:
            made = await steps.back(step, upgrade.status)
        except Unavailable:
            raise
        except WinpodError as error:
            made = Progress(is_done=not _may_pass(error), message=error.sentence)
        if not made.is_done and not made.look_again and self._is_late(step, patience):
            made = Progress(is_done=True, message=f"not awaited any longer: {made.message}")
        if made.is_done:
            return await self._finish(upgrade, step, progress.UNDONE, made)
        step.message = f"undoing: {made.message}"
        await self._save(upgrade, f"undoing {_show(step)}: {made.message}")
        return made.look_again

    async def _finish(
        self, upgrade: WindowsUpgrade, step: StepRecord, state: str, made: Progress
    ) -> bool:
        step.state, step.message, step.finished_at = state, made.message, self._stamp()
        said = f"{_show(step)}: {made.message}" if made.message else _show(step)
        reason = "StepUndone" if state == progress.UNDONE else "StepDone"
        self.tell(upgrade, reason, said)
        return await self._save(upgrade, said)

    async def _settle(self, upgrade: WindowsUpgrade, phase: str, message: str) -> bool:
        upgrade.status.phase = phase
        upgrade.status.finished_at = self._stamp()
        kind = "Warning" if upgrade.status.failure else "Normal"
        self.tell(upgrade, f"Upgrade{phase}", message, kind)
        return await self._save(upgrade, message)

    async def _hold(self, upgrade: WindowsUpgrade) -> None:
        await self._set_finalizers(upgrade, [*upgrade.metadata.finalizers, FINALIZER])

    async def _let_go(self, upgrade: WindowsUpgrade) -> bool:
        others = [name for name in upgrade.metadata.finalizers if name != FINALIZER]
        await self._set_finalizers(upgrade, others)
        return True

    async def _set_finalizers(self, upgrade: WindowsUpgrade, names: list[str]) -> None:
        """Of what was read: one that was deleted since cannot be held any more."""
        metadata = {"finalizers": names, "resourceVersion": upgrade.metadata.resource_version}
        path = f"{UPGRADES}/{upgrade.name}"
        answer = await self._api.request("PATCH", path, {"metadata": metadata}, content=MERGE)
        upgrade.metadata = msgspec.json.decode(answer, type=WindowsUpgrade).metadata

    async def _save(self, upgrade: WindowsUpgrade, message: str) -> bool:
        """Only over what was read: who read something older is refused, and reads again."""
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

    def tell(
        self, upgrade: WindowsUpgrade, reason: str, message: str, kind: str = "Normal"
    ) -> None:
        _log.info("upgrade %s: %s: %s", upgrade.name, reason, message)
        subject = Subject(KIND, "", upgrade.name, upgrade.metadata.uid)
        self._tell_event(Event(subject, kind, reason, message))

    def forget_time(self) -> None:
        self._looked_at.clear()

    def _count_from_now(self, upgrade: WindowsUpgrade, step: StepRecord) -> None:
        """Time in which nobody could look, or no operator was there to, is no patience spent."""
        key = (upgrade.metadata.uid, upgrade.status.phase, step.do, step.target)
        if key not in self._looked_at:
            self._looked_at.add(key)
            step.started_at = self._stamp()

    def _is_late(self, step: StepRecord, patience: int) -> bool:
        began = datetime.fromisoformat(step.started_at)
        return self._clock().astimezone(UTC) > began + timedelta(seconds=patience)

    def _stamp(self) -> str:
        return progress.stamp(self._clock())


def _may_pass(error: WinpodError) -> bool:
    return isinstance(error, Refused) and error.status in _PASSING


def _show(step: StepRecord) -> str:
    return f"{step.do} {step.target}".strip()


def _summary(status: Status) -> str:
    failed = [step for step in status.steps if step.state == "Failed"]
    staying = [str(w) for w in status.workloads if w.stays]
    said = "everything has moved" if not staying else f"left behind: {progress.some(staying)}"
    told = [f"{_show(step)} failed: {step.message}" for step in failed]
    return "; ".join([said, *([progress.some(told, "; ")] if told else [])])

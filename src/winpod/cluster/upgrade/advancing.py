"""One upgrade goes on: begun, a step done or undone, settled, let go.

What a step will take to undo is written before the step is begun, and that it is done after its
result was read again. A finalizer is there before the first step, and goes after everything was
done or undone: whoever deletes an upgrade under way has it undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from winpod.cluster.custom_resources import stamp
from winpod.cluster.upgrade import progress
from winpod.cluster.upgrade.asked import Asked, read_asked
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
_T = TypeVar("_T")
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
        if progress.is_settled(upgrade) or (upgrade.is_leaving and not status.started_at):
            return await self._let_go(upgrade)
        try:
            asked = read_asked(upgrade.spec)
        except InvalidInput as error:
            status.failure = str(error)
            return await self._settle(upgrade, progress.UNDONE, str(error))
        steps = Steps(self._api, self._survey, asked, upgrade.name)
        if status.started_at and not upgrade.is_held and not upgrade.is_leaving:
            await self._hold(upgrade)
        if status.phase != progress.UNDOING and progress.is_to_go_back(upgrade):
            why = "since it is being deleted" if upgrade.is_leaving else "as asked"
            status.phase = progress.UNDOING
            return await self._save(upgrade, f"what was done is taken back, {why}")
        if status.phase == progress.UNDOING:
            return await self._undo(upgrade, steps, asked.patience)
        if not status.started_at:
            return await self._begin(upgrade, asked)
        coming = progress.next_steps(status)
        if not coming:
            return await self._settle(upgrade, progress.DONE, progress.summary(status))
        return await self._do(upgrade, await steps.together(coming), steps, asked.patience)

    async def _begin(self, upgrade: WindowsUpgrade, asked: Asked) -> bool:
        plan = await self._survey.plan(asked, await self._survey.scene(asked))
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

    async def _do(
        self, upgrade: WindowsUpgrade, batch: Sequence[StepRecord], steps: Steps, patience: int
    ) -> bool:
        status = upgrade.status
        self._count_from_now(upgrade, batch)
        await self._note(upgrade, [s for s in batch if s.state == progress.PENDING], steps)
        doing = (steps.forward(step, status) for step in batch)
        results = await asyncio.gather(*doing, return_exceptions=True)
        made = []
        for step, found in zip(batch, results, strict=True):
            if isinstance(found, WinpodError) and _may_pass(found):
                made.append((step, Progress(message=found.sentence)))
            elif isinstance(found, WinpodError) and not isinstance(found, Unavailable):
                return await self._stop(upgrade, step, found)
            elif isinstance(found, BaseException):
                raise found
            else:
                made.append((step, found))
        if status.phase == progress.BLOCKED:
            status.phase, batch[0].started_at = progress.RUNNING, self._stamp()
        for step, one in made:
            if not one.is_done and not one.look_again and self._is_late(step, patience):
                late = f"after {patience} s it was not so yet: {one.message}"
                return await self._fail(upgrade, step, late)
        return await self._write_down(upgrade, made, progress.DONE)

    async def _note(
        self, upgrade: WindowsUpgrade, begun: Sequence[StepRecord], steps: Steps
    ) -> None:
        """What undoing takes, before anything is done."""
        status = upgrade.status
        new = [step for step in begun if not step.before]
        for step, noted in zip(new, await _all(steps.before(s, status) for s in new), strict=True):
            step.before = dict(noted.before)
            status.ready = progress.most_ready(status.ready, noted.ready)
        for step in begun:
            step.state, step.started_at = progress.RUNNING, self._stamp()
        if begun:
            await self._save(upgrade, progress.show_steps(begun))

    async def _stop(self, upgrade: WindowsUpgrade, step: StepRecord, error: WinpodError) -> bool:
        status = upgrade.status
        if isinstance(error, LeftBehind):
            return await self._block(upgrade, step, error)
        if isinstance(error, Unplanned):
            status.steps = progress.with_steps_before(step, status.steps, error.steps)
            if too_large := progress.too_large_sentence(status):
                return await self._fail(upgrade, step, too_large)
            return await self._save(upgrade, error.sentence)
        return await self._fail(upgrade, step, error.sentence)

    async def _write_down(
        self, upgrade: WindowsUpgrade, made: Sequence[tuple[StepRecord, Progress]], state: str
    ) -> bool:
        """Those that are in this state now, and what is awaited of the others."""
        prefix = "undoing: " if state == progress.UNDONE else ""
        done = [step for step, one in made if one.is_done]
        for step, one in made:
            step.message = one.message
            if one.is_done:
                step.state, step.finished_at = state, self._stamp()
            elif prefix:
                step.message = prefix + one.message
        told = done or [step for step, _ in made]
        said = f"{prefix}{progress.show_steps(told)}: {told[0].message}".removesuffix(": ")
        if done:
            reason = "StepUndone" if state == progress.UNDONE else "StepDone"
            self.tell(upgrade, reason, said)
        await self._save(upgrade, said)
        return bool(done) or any(one.look_again for _, one in made)

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
        said = f"{progress.show_steps([step])}: {sentence}"
        self.tell(upgrade, "StepFailed", said, "Warning")
        if progress.is_undone_on_failure(step):
            upgrade.status.failure = said
            upgrade.status.phase = progress.UNDOING
        return await self._save(upgrade, said)

    async def _undo(self, upgrade: WindowsUpgrade, steps: Steps, patience: int) -> bool:
        batch = progress.next_to_undo(upgrade.status)
        if not batch:
            why = upgrade.status.failure or "as asked"
            return await self._settle(upgrade, progress.UNDONE, f"what was done was undone: {why}")
        begun = [step for step in batch if not step.message.startswith("undoing")]
        for step in begun:
            step.message, step.started_at = "undoing", self._stamp()
        self._count_from_now(upgrade, batch)
        if begun:
            await self._save(upgrade, f"undoing {progress.show_steps(begun)}")
        made = await _all(self._back(upgrade, step, steps, patience) for step in batch)
        return await self._write_down(upgrade, list(zip(batch, made, strict=True)), progress.UNDONE)

    async def _back(
        self, upgrade: WindowsUpgrade, step: StepRecord, steps: Steps, patience: int
    ) -> Progress:
        """A refusal is no reason to keep the rest as it is."""
        try:
            made = await steps.back(step, upgrade.status)
        except Unavailable:
            raise
        except WinpodError as error:
            made = Progress(is_done=not _may_pass(error), message=error.sentence)
        if not made.is_done and not made.look_again and self._is_late(step, patience):
            return Progress(is_done=True, message=f"not awaited any longer: {made.message}")
        return made

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

    def _count_from_now(self, upgrade: WindowsUpgrade, batch: Sequence[StepRecord]) -> None:
        """Time in which nobody could look, or no operator was there to, is no patience spent."""
        for step in batch:
            key = (upgrade.metadata.uid, upgrade.status.phase, step.do, step.target)
            if key not in self._looked_at:
                self._looked_at.add(key)
                step.started_at = self._stamp()

    def _is_late(self, step: StepRecord, patience: int) -> bool:
        began = datetime.fromisoformat(step.started_at)
        return self._clock().astimezone(UTC) > began + timedelta(seconds=patience)

    def _stamp(self) -> str:
        return stamp(self._clock())


async def _all(works: Iterable[Awaitable[_T]]) -> list[_T]:
    """At once; where one fails, the others are through when that is known."""
    results = await asyncio.gather(*works, return_exceptions=True)
    found: list[_T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def _may_pass(error: WinpodError) -> bool:
    return isinstance(error, Refused) and error.status in _PASSING

"""Upgrades done: the leading operator takes one step after another, and undoes them on failure.

Where it stands is in the resource's status and nowhere else: it is read before each step, what a
step will take to undo is written before the step is begun, and that it is done after its result was
read again. So whoever leads next goes on where the last one was, at whatever moment that one died.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from winpod.cluster.upgrade import progress
from winpod.cluster.upgrade.asked import read_asked
from winpod.cluster.upgrade.draining import LeftBehind, Progress, Unplanned
from winpod.cluster.upgrade.resource import KIND, UPGRADES, Status, StepRecord, WindowsUpgrade
from winpod.cluster.upgrade.steps import Steps
from winpod.cluster.upgrade.survey import Survey
from winpod.node.api import ApiServer, Refused
from winpod.node.event_series import Event, Subject
from winpod.node.following import Following
from winpod.node.means import utc_now
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError

_POLL_SECONDS = 2.0
_REST = 4.0
"""How many times as long as a look took, nothing is looked at: large clusters take long."""
_PASSING = frozenset((403, 409, 410))
"""Refusals that an API server takes back: while it starts, or when somebody else was faster."""
_log = logging.getLogger(__name__)


class Upgrades:
    """One upgrade at a time, the oldest first."""

    def __init__(
        self,
        api: ApiServer,
        survey: Survey,
        tell: Callable[[Event], None],
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._survey = survey
        self._tell_event = tell
        self._clock = clock
        self._known: dict[str, WindowsUpgrade] = {}
        self._saved = b""
        self._looked_at: set[tuple[str, str, str, str]] = set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Following(self._api, WindowsUpgrade, UPGRADES, self).run())
            group.create_task(self._work())

    async def listed(self, objects: Sequence[WindowsUpgrade]) -> None:
        self._known = {upgrade.name: upgrade for upgrade in objects}
        self._changed.set()

    def changed(self, obj: WindowsUpgrade) -> None:
        """What was asked has changed; its status is written here."""
        known = self._known.get(obj.name)
        if known is None or known.metadata.generation != obj.metadata.generation:
            self._changed.set()
        self._known[obj.name] = obj

    def deleted(self, obj: WindowsUpgrade) -> None:
        self._known.pop(obj.name, None)

    async def _work(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while name := self._next():
                began = time.monotonic()
                if not await self._advance(name):
                    took = time.monotonic() - began
                    await self._wait(max(_POLL_SECONDS, _REST * took))

    def _next(self) -> str:
        """An upgrade that was begun goes before one that was not."""
        waiting = [u for u in self._known.values() if not progress.is_settled(u)]
        waiting.sort(key=lambda u: (not u.status.phase, u.metadata.creation_timestamp, u.name))
        return waiting[0].name if waiting else ""

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                self._changed.clear()
        except TimeoutError:
            return

    async def _advance(self, name: str) -> bool:
        """Whether there may be more to do at once."""
        try:
            upgrade = await self._api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
            if upgrade is None:
                self._known.pop(name, None)
                return True
            self._known[name] = copy.deepcopy(upgrade)  # what is not saved yet is not known
            self._saved = msgspec.json.encode(upgrade.status)
            return not progress.is_settled(upgrade) and await self._go_on(upgrade)
        except Refused as error:
            if error.is_conflict:  # somebody else wrote into it: it is read again
                return True
            if known := self._known.get(name):
                self._tell(known, "UpgradeWaits", error.sentence, "Warning")
            return False
        except Unavailable as error:
            _log.info("the upgrade %s waits: %s", name, error)
            self._looked_at.clear()
            return False

    async def _go_on(self, upgrade: WindowsUpgrade) -> bool:
        status = upgrade.status
        try:
            asked = read_asked(upgrade.spec)
        except InvalidInput as error:
            status.failure = str(error)
            return await self._settle(upgrade, progress.UNDONE, str(error))
        steps = Steps(self._api, self._survey, asked, upgrade.name)
        if upgrade.is_to_be_undone and status.phase != progress.UNDOING:
            status.phase = progress.UNDOING
            return await self._save(upgrade, "what was done is taken back, as asked")
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
        upgrade.status = progress.planned_status(plan)
        if plan.blockers:
            upgrade.status.phase = progress.BLOCKED
            await self._save(upgrade, "; ".join(plan.blockers))
            return False
        upgrade.status.phase = progress.RUNNING
        upgrade.status.started_at = self._stamp()
        moves = f"{len(plan.moves)} workloads, {len(plan.staying)} of which cannot move"
        said = f"{len(plan.old_nodes)} nodes, {moves}; {len(plan.steps)} steps"
        self._tell(upgrade, "UpgradePlanned", said)
        return await self._save(upgrade, said)

    async def _do_one(
        self, upgrade: WindowsUpgrade, step: StepRecord, steps: Steps, patience: int
    ) -> bool:
        status = upgrade.status
        if step.state == progress.PENDING:
            step.before = step.before or await steps.before(step)
            step.state, step.started_at = progress.RUNNING, self._stamp()
            await self._save(upgrade, _show(step))
        self._count_from_now(upgrade, step)
        try:
            made = await steps.forward(step, status)
        except LeftBehind as error:
            return await self._block(upgrade, step, error)
        except Unplanned as found:
            status.steps = progress.with_steps_before(step, status.steps, found.steps)
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
            self._tell(upgrade, "UpgradeBlocked", str(error), "Warning")
        upgrade.status.phase = progress.BLOCKED
        step.message = error.sentence
        now = {str(move.workload): progress.record_of(move) for move in error.moves}
        upgrade.status.workloads = [now.get(str(w), w) for w in upgrade.status.workloads]
        await self._save(upgrade, str(error))
        return False

    async def _fail(self, upgrade: WindowsUpgrade, step: StepRecord, sentence: str) -> bool:
        step.state, step.message, step.finished_at = "Failed", sentence, self._stamp()
        said = f"{_show(step)}: {sentence}"
        self._tell(upgrade, "StepFailed", said, "Warning")
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
            made = await steps.back(step)
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
        self._tell(upgrade, reason, said)
        return await self._save(upgrade, said)

    async def _settle(self, upgrade: WindowsUpgrade, phase: str, message: str) -> bool:
        upgrade.status.phase = phase
        upgrade.status.finished_at = self._stamp()
        kind = "Warning" if upgrade.status.failure else "Normal"
        self._tell(upgrade, f"Upgrade{phase}", message, kind)
        return await self._save(upgrade, message)

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

    def _tell(
        self, upgrade: WindowsUpgrade, reason: str, message: str, kind: str = "Normal"
    ) -> None:
        _log.info("upgrade %s: %s: %s", upgrade.name, reason, message)
        subject = Subject(KIND, "", upgrade.name, upgrade.metadata.uid)
        self._tell_event(Event(subject, kind, reason, message))

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
    said = "everything has moved" if not staying else f"left behind: {', '.join(staying)}"
    return "; ".join([said, *(f"{_show(step)} failed: {step.message}" for step in failed)])

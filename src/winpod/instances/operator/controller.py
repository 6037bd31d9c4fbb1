"""Instances of a cluster: an object for each that is asked for, and somebody who looks after it.

Each has a task of its own, so that no instance waits for another but for its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace

from winpod.instances.cluster.inputs import Asked, Entries
from winpod.instances.cluster.resource import Status, WindowsInstance
from winpod.instances.operator.care import Care
from winpod.instances.operator.looking_after import LookingAfter
from winpod.instances.operator.telling import ENTRY_GOOD, bad_entry, condition_of
from winpod.windows.errors import WinpodError

_SETTLE_SECONDS, _RETRY_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


class Instances:
    """It hears of everything that changes: inputs, settings, the payload, an object."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._changed = asyncio.Event()
        self._working: dict[str, tuple[LookingAfter, asyncio.Task[None]]] = {}
        self._told: set[str] = set()

    def asked_changed(self) -> None:
        self._changed.set()

    def everything_changed(self) -> None:
        for after, _ in self._working.values():
            after.wake()
        self._changed.set()

    def one_changed(self, name: str) -> None:
        if working := self._working.get(name):
            working[0].wake()
        self._changed.set()

    async def run(self, care: Care) -> None:
        """Until it is cancelled; then nobody works on, and what is begun is gone on with later."""
        try:
            await care.inputs.until_known()
            await care.objects.until_known()
            while True:
                self._changed.clear()
                wait = await self._reconcile(care)
                self._look_after_all(care)
                await self._until_changed(wait)
        finally:
            tasks = [task for _, task in self._working.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._working = {}

    async def _until_changed(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLE_SECONDS)

    async def _reconcile(self, care: Care) -> float | None:
        """Seconds until the next try, None where all objects are as they should be."""
        entries = care.inputs.entries
        self._tell_bad(care, entries)
        trouble = False
        for asked in entries.asked:
            trouble |= not await _tried(self._ensure(care, asked))
        wanted = {asked.name for asked in entries.asked}
        for known in list(care.objects.known.values()):
            if known.name not in wanted and not care.inputs.keeps(_asked(known)):
                trouble |= not await _tried(care.objects.delete(known.name))
            trouble |= not await _tried(self._judge_entry(care, entries, known))
        return _RETRY_SECONDS if trouble else None

    async def _ensure(self, care: Care, asked: Asked) -> None:
        known = care.objects.known.get(asked.name)
        if known is None and _may_be_a_machine(care, asked):
            _log.info("%s waits until Machines are known: one had its address", asked.name)
        elif known is None:
            await care.objects.create(asked)
        elif not known.is_leaving and _asked(known) != replace(asked, addresses=()):
            await care.objects.respecify(asked.name, asked)

    async def _judge_entry(self, care: Care, entries: Entries, known: WindowsInstance) -> None:
        """What is wrong with the entry of an instance that is there is said of the instance."""
        problems = [bad.problem for bad in entries.bad if bad.key.lower() == known.spec.address]
        if not problems and condition_of(known.status.conditions, ENTRY_GOOD) != "False":
            return

        def change(status: Status) -> None:
            word = "EntryBad" if problems else "EntryGood"
            care.condition(status, ENTRY_GOOD, not problems, word, " ".join(problems))

        await care.objects.save(known.name, change)

    def _tell_bad(self, care: Care, entries: Entries) -> None:
        for bad in entries.bad:
            if bad.problem not in self._told:
                _log.warning("an entry of the ConfigMap: %s", bad.problem)
                care.tell_event(bad_entry(self._namespace, bad))
        self._told = {bad.problem for bad in entries.bad}

    def _look_after_all(self, care: Care) -> None:
        for name in care.objects.known:
            working = self._working.get(name)
            if working is None or working[1].done():
                after = LookingAfter(name, care)
                task = asyncio.create_task(_looked_after(after))
                self._working[name] = (after, task)
        self._working = {
            name: working for name, working in self._working.items() if not working[1].done()
        }


def _may_be_a_machine(care: Care, asked: Asked) -> bool:
    """Machines are never changed, also where only their instances tell that there are some."""
    if asked.machine or care.machines.are_known:
        return False
    return any(
        one.spec.machine and one.spec.address == asked.address
        for one in care.objects.known.values()
    )


async def _tried(work: Coroutine[None, None, None]) -> bool:
    """Whether it went well; what did not keeps nobody else from being looked at."""
    try:
        await work
    except WinpodError as error:
        _log.warning("the objects of instances are not as they should be yet: %s", error)
        return False
    return True


async def _looked_after(after: LookingAfter) -> None:
    """A mistake of ours about one instance is no reason to leave it, or the others, alone."""
    while True:
        try:
            return await after.run()
        except Exception:
            _log.exception("looking after %s broke off, and begins again", after.name)
        await asyncio.sleep(_RETRY_SECONDS)


def _asked(known: WindowsInstance) -> Asked:
    spec = known.spec
    return Asked(known.name, spec.address, spec.username, spec.port, spec.machine)

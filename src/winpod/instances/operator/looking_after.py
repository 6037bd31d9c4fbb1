"""One instance looked after: read, decided by `next_deed`, done, and read again.

What was read is kept for a while, so that waiting for pods or for a Node costs the instance
nothing. Whatever goes wrong is told and tried again, ever later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from winpod.instances.cluster.nodes import subnet_of
from winpod.instances.cluster.refusals import asking
from winpod.instances.cluster.resource import STOP_MANAGING, Status, WindowsInstance
from winpod.instances.errors import NOT_REACHED, Busy, Unreachable
from winpod.instances.operator.care import Care
from winpod.instances.operator.deeds import Case, Deeds, NodeLate, set_phase
from winpod.instances.operator.looking import Seen, look, save, situation
from winpod.instances.operator.telling import (
    CONFIGURED,
    CONTAINERD_NOT_RUNNING,
    CONTAINERD_RUNNING,
    NODE_READY,
    REACHABLE,
    Phase,
    condition_of,
    reason_of,
)
from winpod.instances.rules.next_deed import Deed, Situation, next_deed
from winpod.windows.errors import Unavailable, WinpodError

_KEPT_SECONDS, _KEPT_AT_REST = 60.0, 300.0
_FIRST_WAIT, _LONGEST_WAIT = 5.0, 300.0
_API_WAIT, _BUSY_WAIT = 2.0, 10.0
_log = logging.getLogger(__name__)


class LookingAfter:
    def __init__(self, name: str, care: Care) -> None:
        self.name = name
        self._care = care
        self._deeds = Deeds(care)
        self._wake = asyncio.Event()
        self._seen: Seen | None = None
        self._trouble = _FIRST_WAIT
        self._deed, self._since = Deed.REST, 0.0

    def wake(self) -> None:
        """Something about it has changed: it is read again, also if it is being read just now."""
        self._trouble = _FIRST_WAIT
        self._wake.set()

    async def run(self) -> None:
        """Until its object has gone."""
        while instance := self._care.objects.copy_of(self.name):
            if self._wake.is_set():
                self._wake.clear()
                self._seen = None
            try:
                seconds = await self._advance(instance)
                self._trouble = _FIRST_WAIT
            except WinpodError as error:
                seconds = await self._failed(instance, error)
            await self._until_woken(seconds)

    async def _until_woken(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds * random.uniform(0.9, 1.1)):  # noqa: S311
                await self._wake.wait()
        except TimeoutError:
            return

    async def _advance(self, instance: WindowsInstance) -> float:
        if instance.is_leaving and instance.is_forgotten:
            await self._deeds.forget(instance)
            return _API_WAIT
        if instance.is_leaving and instance.spec.machine:
            await self._deeds.let_go(instance, "its Machine has gone, or goes")
            return _API_WAIT
        with asking(self.name, "look at it and at its Node"):
            seen, now = await self._look(instance)
        decision = next_deed(now)
        if decision.deed is not self._deed:
            self._deed, self._since = decision.deed, time.monotonic()
        waited = time.monotonic() - self._since
        case = Case(instance, seen, now, decision.why, waited)
        with asking(self.name, decision.deed):
            after = await self._deeds.do(decision.deed, case)
        if after.is_read_again:
            self._seen = None
        return after.seconds

    async def _look(self, instance: WindowsInstance) -> tuple[Seen, Situation]:
        care, seen = self._care, self._seen
        node = await care.nodes.get(instance.status.node)
        if seen is None or seen.age > self._kept() or seen.subnet != subnet_of(node):
            seen = self._seen = await look(care, instance)
            node = await care.nodes.get(instance.status.node)
        beat = await self._deeds.beat(instance, seen)
        return seen, await situation(care, instance, seen, node, beat)

    def _kept(self) -> float:
        return _KEPT_AT_REST if self._deed is Deed.REST else _KEPT_SECONDS

    async def _failed(self, instance: WindowsInstance, error: WinpodError) -> float:
        """That the API server does not answer is no failure of the instance."""
        if isinstance(error, Unavailable) and not isinstance(error, Unreachable):
            _log.info("instance %s waits: %s", self.name, error)
            return _API_WAIT
        if isinstance(error, Busy):
            await self._save(instance, lambda status: set_phase(status, Phase.WAITING, str(error)))
            return _BUSY_WAIT
        care, reason, said = self._care, reason_of(error), _sentence(instance, error)
        self._seen, self._deed = None, Deed.REST
        care.turns.withdraw(self.name)
        care.tell(instance, reason, said, is_bad=True)

        def change(status: Status) -> None:
            set_phase(status, Phase.FAILED, said)
            status.failure = said
            if isinstance(error, NOT_REACHED):
                care.condition(status, REACHABLE, False, reason, said)
                if condition_of(status.conditions, CONTAINERD_RUNNING):
                    care.condition(status, CONTAINERD_RUNNING, None, reason)
            elif isinstance(error, NodeLate) and status.node_uid:
                care.condition(status, NODE_READY, None, reason, said)
            else:
                care.condition(status, CONFIGURED, False, reason, said)
            if reason == CONTAINERD_NOT_RUNNING:
                care.condition(status, CONTAINERD_RUNNING, False, reason, said)

        await self._save(instance, change)
        wait, self._trouble = self._trouble, min(self._trouble * 2, _LONGEST_WAIT)
        return wait

    async def _save(self, instance: WindowsInstance, change: Callable[[Status], None]) -> None:
        try:
            await save(self._care, instance, change)
        except WinpodError as trouble:
            _log.info("what became of %s is not written: %s", self.name, trouble)


def _sentence(instance: WindowsInstance, error: WinpodError) -> str:
    """Of trouble that all instances have, such as a bad payload, each is told with its name."""
    name, said = instance.name, str(error)
    if instance.is_leaving and isinstance(error, NOT_REACHED):
        which = f"kubectl -n {instance.metadata.namespace} annotate windowsinstance {name}"
        said += f" If it will never answer again, let it go as it is: {which} {STOP_MANAGING}=true"
    return said if said.startswith(f"{name}:") else f"{name}: {said}"

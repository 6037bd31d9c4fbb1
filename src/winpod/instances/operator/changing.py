"""Who changes now: the turns of `rolling`, over the instances as they are."""

from __future__ import annotations

from collections.abc import Callable

from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.objects import InstanceObjects
from winpod.instances.rules.rolling import Stand, Turn, turns


class Turns:
    """A turn that was granted counts at once; that it was is in the status before it is used."""

    def __init__(self, objects: InstanceObjects, limit: Callable[[], int]) -> None:
        self._objects = objects
        self._limit = limit
        self._wants: set[str] = set()
        self._granted: set[str] = set()

    def ask(self, name: str) -> Turn:
        self._wants.add(name)
        stands = [(one.name, self._stand(one)) for one in self._objects.known.values()]
        turn = turns(stands, self._limit()).get(name, Turn(False))
        if turn.is_granted:
            self._granted.add(name)
        return turn

    @property
    def taken(self) -> set[str]:
        """Who has begun, or may."""
        busy = (Stand.CHANGES, Stand.FAILED)
        return {one.name for one in self._objects.known.values() if self._stand(one) in busy}

    def withdraw(self, name: str) -> None:
        """It rests, or cannot be reached, and keeps nobody waiting; what has begun stays begun."""
        self._wants.discard(name)
        self._granted.discard(name)

    def _stand(self, instance: WindowsInstance) -> Stand:
        status, name = instance.status, instance.name
        if instance.is_leaving:
            return Stand.RESTS
        if status.is_changing:
            return Stand.FAILED if status.failure else Stand.CHANGES
        if name in self._granted:
            return Stand.CHANGES
        return Stand.WANTS if name in self._wants else Stand.RESTS

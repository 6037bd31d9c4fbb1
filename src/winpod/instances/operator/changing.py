"""Who changes now: the turns of `rolling`, over instances and Machines as they are."""

from __future__ import annotations

from collections.abc import Callable

from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.live_machines import LiveMachines
from winpod.instances.operator.objects import InstanceObjects
from winpod.instances.rules.rolling import Stand, Turn, turns


class Turns:
    """A turn that was granted counts at once; that it was is in the status before it is used."""

    def __init__(
        self, objects: InstanceObjects, machines: LiveMachines, limit: Callable[[], int]
    ) -> None:
        self._objects = objects
        self._machines = machines
        self._limit = limit
        self._wants: set[str] = set()
        self._granted: set[str] = set()

    def ask(self, instance: WindowsInstance) -> Turn:
        """Who is held wants nothing meanwhile, and keeps nobody waiting."""
        name = instance.name
        if instance.spec.machine and (why := self._machines.hold(instance)):
            self.withdraw(name)
            return Turn(False, why)
        self._wants.add(name)
        known = self._objects.known.values()
        stands = [(one.name, self._stand(one)) for one in known]
        nodes = {one.spec.machine for one in known if _has_been_ready(one)}
        turn = turns(stands, self._machines.elsewhere(nodes), self._limit()).get(name, Turn(False))
        if turn.is_granted:
            self._granted.add(name)
        return turn

    def withdraw(self, name: str) -> None:
        """It rests, or cannot be reached, and keeps nobody waiting; what has begun stays begun."""
        self._wants.discard(name)
        self._granted.discard(name)

    def _stand(self, instance: WindowsInstance) -> Stand:
        """Of one whose Machine has gone, or goes, its MachineSet tells."""
        status, name, machine = instance.status, instance.name, instance.spec.machine
        if instance.is_leaving or (machine and not self._machines.stays(machine)):
            return Stand.RESTS
        if status.is_changing:
            return Stand.FAILED if status.failure else Stand.CHANGES
        if status.failure and not status.was_ready and self._machines.is_of_a_set(machine):
            return Stand.FAILED  # it came in the place of another
        if name in self._granted:
            return Stand.CHANGES
        return Stand.WANTS if name in self._wants else Stand.RESTS


def _has_been_ready(instance: WindowsInstance) -> bool:
    status = instance.status
    return not instance.is_leaving and (status.was_ready or status.is_changing)

"""Rollout limit applied to instances and Machines."""

from __future__ import annotations

from collections.abc import Callable

from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.instance_objects import InstanceStore
from winpod.instances.operator.machine_watcher import MachineWatcher
from winpod.instances.planner.rollout import RolloutSlot, RolloutState, assign_slots


class Rollout:
    """Grants rollout slots.

    A granted slot counts at once, and is in the status before it is used.
    """

    def __init__(
        self, objects: InstanceStore, machines: MachineWatcher, limit: Callable[[], int]
    ) -> None:
        self._objects = objects
        self._machines = machines
        self._limit = limit
        self._pending: set[str] = set()
        self._granted: set[str] = set()

    def request_slot(self, instance: WindowsInstance) -> RolloutSlot:
        """Request a slot. A blocked instance is not pending and does not delay others."""
        name = instance.name
        if instance.spec.machine and (why := self._machines.replacement_blocker(instance)):
            self.release_slot(name)
            return RolloutSlot(False, why)
        self._pending.add(name)
        known = self._objects.known.values()
        states = [(other.name, self._state(other)) for other in known]
        nodes = {other.spec.machine for other in known if _has_been_ready(other)}
        slot = assign_slots(states, self._machines.external_changes(nodes), self._limit()).get(
            name, RolloutSlot(False)
        )
        if slot.is_granted:
            self._granted.add(name)
        return slot

    def release_slot(self, name: str) -> None:
        """Release a slot and the request for one; an update that has started stays started."""
        self._pending.discard(name)
        self._granted.discard(name)

    def _state(self, instance: WindowsInstance) -> RolloutState:
        """Return the rollout state. For a Machine that is gone, its MachineSet counts instead."""
        status, name, machine = instance.status, instance.name, instance.spec.machine
        if instance.is_deleting or (machine and not self._machines.is_present(machine)):
            return RolloutState.IDLE
        if status.is_changing:
            return RolloutState.FAILED if status.failure else RolloutState.UPDATING
        if status.failure and not status.was_ready and self._machines.has_machine_set(machine):
            return RolloutState.FAILED  # a replacement failed to become a node
        if name in self._granted:
            return RolloutState.UPDATING
        return RolloutState.PENDING if name in self._pending else RolloutState.IDLE


def _has_been_ready(instance: WindowsInstance) -> bool:
    status = instance.status
    return not instance.is_deleting and (status.was_ready or status.is_changing)

"""State and clients shared by the reconcilers of all instances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from winpod.clock import Clock, utc_now
from winpod.instances.cluster.bootstrap_tokens import BootstrapTokens
from winpod.instances.cluster.inventory import addresses_of
from winpod.instances.cluster.nodes import NodeClient
from winpod.instances.cluster.resource import InstanceStatus, WindowsInstance
from winpod.instances.operator.conditions import instance_event, with_condition
from winpod.instances.operator.desired_state import DesiredStateSource
from winpod.instances.operator.instance_objects import InstanceStore
from winpod.instances.operator.inventory_watcher import InventoryWatcher
from winpod.instances.operator.machine_watcher import MachineWatcher
from winpod.instances.operator.rollout import Rollout
from winpod.k8s.event_recorder import Event
from winpod.operator.instance_settings import InstanceSettings

MAX_CONCURRENT_READS, MAX_CONCURRENT_CHANGES = 32, 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Shared context. Reads and changes have separate slots, so that reads do not wait for changes.

    `short_delay` is the requeue delay, in seconds, of an instance that waits for something.
    """

    settings: Callable[[], InstanceSettings]
    desired_source: DesiredStateSource
    inputs: InventoryWatcher
    objects: InstanceStore
    nodes: NodeClient
    machines: MachineWatcher
    tokens: BootstrapTokens
    rollout: Rollout
    tell_event: Callable[[Event], None]
    clock: Clock = utc_now
    short_delay: float = 2.0
    read_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_READS)
    )
    change_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_CHANGES)
    )

    def record_event(
        self, instance: WindowsInstance, reason: str, message: str, *, is_bad: bool = False
    ) -> None:
        fields = {"instance": instance.name, "reason": reason}
        _log.info("Instance %s: %s: %s", instance.name, reason, message, extra=fields)
        self.tell_event(instance_event(instance, reason, message, is_bad=is_bad))

    def condition(
        self, status: InstanceStatus, kind: str, holds: bool | None, reason: str, message: str = ""
    ) -> None:
        now = self.clock()
        status.conditions = with_condition(status.conditions, kind, holds, reason, message, now)

    async def addresses(self, instance: WindowsInstance) -> tuple[str, ...]:
        """Return its addresses by the inventory and DNS, never by its own claim."""
        known = self.inputs.addresses(instance.name)
        return await addresses_of(instance.name, instance.spec.address, instance.spec.port, known)

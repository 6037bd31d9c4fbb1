"""What it takes to look after instances: everything that all of them share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.addresses import addresses_of
from winpod.instances.cluster.nodes import Nodes
from winpod.instances.cluster.resource import Status, WindowsInstance
from winpod.instances.cluster.tokens import Tokens
from winpod.instances.operator.changing import Turns
from winpod.instances.operator.live_inputs import LiveInputs
from winpod.instances.operator.live_machines import LiveMachines
from winpod.instances.operator.objects import InstanceObjects
from winpod.instances.operator.telling import event_of, with_condition
from winpod.instances.operator.wanted import Wanted
from winpod.node.certificates import utc_now
from winpod.node.event_series import Event

LOOKS_AT_ONCE, WORKS_AT_ONCE = 32, 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Care:
    """Reading and changing instances have places of their own: who reads waits for no change.

    `soon` is how many seconds pass until who waits for something is decided about anew.
    """

    settings: Callable[[], InstanceSettings]
    wanted: Wanted
    inputs: LiveInputs
    objects: InstanceObjects
    nodes: Nodes
    machines: LiveMachines
    tokens: Tokens
    turns: Turns
    tell_event: Callable[[Event], None]
    clock: Callable[[], datetime] = utc_now
    soon: float = 2.0
    looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_AT_ONCE))
    works: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WORKS_AT_ONCE))

    def tell(
        self, instance: WindowsInstance, reason: str, message: str, *, is_bad: bool = False
    ) -> None:
        _log.info("instance %s: %s: %s", instance.name, reason, message)
        self.tell_event(event_of(instance, reason, message, is_bad=is_bad))

    def condition(
        self, status: Status, kind: str, holds: bool | None, reason: str, message: str = ""
    ) -> None:
        now = self.clock()
        status.conditions = with_condition(status.conditions, kind, holds, reason, message, now)

    async def addresses(self, instance: WindowsInstance) -> tuple[str, ...]:
        """Where it is, by who asked for it and by the network's own word, never by its own."""
        known = self.inputs.addresses(instance.name)
        return await addresses_of(instance.name, instance.spec.address, instance.spec.port, known)

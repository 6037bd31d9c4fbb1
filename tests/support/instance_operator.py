"""Operator context with an in-memory API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support.memory_api import MemoryApi
from tests.support.ssh_server import USER
from winpod.instances.cluster.bootstrap_tokens import BootstrapTokens
from winpod.instances.cluster.nodes import LEASES, NODES, NodeClient
from winpod.instances.cluster.resource import WindowsInstance, instances_path
from winpod.instances.operator.context import OperatorContext
from winpod.instances.operator.instance_objects import InstanceStore
from winpod.instances.operator.inventory_watcher import InventoryWatcher
from winpod.instances.operator.machine_watcher import MachineWatcher
from winpod.instances.operator.rollout import Rollout
from winpod.instances.planner.desired import DesiredState
from winpod.k8s.event_recorder import Event
from winpod.operator.instance_settings import InstanceSettings

NAMESPACE = "system"
NOWHERE = "192.0.2.7"
PATH = instances_path(NAMESPACE)


@dataclass
class FixedDesiredState:
    """Stand-in for the state derived from settings and payload."""

    state: DesiredState

    def desired(self, *_: object) -> DesiredState:
        return self.state


@dataclass
class OperatorHarness:
    """Operator context; `events` are the recorded events, `settings` can be replaced."""

    settings: InstanceSettings = field(default_factory=InstanceSettings)
    api: MemoryApi = field(default_factory=MemoryApi)
    events: list[Event] = field(default_factory=list)
    desired_source: Any = None
    short_delay: float = 2.0
    on_change: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        objects = InstanceStore(self.api, NAMESPACE, lambda _: None)
        machines = MachineWatcher(self.api, lambda: self.settings, self._change)
        self.inputs = InventoryWatcher(
            self.api, NAMESPACE, lambda: self.settings, machines, self._change, self._change
        )
        self.context = OperatorContext(
            settings=lambda: self.settings,
            desired_source=self.desired_source,
            inputs=self.inputs,
            objects=objects,
            nodes=NodeClient(self.api),
            machines=machines,
            tokens=BootstrapTokens(self.api),
            rollout=Rollout(objects, machines, lambda: self.settings.at_most),
            tell_event=self.events.append,
            short_delay=self.short_delay,
        )

    def _change(self) -> None:
        self.on_change()

    async def instance(
        self,
        name: str,
        *,
        machine: str = "",
        address: str = NOWHERE,
        port: int = 22,
        **status: Any,
    ) -> WindowsInstance:
        """Create an instance with this status."""
        spec = {"address": address, "port": port, "username": USER, "machine": machine}
        document = {"spec": spec, "status": status, "metadata": {"finalizers": ["x"]}}
        await self.api.put(f"{PATH}/{name}", document)
        found = msgspec.convert(self.api.objects[f"{PATH}/{name}"], WindowsInstance)
        self.context.objects.on_change(found)
        return found

    async def node(
        self, name: str, *, heartbeat: str, cordoned: bool = False, address: str = NOWHERE
    ) -> None:
        """Create a ready Node with this last heartbeat of its kubelet."""
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": address}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"},
        }
        spec = {"unschedulable": cordoned}
        await self.api.put(f"{NODES}/{name}", {"spec": spec, "status": status})
        await self.heartbeat(name, heartbeat)

    async def heartbeat(self, name: str, moment: str) -> None:
        await self.api.put(f"{LEASES}/{name}", {"spec": {"renewTime": moment}})

    def status(self, name: str) -> dict[str, Any]:
        found = self.api.objects[f"{PATH}/{name}"]["status"]
        return dict(found)

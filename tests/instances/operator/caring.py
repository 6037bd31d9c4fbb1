"""Somebody who looks after instances, over an API server in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.instances.memory_api import MemoryApi
from tests.instances.ssh_server import USER
from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.nodes import LEASES, NODES, Nodes
from winpod.instances.cluster.resource import WindowsInstance, instances_path
from winpod.instances.cluster.tokens import Tokens
from winpod.instances.operator.care import Care
from winpod.instances.operator.changing import Turns
from winpod.instances.operator.live_inputs import LiveInputs
from winpod.instances.operator.live_machines import LiveMachines
from winpod.instances.operator.objects import InstanceObjects
from winpod.instances.rules.desired import Desired
from winpod.node.event_series import Event

NAMESPACE = "system"
NOWHERE = "192.0.2.7"
PATH = instances_path(NAMESPACE)


@dataclass
class AlwaysWanted:
    """A stand-in for what settings and payload come to."""

    wanted: Desired

    def desired(self, *_: object) -> Desired:
        return self.wanted


@dataclass
class Caring:
    """`events` is what was told; settings are followed as they are set here."""

    settings: InstanceSettings = field(default_factory=InstanceSettings)
    api: MemoryApi = field(default_factory=MemoryApi)
    events: list[Event] = field(default_factory=list)
    wanted: Any = None
    soon: float = 2.0
    on_change: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        objects = InstanceObjects(self.api, NAMESPACE, lambda _: None)
        machines = LiveMachines(self.api, lambda: self.settings, self._change)
        self.inputs = LiveInputs(
            self.api, NAMESPACE, lambda: self.settings, machines, self._change, self._change
        )
        self.care = Care(
            settings=lambda: self.settings,
            wanted=self.wanted,
            inputs=self.inputs,
            objects=objects,
            nodes=Nodes(self.api),
            machines=machines,
            tokens=Tokens(self.api),
            turns=Turns(objects, machines, lambda: self.settings.at_most),
            tell_event=self.events.append,
            soon=self.soon,
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
        """It is there, with this status."""
        spec = {"address": address, "port": port, "username": USER, "machine": machine}
        document = {"spec": spec, "status": status, "metadata": {"finalizers": ["x"]}}
        await self.api.put(f"{PATH}/{name}", document)
        found = msgspec.convert(self.api.objects[f"{PATH}/{name}"], WindowsInstance)
        self.care.objects.changed(found)
        return found

    async def node(
        self, name: str, *, beat: str, cordoned: bool = False, address: str = NOWHERE
    ) -> None:
        """A Node that is ready, whose kubelet was heard of last at that time."""
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": address}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"},
        }
        spec = {"unschedulable": cordoned}
        await self.api.put(f"{NODES}/{name}", {"spec": spec, "status": status})
        await self.beat(name, beat)

    async def beat(self, name: str, moment: str) -> None:
        await self.api.put(f"{LEASES}/{name}", {"spec": {"renewTime": moment}})

    def status(self, name: str) -> dict[str, Any]:
        found = self.api.objects[f"{PATH}/{name}"]["status"]
        return dict(found)

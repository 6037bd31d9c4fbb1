"""Instances as a part of the operator: everything about them is made anew whenever it leads.

So nothing is decided by what this process saw when it led before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from winpod.cluster.instance_settings import InstanceSettings
from winpod.cluster.operator import Part, Shared
from winpod.instances.cluster.cluster_place import ClusterPlace, find_cluster
from winpod.instances.cluster.nodes import Nodes
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.cluster.tokens import Tokens
from winpod.instances.operator.approving import Approving
from winpod.instances.operator.care import Care
from winpod.instances.operator.changing import Turns
from winpod.instances.operator.controller import Instances
from winpod.instances.operator.live_inputs import LiveInputs
from winpod.instances.operator.live_machines import LiveMachines
from winpod.instances.operator.metrics import InstanceMetrics
from winpod.instances.operator.objects import InstanceObjects
from winpod.instances.operator.wanted import Wanted
from winpod.node.agent import for_good


def instances_part(payload: Path, shared: Shared) -> Part:
    """`payload` is the directory with the files to install."""
    leading = _Leading(payload, shared)
    shared.numbers.register(InstanceMetrics(leading.known, leading.bad_entries))
    return "instances", leading.run


class _Leading:
    def __init__(self, payload: Path, shared: Shared) -> None:
        self._payload = payload
        self._shared = shared
        self._care: Care | None = None
        self._settings_changed = shared.settings.subscribe()

    def known(self) -> Iterable[WindowsInstance]:
        return self._care.objects.known.values() if self._care else ()

    def bad_entries(self) -> int:
        return len(self._care.inputs.entries.bad) if self._care else 0

    async def run(self) -> None:
        instances = Instances(self._shared.place.namespace)
        care = self._care = self._made(instances)
        approving = Approving(self._shared.api, care)
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in (
                    ("the objects of instances", care.objects.run),
                    ("who asks for instances", care.inputs.run),
                    ("what instances should be", care.wanted.run),
                    ("certificates of instances", approving.run),
                    ("settings of instances", lambda: self._follow_settings(instances, care)),
                    ("instances", lambda: instances.run(care)),
                ):
                    group.create_task(for_good(name, work))
        finally:
            self._care = None

    def _made(self, instances: Instances) -> Care:
        api, namespace = self._shared.api, self._shared.place.namespace
        changed = instances.everything_changed
        objects = InstanceObjects(api, namespace, instances.one_changed)
        machines = LiveMachines(api, self._settings, instances.asked_changed)
        return Care(
            settings=self._settings,
            wanted=Wanted(self._payload, self._settings, self._cluster, changed),
            inputs=LiveInputs(
                api, namespace, self._settings, machines, instances.asked_changed, changed
            ),
            objects=objects,
            nodes=Nodes(api),
            machines=machines,
            tokens=Tokens(api),
            turns=Turns(objects, machines, lambda: self._settings().at_most),
            tell_event=self._shared.tell,
        )

    def _settings(self) -> InstanceSettings:
        return self._shared.settings.now.instances

    async def _cluster(self) -> ClusterPlace:
        said = self._settings().api_server
        return await find_cluster(self._shared.api, self._shared.access, said)

    async def _follow_settings(self, instances: Instances, care: Care) -> None:
        while True:
            await self._settings_changed.wait()
            self._settings_changed.clear()
            care.machines.settings_changed()
            instances.everything_changed()

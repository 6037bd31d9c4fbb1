"""Machines and MachineSets as they are now, where the settings say that they are.

While they cannot be listed, nobody knows that one has gone, and what is of Machines stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.machines import (
    GROUP,
    Machine,
    MachineObject,
    MachineSet,
    hold,
    under_way,
)
from winpod.instances.rules.rolling import Elsewhere
from winpod.node.api import ApiServer
from winpod.node.following import Following
from winpod.windows.errors import WinpodError

T = TypeVar("T", bound=MachineObject)
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_log = logging.getLogger(__name__)


class LiveMachines:
    """`on_change` hears that something of them is different."""

    def __init__(
        self,
        api: ApiServer,
        settings: Callable[[], InstanceSettings],
        on_change: Callable[[], None],
    ) -> None:
        self._api = api
        self._settings = settings
        self._on_change = on_change
        self._settings_changed = asyncio.Event()
        self._tried = asyncio.Event()
        self._follow_in("")

    async def run(self) -> None:
        """Where the settings say that they are, also once they say that they are elsewhere."""
        while True:
            namespace = self._settings().machine_namespace
            self._follow_in(namespace)
            async with asyncio.TaskGroup() as group:
                following = [
                    group.create_task(one.run())
                    for one in (self._machines, self._sets)
                    if namespace
                ]
                if not namespace:
                    self._tried.set()
                while self._settings().machine_namespace == namespace:
                    await self._settings_changed.wait()
                    self._settings_changed.clear()
                for task in following:
                    task.cancel()

    async def until_tried(self) -> None:
        """Machines that cannot be listed keep nobody else waiting."""
        await self._tried.wait()

    def settings_changed(self) -> None:
        """Machines may be elsewhere now."""
        self._settings_changed.set()

    @property
    def are_known(self) -> bool:
        return self._machines.is_known

    @property
    def all(self) -> Collection[Machine]:
        return self._machines.objects.values()

    def stays(self, name: str) -> bool:
        """Also where nobody knows."""
        machine = self._machines.objects.get(name)
        return not self.are_known or (machine is not None and machine.stays)

    def is_of_a_set(self, name: str) -> bool:
        machine = self._machines.objects.get(name)
        return machine is not None and bool(machine.owner)

    def hold(self, instance: WindowsInstance) -> str:
        """Why its Machine cannot be replaced now, or nothing; who has begun is not held."""
        name = instance.spec.machine
        if not self._settings().machine_namespace:
            return f"the settings do not say where Machine {name} is: machineNamespace is empty"
        if not self.stays(name):
            return f"Machine {name} is on its way out"
        machine = self._machines.objects.get(name)
        if machine is None or not self._sets.is_known or instance.status.is_changing:
            return ""
        return hold(machine, self._sets.objects.get(machine.owner))

    def elsewhere(self, nodes: Collection[str]) -> Elsewhere:
        """What changes by MachineSets; `nodes` are the Machines that have been ready nodes."""
        namespace = self._settings().machine_namespace
        if not namespace:
            return Elsewhere()
        kinds = (self._machines, self._sets)
        if namespace != self._namespace or not all(one.is_known for one in kinds):
            what = f"the Machines and MachineSets in {namespace} are not known"
            problem = next((one.problem for one in kinds if one.problem), "they are not listed yet")
            return Elsewhere(unknown=f"{what}, nor how many of them change: {problem}")
        return Elsewhere(under_way(self.all, self._sets.objects.values(), nodes))

    async def delete(self, name: str) -> None:
        namespace = self._settings().machine_namespace
        await self._api.delete(f"{GROUP}/namespaces/{namespace}/machines/{name}", {})

    def _follow_in(self, namespace: str) -> None:
        self._namespace = namespace
        self._machines = _Kind(self._api, Machine, namespace, self._heard)
        self._sets = _Kind(self._api, MachineSet, namespace, self._heard)

    def _heard(self) -> None:
        if self._machines.is_tried and self._sets.is_tried:
            self._tried.set()
        self._on_change()


class _Kind(Generic[T]):
    """All of one kind; while they cannot be listed, `problem` says why."""

    def __init__(
        self, api: ApiServer, kind: type[T], namespace: str, on_change: Callable[[], None]
    ) -> None:
        self.objects: dict[str, T] = {}
        self.is_known = False
        self.problem = ""
        self._api = api
        self._kind = kind
        self._what = f"{kind.__name__}s in {namespace}"
        self._path = f"{GROUP}/namespaces/{namespace}/{kind.__name__.lower()}s"
        self._on_change = on_change

    @property
    def is_tried(self) -> bool:
        return self.is_known or bool(self.problem)

    async def run(self) -> None:
        wait = _FIRST_WAIT
        while problem := await self._cannot_list():
            if problem != self.problem:
                _log.warning("%s are not known, and what is of them stays: %s", self._what, problem)
                self.problem = problem
                self._on_change()
            await self._api.pause(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
        await Following(self._api, self._kind, self._path, self).run()

    async def _cannot_list(self) -> str:
        """Why not, or nothing."""
        try:
            await self._api.list(self._kind, self._path, {})
        except WinpodError as error:
            return str(error)
        return ""

    async def listed(self, objects: Sequence[T]) -> None:
        self._take({obj.name: obj for obj in objects})

    def changed(self, obj: T) -> None:
        self._take({**self.objects, obj.name: obj})

    def deleted(self, obj: T) -> None:
        self._take({name: one for name, one in self.objects.items() if name != obj.name})

    def _take(self, now: dict[str, T]) -> None:
        self.objects, self.is_known, self.problem = now, True, ""
        self._on_change()

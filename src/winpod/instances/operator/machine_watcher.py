"""Informers of Machines and MachineSets in the namespace of the settings.

While they cannot be listed, deletions are unknown, and instances of Machines stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from winpod.concurrency import Backoff
from winpod.errors import WinpodError
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.machines import (
    GROUP,
    Machine,
    MachineObject,
    MachineSet,
    pending_replacements,
    replacement_blocker,
)
from winpod.instances.planner.rollout import ExternalChanges
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.operator.instance_settings import InstanceSettings

T = TypeVar("T", bound=MachineObject)
_INITIAL_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
_log = logging.getLogger(__name__)


class MachineWatcher:
    """Watches Machines and MachineSets; `on_change` is called for every change."""

    def __init__(
        self,
        api: ApiClient,
        settings: Callable[[], InstanceSettings],
        on_change: Callable[[], None],
    ) -> None:
        self._api = api
        self._settings = settings
        self._on_change = on_change
        self._settings_changed = asyncio.Event()
        self._list_attempted = asyncio.Event()
        self._watch_namespace("")

    async def run(self) -> None:
        """Watch the configured namespace, and switch when the settings change."""
        while True:
            namespace = self._settings().machine_namespace
            self._watch_namespace(namespace)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(informer.run())
                    for informer in (self._machines, self._sets)
                    if namespace
                ]
                if not namespace:
                    self._list_attempted.set()
                while self._settings().machine_namespace == namespace:
                    await self._settings_changed.wait()
                    self._settings_changed.clear()
                for task in tasks:
                    task.cancel()

    async def wait_listed(self) -> None:
        """Wait for the first attempt to list, also if it fails."""
        await self._list_attempted.wait()

    def settings_changed(self) -> None:
        """Notify that the namespace may have changed."""
        self._settings_changed.set()

    @property
    def is_synced(self) -> bool:
        return self._machines.is_known

    @property
    def all(self) -> Collection[Machine]:
        return self._machines.objects.values()

    def is_present(self, name: str) -> bool:
        """Whether the Machine exists; True while this is unknown."""
        machine = self._machines.objects.get(name)
        return not self.is_synced or (machine is not None and machine.is_permanent)

    def has_machine_set(self, name: str) -> bool:
        machine = self._machines.objects.get(name)
        return machine is not None and bool(machine.owner)

    def replacement_blocker(self, instance: WindowsInstance) -> str:
        """Return why its Machine cannot be replaced now, or empty; a started replacement is never
        blocked.
        """
        name = instance.spec.machine
        if not self._settings().machine_namespace:
            return f"the namespace of Machine {name} is unknown: machineNamespace is empty"
        if not self.is_present(name):
            return f"Machine {name} is being deleted"
        machine = self._machines.objects.get(name)
        if machine is None or not self._sets.is_known or instance.status.is_changing:
            return ""
        return replacement_blocker(machine, self._sets.objects.get(machine.owner))

    def external_changes(self, nodes: Collection[str]) -> ExternalChanges:
        """Return the changes by MachineSets.

        `nodes` are the Machines that have been ready nodes.
        """
        namespace = self._settings().machine_namespace
        if not namespace:
            return ExternalChanges()
        informers = (self._machines, self._sets)
        if namespace != self._namespace or not all(informer.is_known for informer in informers):
            subject = f"the Machines and MachineSets in {namespace} are not known"
            problem = next(
                (informer.problem for informer in informers if informer.problem),
                "they are not listed yet",
            )
            return ExternalChanges(unknown=f"{subject}, nor how many of them change: {problem}")
        return ExternalChanges(pending_replacements(self.all, self._sets.objects.values(), nodes))

    async def delete(self, name: str) -> None:
        namespace = self._settings().machine_namespace
        await self._api.delete(f"{GROUP}/namespaces/{namespace}/machines/{name}", {})

    def _watch_namespace(self, namespace: str) -> None:
        self._namespace = namespace
        self._machines = _MachineInformer(self._api, Machine, namespace, self._handle_change)
        self._sets = _MachineInformer(self._api, MachineSet, namespace, self._handle_change)

    def _handle_change(self) -> None:
        if self._machines.is_listed and self._sets.is_listed:
            self._list_attempted.set()
        self._on_change()


class _MachineInformer(Generic[T]):
    """Informer of one kind; `problem` is why it cannot be listed, if so."""

    def __init__(
        self, api: ApiClient, kind: type[T], namespace: str, on_change: Callable[[], None]
    ) -> None:
        self.objects: dict[str, T] = {}
        self.is_known = False
        self.problem = ""
        self._api = api
        self._kind = kind
        self._description = f"{kind.__name__}s in {namespace}"
        self._path = f"{GROUP}/namespaces/{namespace}/{kind.__name__.lower()}s"
        self._on_change = on_change

    @property
    def is_listed(self) -> bool:
        return self.is_known or bool(self.problem)

    async def run(self) -> None:
        backoff = Backoff(_INITIAL_BACKOFF, _MAX_BACKOFF)
        while problem := await self._list_error():
            if problem != self.problem:
                _log.warning(
                    "Failed to list %s, keeping their instances: %s", self._description, problem
                )
                self.problem = problem
                self._on_change()
            await self._api.wait_before_retry(backoff.next())
        await Reflector(self._api, self._kind, self._path, self).run()

    async def _list_error(self) -> str:
        """Return why the objects cannot be listed, or empty."""
        try:
            await self._api.list(self._kind, self._path, {})
        except WinpodError as error:
            return str(error)
        return ""

    async def on_list(self, objects: Sequence[T]) -> None:
        self._set_objects({obj.name: obj for obj in objects})

    def on_change(self, obj: T) -> None:
        self._set_objects({**self.objects, obj.name: obj})

    def on_delete(self, obj: T) -> None:
        self._set_objects({name: item for name, item in self.objects.items() if name != obj.name})

    def _set_objects(self, objects: dict[str, T]) -> None:
        self.objects, self.is_known, self.problem = objects, True, ""
        self._on_change()

"""What people ask for, as it is now: the ConfigMap, the key that opens instances, and Machines.

A ConfigMap that is not there asks for nothing, and takes nothing away either: instances are removed
by removing their entries. So it is with Machines that nobody could list yet.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

from lightkube.models import core_v1 as v1

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.inputs import (
    INSTANCES,
    KEY_ENTRY,
    KEY_SECRET,
    Asked,
    BadEntry,
    Entries,
    read_entries,
    without_doubles,
)
from winpod.instances.operator.machines import GROUP, SELECTOR, Machine, asked_of, owned
from winpod.instances.remote.keys import Keys, read_keys
from winpod.node.api import ApiServer
from winpod.node.following import Following
from winpod.windows.errors import InvalidInput, WinpodError

T = TypeVar("T")
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_log = logging.getLogger(__name__)


class LiveInputs:
    """`on_change` hears that others are asked for, `on_key` that there is another key.

    `lessened` are the MachineSets that lost a Machine and may not have another yet.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        settings: Callable[[], InstanceSettings],
        on_change: Callable[[], None],
        on_key: Callable[[], None],
    ) -> None:
        self.keys = Keys()
        self.key_problem = _missing_key(namespace)
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._on_change = on_change
        self._on_key = on_key
        self._entries: Entries | None = None
        self._machines: dict[str, Machine] | None = None
        self._machines_tried = asyncio.Event()
        self.lessened: set[str] = set()
        self._settings_changed = asyncio.Event()
        folder = f"/api/v1/namespaces/{namespace}"
        self._config_map = Following(
            api,
            v1.ConfigMap,
            f"{folder}/configmaps",
            _One(self._take_entries),
            {"fieldSelector": f"metadata.name={INSTANCES}"},
        )
        self._secret = Following(
            api,
            v1.Secret,
            f"{folder}/secrets",
            _One(self._take_key),
            {"fieldSelector": f"metadata.name={KEY_SECRET}"},
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._config_map.run())
            group.create_task(self._secret.run())
            group.create_task(self._follow_machines())

    async def until_known(self) -> None:
        """Machines that cannot be listed keep nobody else waiting."""
        await self._config_map.is_known.wait()
        await self._secret.is_known.wait()
        await self._machines_tried.wait()

    def settings_changed(self) -> None:
        """Machines may be elsewhere now."""
        self._settings_changed.set()

    @property
    def machines(self) -> Collection[Machine]:
        return (self._machines or {}).values()

    def still_missing(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """How many those MachineSets lack that lost a Machine; one that has all is forgotten.

        Of a set that lost one since it was `wanted`, one.
        """
        there = owned(self.machines)
        short = {name: wanted.get(name, there[name] + 1) - there[name] for name in self.lessened}
        missing = {name: count for name, count in short.items() if count > 0}
        self.lessened = set(missing)
        return missing

    @property
    def are_machines_known(self) -> bool:
        return self._machines is not None

    @property
    def entries(self) -> Entries:
        user = self._settings().machine_user
        found = [one for machine in self.machines if (one := asked_of(machine, user))]
        return without_doubles(self._entries or Entries(), found)

    def addresses(self, name: str) -> tuple[str, ...]:
        """Those that the Machine of an instance states, if it is one."""
        return next((one.addresses for one in self.entries.asked if one.name == name), ())

    def keeps(self, asked: Asked) -> bool:
        """Whether an instance that has no entry stays nevertheless: nobody has taken it away."""
        if asked.machine:
            if self._machines is None:
                return True
            machine = self._machines.get(asked.machine)
            return machine is not None and not machine.is_leaving
        return self._entries is None or any(_is_of(bad, asked) for bad in self.entries.bad)

    def _take_entries(self, found: v1.ConfigMap | None) -> None:
        self._entries = read_entries(found.data or {}) if found else None
        self._on_change()

    def _take_key(self, found: v1.Secret | None) -> None:
        text = ((found.data or {}) if found else {}).get(KEY_ENTRY, "")
        try:
            if not text:
                raise InvalidInput(_missing_key(self._namespace))
            self.keys = read_keys(base64.b64decode(text), self.keys)
            self.key_problem = ""
        except (binascii.Error, InvalidInput) as error:
            self.key_problem = f"Secret {KEY_SECRET}, {KEY_ENTRY}: {error}" if text else str(error)
        self._on_key()

    async def _follow_machines(self) -> None:
        """Where the settings say that they are, also once they say that they are elsewhere."""
        while True:
            namespace = self._settings().machine_namespace
            self._machines, self.lessened = None, set()
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow_machines_in(namespace))
                while self._settings().machine_namespace == namespace:
                    await self._settings_changed.wait()
                    self._settings_changed.clear()
                following.cancel()

    async def _follow_machines_in(self, namespace: str) -> None:
        if not namespace:
            self._machines_tried.set()
            return
        path = f"{GROUP}/namespaces/{namespace}/machines"
        told, wait = "", _FIRST_WAIT
        while problem := await self._cannot_list(path):
            self._machines_tried.set()
            if problem != told:
                _log.warning(
                    "Machines in %s are not known, and what is of them stays: %s",
                    namespace,
                    problem,
                )
            told = problem
            await self._api.pause(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
        await Following(self._api, Machine, path, self, SELECTOR).run()

    async def _cannot_list(self, path: str) -> str:
        """Why not, or nothing."""
        try:
            await self._api.list(Machine, path, SELECTOR)
        except WinpodError as error:
            return str(error)
        return ""

    async def listed(self, objects: Sequence[Machine]) -> None:
        self._take_machines({machine.name: machine for machine in objects})

    def changed(self, obj: Machine) -> None:
        self._take_machines({**(self._machines or {}), obj.name: obj})

    def deleted(self, obj: Machine) -> None:
        self._take_machines({one.name: one for one in self.machines if one.name != obj.name})

    def _take_machines(self, now: dict[str, Machine]) -> None:
        before, after = owned(self.machines), owned(now.values())
        lost = {owner for owner in before if after[owner] < before[owner]}
        gone = {one.owner for one in now.values() if one.is_leaving}
        self.lessened |= {owner for owner in lost | gone if owner}
        self._machines = now
        self._machines_tried.set()
        self._on_change()


class _One(Generic[T]):
    """Hears of one object, or that there is none."""

    def __init__(self, take: Callable[[T | None], None]) -> None:
        self._take = take

    async def listed(self, objects: Sequence[T]) -> None:
        self._take(objects[0] if objects else None)

    def changed(self, obj: T) -> None:
        self._take(obj)

    def deleted(self, obj: T) -> None:
        del obj
        self._take(None)


def _is_of(bad: BadEntry, asked: Asked) -> bool:
    return bad.key.lower() == asked.address


def _missing_key(namespace: str) -> str:
    return (
        f"there is no private key to reach instances with. kubectl -n {namespace} create secret "
        f"generic {KEY_SECRET} --from-file={KEY_ENTRY}=FILE"
    )

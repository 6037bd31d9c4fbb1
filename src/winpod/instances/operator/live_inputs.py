"""What people ask for, as it is now: the ConfigMap, the key that opens instances, and Machines.

A ConfigMap that is not there asks for nothing, and takes nothing away either: instances are removed
by removing their entries. So it is with Machines that nobody could list yet.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
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
from winpod.instances.operator.live_machines import LiveMachines
from winpod.instances.operator.machines import asked_of
from winpod.instances.remote.keys import Keys, read_keys
from winpod.node.api import ApiServer
from winpod.node.following import Following
from winpod.windows.errors import InvalidInput

T = TypeVar("T")


class LiveInputs:
    """`on_change` hears that others are asked for, `on_key` that there is another key."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        settings: Callable[[], InstanceSettings],
        machines: LiveMachines,
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
        self._machines = machines
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
            group.create_task(self._machines.run())

    async def until_known(self) -> None:
        await self._config_map.is_known.wait()
        await self._secret.is_known.wait()
        await self._machines.until_tried()

    @property
    def entries(self) -> Entries:
        user = self._settings().machine_user
        found = [one for machine in self._machines.all if (one := asked_of(machine, user))]
        return without_doubles(self._entries or Entries(), found)

    def addresses(self, name: str) -> tuple[str, ...]:
        """Those that the Machine of an instance states, if it is one."""
        return next((one.addresses for one in self.entries.asked if one.name == name), ())

    def keeps(self, asked: Asked) -> bool:
        """Whether an instance that has no entry stays nevertheless: nobody has taken it away."""
        if asked.machine:
            return self._machines.stays(asked.machine)
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

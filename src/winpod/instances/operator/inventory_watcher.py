"""Watches the inventory: the ConfigMap, the Secret with the private key, and Machines.

A missing ConfigMap adds and removes nothing: instances are removed by removing their entries. The
same holds for Machines that could not be listed yet.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from winpod.errors import InvalidInput
from winpod.instances.cluster.inventory import (
    KEY_ENTRY,
    InvalidEntry,
    Inventory,
    InventoryEntry,
    deduplicate,
    read_inventory,
)
from winpod.instances.operator.machine_watcher import MachineWatcher
from winpod.instances.operator.machines import inventory_entry_of
from winpod.instances.ssh.authorized_keys import SshKeys, read_keys
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.models import core_v1 as v1
from winpod.labels import INSTANCES_CONFIG_MAP, INSTANCES_KEY_SECRET
from winpod.operator.instance_settings import InstanceSettings

T = TypeVar("T")


class InventoryWatcher:
    """`on_change` is called when the inventory changes, `on_key` when the key does."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        settings: Callable[[], InstanceSettings],
        machines: MachineWatcher,
        on_change: Callable[[], None],
        on_key: Callable[[], None],
    ) -> None:
        self.keys = SshKeys()
        self.key_problem = _missing_key(namespace)
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._on_change = on_change
        self._on_key = on_key
        self._entries: Inventory | None = None
        self._machines = machines
        namespace_path = f"/api/v1/namespaces/{namespace}"
        self._config_map = Reflector(
            api,
            v1.ConfigMap,
            f"{namespace_path}/configmaps",
            _SingleObjectHandler(self._set_inventory),
            {"fieldSelector": f"metadata.name={INSTANCES_CONFIG_MAP}"},
        )
        self._secret = Reflector(
            api,
            v1.Secret,
            f"{namespace_path}/secrets",
            _SingleObjectHandler(self._set_key),
            {"fieldSelector": f"metadata.name={INSTANCES_KEY_SECRET}"},
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._config_map.run())
            group.create_task(self._secret.run())
            group.create_task(self._machines.run())

    async def wait_synced(self) -> None:
        await self._config_map.is_known.wait()
        await self._secret.is_known.wait()
        await self._machines.wait_listed()

    @property
    def entries(self) -> Inventory:
        user = self._settings().machine_user
        machine_entries = [
            entry for machine in self._machines.all if (entry := inventory_entry_of(machine, user))
        ]
        return deduplicate(self._entries or Inventory(), machine_entries)

    def addresses(self, name: str) -> tuple[str, ...]:
        """Return the addresses of the Machine of an instance, if it has one."""
        return next((entry.addresses for entry in self.entries.valid if entry.name == name), ())

    def is_retained(self, entry: InventoryEntry) -> bool:
        """Whether an instance without an entry stays, because it was not removed deliberately."""
        if entry.machine:
            return self._machines.is_present(entry.machine)
        return self._entries is None or any(
            _matches(invalid, entry) for invalid in self.entries.invalid
        )

    def _set_inventory(self, config_map: v1.ConfigMap | None) -> None:
        self._entries = read_inventory(config_map.data or {}) if config_map else None
        self._on_change()

    def _set_key(self, secret: v1.Secret | None) -> None:
        text = ((secret.data or {}) if secret else {}).get(KEY_ENTRY, "")
        try:
            if not text:
                raise InvalidInput(_missing_key(self._namespace))
            self.keys = read_keys(base64.b64decode(text), self.keys)
            self.key_problem = ""
        except (binascii.Error, InvalidInput) as error:
            self.key_problem = (
                f"Secret {INSTANCES_KEY_SECRET}, {KEY_ENTRY}: {error}" if text else str(error)
            )
        self._on_key()


class _SingleObjectHandler(Generic[T]):
    """Handler of a single object; None if it does not exist."""

    def __init__(self, take: Callable[[T | None], None]) -> None:
        self._take = take

    async def on_list(self, objects: Sequence[T]) -> None:
        self._take(objects[0] if objects else None)

    def on_change(self, obj: T) -> None:
        self._take(obj)

    def on_delete(self, obj: T) -> None:
        del obj
        self._take(None)


def _matches(invalid: InvalidEntry, entry: InventoryEntry) -> bool:
    return invalid.key.lower() == entry.address


def _missing_key(namespace: str) -> str:
    return (
        f"there is no private key for instances. kubectl -n {namespace} create secret "
        f"generic {INSTANCES_KEY_SECRET} --from-file={KEY_ENTRY}=FILE"
    )

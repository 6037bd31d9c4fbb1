"""Store of WindowsInstance objects: watched, and written with optimistic concurrency."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence

import msgspec

from winpod.instances.cluster.inventory import InventoryEntry
from winpod.instances.cluster.resource import (
    InstanceSpec,
    InstanceStatus,
    WindowsInstance,
    instances_path,
)
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.informer import Reflector
from winpod.k8s.objects import ObjectMeta
from winpod.labels import INSTANCE_FINALIZER


class InstanceStore:
    """`on_change` is called with the name of each object that another client changed."""

    def __init__(self, api: ApiClient, namespace: str, on_change: Callable[[str], None]) -> None:
        self.known: dict[str, WindowsInstance] = {}
        self._api = api
        self._namespace = namespace
        self._path = instances_path(namespace)
        self._on_change = on_change
        self._reflector = Reflector(api, WindowsInstance, self._path, self)

    async def run(self) -> None:
        await self._reflector.run()

    async def wait_synced(self) -> None:
        await self._reflector.is_known.wait()

    def get_copy(self, name: str) -> WindowsInstance | None:
        return copy.deepcopy(self.known.get(name))

    async def create(self, entry: InventoryEntry) -> None:
        metadata = ObjectMeta(
            name=entry.name, namespace=self._namespace, finalizers=[INSTANCE_FINALIZER]
        )
        new = WindowsInstance(metadata, _spec(entry))
        try:
            self.on_change(await self._api.create(self._path, new))
        except ApiError as error:
            if not error.is_conflict:
                raise

    async def update_spec(self, name: str, entry: InventoryEntry) -> None:
        """Change user or port."""
        await self._write(name, lambda obj: setattr(obj, "spec", _spec(entry)), "")

    async def delete(self, name: str) -> None:
        known = self.known.get(name)
        if known is None or known.is_deleting:
            return
        try:
            options = {"preconditions": {"uid": known.metadata.uid}}
            await self._api.delete(f"{self._path}/{name}", options)
        except ApiError as error:
            if not (error.is_not_found or error.is_conflict):
                raise

    async def save(
        self, name: str, change: Callable[[InstanceStatus], None]
    ) -> WindowsInstance | None:
        """Change the status; None if the object is gone. Without a change, no request is made."""
        known = self.get_copy(name)
        if known is not None:
            before = msgspec.json.encode(known.status)
            change(known.status)
            if msgspec.json.encode(known.status) == before:
                return known
        return await self._write(name, lambda obj: change(obj.status), "/status")

    async def remove_finalizer(self, name: str) -> None:
        """Remove the finalizer, as the last action on an instance."""

        def drop(obj: WindowsInstance) -> None:
            obj.metadata.finalizers = [
                finalizer
                for finalizer in obj.metadata.finalizers
                if finalizer != INSTANCE_FINALIZER
            ]

        await self._write(name, drop, "")

    async def _write(
        self, name: str, change: Callable[[WindowsInstance], None], part: str
    ) -> WindowsInstance | None:
        path = f"{self._path}/{name}"
        while True:
            obj = await self._api.get(WindowsInstance, path)
            if obj is None:
                return None
            before = msgspec.json.encode(obj)
            change(obj)
            if msgspec.json.encode(obj) == before:
                self._cache(obj)
                return obj
            try:
                saved = await self._api.replace(f"{path}{part}", obj)
            except ApiError as error:
                if error.is_not_found:
                    return None
                if not error.is_conflict:
                    raise
                await asyncio.sleep(0)
                continue
            if saved.metadata.finalizers or not saved.is_deleting:
                self._cache(saved)
            return saved

    def _cache(self, obj: WindowsInstance) -> None:
        """Update the cache, unless it is newer or the object is gone."""
        known = self.known.get(obj.name)
        if known and _revision(obj) >= _revision(known):
            self.known[obj.name] = copy.deepcopy(obj)

    async def on_list(self, objects: Sequence[WindowsInstance]) -> None:
        gone = set(self.known) - {obj.name for obj in objects}
        self.known = {obj.name: obj for obj in objects}
        for name in (*gone, *self.known):
            self._on_change(name)

    def on_change(self, obj: WindowsInstance) -> None:
        known = self.known.get(obj.name)
        if known and _revision(obj) < _revision(known):
            return
        self.known[obj.name] = obj
        if known is None or _external_fields(known) != _external_fields(obj):
            self._on_change(obj.name)

    def on_delete(self, obj: WindowsInstance) -> None:
        self.known.pop(obj.name, None)
        self._on_change(obj.name)


def _revision(obj: WindowsInstance) -> int:
    """Return the resource version; a watch event may be older than our last write."""
    return int(obj.metadata.resource_version or 0)


def _external_fields(obj: WindowsInstance) -> tuple[object, ...]:
    """Return the fields that the operator does not write itself."""
    metadata = obj.metadata
    return (metadata.uid, metadata.generation, obj.is_deleting, obj.is_unmanaged)


def _spec(entry: InventoryEntry) -> InstanceSpec:
    return InstanceSpec(entry.address, entry.username, entry.port, entry.machine)

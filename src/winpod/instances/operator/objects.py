"""The objects of instances, followed and written; a status is written over what was read only."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence

import msgspec

from winpod.cluster.custom_resources import Metadata
from winpod.instances.cluster.inputs import Asked
from winpod.instances.cluster.resource import (
    FINALIZER,
    Spec,
    Status,
    WindowsInstance,
    instances_path,
)
from winpod.node.api import ApiServer, Refused
from winpod.node.following import Following


class InstanceObjects:
    """`on_change` hears the name of each that somebody else has changed."""

    def __init__(self, api: ApiServer, namespace: str, on_change: Callable[[str], None]) -> None:
        self.known: dict[str, WindowsInstance] = {}
        self._api = api
        self._namespace = namespace
        self._path = instances_path(namespace)
        self._on_change = on_change
        self._following = Following(api, WindowsInstance, self._path, self)

    async def run(self) -> None:
        await self._following.run()

    async def until_known(self) -> None:
        await self._following.is_known.wait()

    def copy_of(self, name: str) -> WindowsInstance | None:
        return copy.deepcopy(self.known.get(name))

    async def create(self, asked: Asked) -> None:
        metadata = Metadata(name=asked.name, namespace=self._namespace, finalizers=[FINALIZER])
        new = WindowsInstance(metadata, _spec(asked))
        try:
            self.changed(await self._api.create(self._path, new))
        except Refused as error:
            if not error.is_conflict:
                raise

    async def respecify(self, name: str, asked: Asked) -> None:
        """Another user, or another port."""
        await self._write(name, lambda obj: setattr(obj, "spec", _spec(asked)), "")

    async def delete(self, name: str) -> None:
        known = self.known.get(name)
        if known is None or known.is_leaving:
            return
        try:
            options = {"preconditions": {"uid": known.metadata.uid}}
            await self._api.delete(f"{self._path}/{name}", options)
        except Refused as error:
            if not (error.is_missing or error.is_conflict):
                raise

    async def save(self, name: str, change: Callable[[Status], None]) -> WindowsInstance | None:
        """The status as it is now, changed; None where the object has gone.

        Where that changes nothing of what is known, nobody is asked.
        """
        known = self.copy_of(name)
        if known is not None:
            before = msgspec.json.encode(known.status)
            change(known.status)
            if msgspec.json.encode(known.status) == before:
                return known
        return await self._write(name, lambda obj: change(obj.status), "/status")

    async def let_go(self, name: str) -> None:
        """The last thing about it: nothing of it is left to be done."""

        def drop(obj: WindowsInstance) -> None:
            obj.metadata.finalizers = [one for one in obj.metadata.finalizers if one != FINALIZER]

        await self._write(name, drop, "")

    async def _write(
        self, name: str, change: Callable[[WindowsInstance], None], part: str
    ) -> WindowsInstance | None:
        path = f"{self._path}/{name}"
        while True:
            now = await self._api.get(WindowsInstance, path)
            if now is None:
                return None
            before = msgspec.json.encode(now)
            change(now)
            if msgspec.json.encode(now) == before:
                self._keep(now)
                return now
            try:
                saved = await self._api.replace(f"{path}{part}", now)
            except Refused as error:
                if error.is_missing:
                    return None
                if not error.is_conflict:
                    raise
                await asyncio.sleep(0)
                continue
            if saved.metadata.finalizers or not saved.is_leaving:
                self._keep(saved)
            return saved

    def _keep(self, obj: WindowsInstance) -> None:
        """Unless something newer was told meanwhile, or that it has gone."""
        known = self.known.get(obj.name)
        if known and _revision(obj) >= _revision(known):
            self.known[obj.name] = copy.deepcopy(obj)

    async def listed(self, objects: Sequence[WindowsInstance]) -> None:
        gone = set(self.known) - {obj.name for obj in objects}
        self.known = {obj.name: obj for obj in objects}
        for name in (*gone, *self.known):
            self._on_change(name)

    def changed(self, obj: WindowsInstance) -> None:
        known = self.known.get(obj.name)
        if known and _revision(obj) < _revision(known):
            return
        self.known[obj.name] = obj
        if known is None or _asks(known) != _asks(obj):
            self._on_change(obj.name)

    def deleted(self, obj: WindowsInstance) -> None:
        self.known.pop(obj.name, None)
        self._on_change(obj.name)


def _revision(obj: WindowsInstance) -> int:
    """A watch may tell late what was overwritten here meanwhile."""
    return int(obj.metadata.resource_version or 0)


def _asks(obj: WindowsInstance) -> tuple[object, ...]:
    """What of an object is not written here."""
    metadata = obj.metadata
    return (metadata.uid, metadata.generation, obj.is_leaving, obj.is_forgotten)


def _spec(asked: Asked) -> Spec:
    return Spec(asked.address, asked.username, asked.port, asked.machine)

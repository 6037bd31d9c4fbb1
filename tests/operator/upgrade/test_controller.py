"""Tests of the upgrade controller."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from winpod.images.lookup import ImageLookupResult
from winpod.k8s.client import ApiClient, ObjectList, WatchEvent
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.objects import ObjectMeta
from winpod.labels import UPGRADE_FINALIZER
from winpod.operator.settings import OperatorSettings
from winpod.operator.upgrade.controller import UpgradeController
from winpod.operator.upgrade.resource import UpgradeStatus, WindowsUpgrade
from winpod.operator.upgrade.snapshot import SnapshotReader


def upgrade(uid: str, phase: str, *finalizers: str) -> WindowsUpgrade:
    metadata = ObjectMeta(name="one", uid=uid, generation=1, finalizers=list(finalizers))
    return WindowsUpgrade(metadata, {"from": "2019", "to": "2022"}, UpgradeStatus(phase))


class SlowApi(ApiClient):
    """A stand-in in which an upgrade is recreated under its name while it is being read."""

    def __init__(self, answer: WindowsUpgrade | None) -> None:
        self.answer = answer
        super().__init__(RestConfig("https://127.0.0.1:1", ssl.create_default_context()))
        self.is_asked = asyncio.Event()
        self.is_replaced = asyncio.Event()
        self.is_asked_again = asyncio.Event()

    async def list(self, kind: Any, path: str, params: Mapping[str, str]) -> ObjectList[Any]:
        del kind, path, params
        return ObjectList([upgrade("first", "Done", UPGRADE_FINALIZER)], "1")

    async def watch(
        self, kind: Any, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[WatchEvent[Any]]:
        del kind, path, params
        await self.is_asked.wait()
        yield WatchEvent("DELETED", upgrade("first", "Done"), "2")
        yield WatchEvent("ADDED", upgrade("second", ""), "3")
        self.is_replaced.set()
        await asyncio.Future()

    async def get(self, kind: Any, path: str) -> Any:
        del kind, path
        if self.is_asked.is_set():
            self.is_asked_again.set()
            await asyncio.Future()
        self.is_asked.set()
        await self.is_replaced.wait()
        return self.answer


async def no_image(text: str, secrets: object) -> ImageLookupResult:
    del text, secrets
    return ImageLookupResult(None, "nobody is asked")


@pytest.mark.parametrize("answer", [upgrade("first", "Done"), None])
async def test_upgrade_recreated_while_being_read_is_reconciled(
    answer: WindowsUpgrade | None,
) -> None:
    api = SlowApi(answer)
    upgrades = UpgradeController(
        api, SnapshotReader(api, OperatorSettings, no_image), lambda _: None
    )
    working = asyncio.create_task(upgrades.run())
    try:
        async with asyncio.timeout(30):
            await api.is_asked_again.wait()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

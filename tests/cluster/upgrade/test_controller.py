"""Upgrades in their turn, whenever the API server tells of them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from winpod.cluster.admission.looking_up import Found
from winpod.cluster.custom_resources import Metadata
from winpod.cluster.settings import Settings
from winpod.cluster.upgrade.controller import Upgrades
from winpod.cluster.upgrade.resource import FINALIZER, Status, WindowsUpgrade
from winpod.cluster.upgrade.survey import Survey
from winpod.node.access import Access
from winpod.node.api import ApiServer, Change, Listed


def upgrade(uid: str, phase: str, *finalizers: str) -> WindowsUpgrade:
    metadata = Metadata(name="one", uid=uid, generation=1, finalizers=list(finalizers))
    return WindowsUpgrade(metadata, {"from": "2019", "to": "2022"}, Status(phase))


class SlowApi(ApiServer):
    """A stand-in whose answer is about one that is replaced by another of its name meanwhile."""

    def __init__(self, answer: WindowsUpgrade | None) -> None:
        self.answer = answer
        super().__init__(Access("https://127.0.0.1:1", ssl.create_default_context()))
        self.is_asked = asyncio.Event()
        self.is_replaced = asyncio.Event()
        self.is_asked_again = asyncio.Event()

    async def list(self, kind: Any, path: str, params: Mapping[str, str]) -> Listed[Any]:
        del kind, path, params
        return Listed([upgrade("first", "Done", FINALIZER)], "1")

    async def watch(
        self, kind: Any, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[Change[Any]]:
        del kind, path, params
        await self.is_asked.wait()
        yield Change("DELETED", upgrade("first", "Done"), "2")
        yield Change("ADDED", upgrade("second", ""), "3")
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


async def no_image(text: str, secrets: object) -> Found:
    del text, secrets
    return Found(None, "nobody is asked")


@pytest.mark.parametrize("answer", [upgrade("first", "Done"), None])
async def test_one_that_takes_the_place_of_another_while_that_is_read_is_not_forgotten(
    answer: WindowsUpgrade | None,
) -> None:
    api = SlowApi(answer)
    upgrades = Upgrades(api, Survey(api, Settings, no_image), lambda _: None)
    working = asyncio.create_task(upgrades.run())
    try:
        async with asyncio.timeout(30):
            await api.is_asked_again.wait()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

"""The settings as they come and go: which count, and what an operator does without any."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightkube.models import core_v1 as v1

from tests.cluster.api_stand_in import StandInApi, reached
from tests.images.registries import serve
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.operator import Operator, Place
from winpod.cluster.settings import CONFIG_KEY, Settings
from winpod.cluster.view import CLASSES, NODES, PODS
from winpod.node.access import Access

NAMESPACE = "winpod-system"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
GOOD, BAD = "labels: {enabled: false}", "lables: {}"


def config_map(text: str) -> v1.ConfigMap:
    return v1.ConfigMap(data={CONFIG_KEY: text})


@asynccontextmanager
async def nobody_told() -> AsyncIterator[LiveSettings]:
    """Settings that only the test tells of."""
    async with reached(StandInApi({})) as api:
        yield LiveSettings(api, NAMESPACE)


async def test_defaults_are_for_a_cluster_without_the_config_map() -> None:
    async with nobody_told() as settings:
        assert not settings.is_known
        await settings.listed([])
        assert settings.is_known
        assert (settings.now, settings.problem) == (Settings(), "")


async def test_with_a_mistake_from_the_start_nothing_is_known_until_it_is_mended() -> None:
    async with nobody_told() as settings:
        changed = settings.subscribe()
        await settings.listed([config_map(BAD)])
        assert (settings.is_known, settings.is_unusable, changed.is_set()) == (False, True, True)
        assert "lables is not a setting" in settings.problem
        changed.clear()
        settings.changed(config_map(""))
        assert (settings.is_known, settings.is_unusable, changed.is_set()) == (True, False, True)
        assert (settings.now, settings.problem) == (Settings(), "")


async def test_with_a_later_mistake_the_last_good_ones_stay() -> None:
    async with nobody_told() as settings:
        await settings.listed([config_map(GOOD)])
        settings.changed(config_map(BAD))
        assert settings.is_known
        assert not settings.now.labels
        assert settings.problem.endswith("The settings before it stay.")
        changed = settings.subscribe()
        settings.changed(config_map(GOOD))
        assert (settings.problem, changed.is_set()) == ("", True)


@pytest.mark.parametrize("is_listed", [False, True])
async def test_a_config_map_that_is_deleted_changes_nothing_and_is_missed(is_listed: bool) -> None:
    async with nobody_told() as settings:
        await settings.listed([config_map(GOOD)])
        if is_listed:
            await settings.listed([])
        else:
            settings.deleted(config_map(GOOD))
        assert not settings.now.labels
        assert "was deleted" in settings.problem
        settings.changed(config_map(""))
        assert (settings.now, settings.problem) == (Settings(), "")


async def test_one_with_a_mistake_that_is_deleted_does_not_give_way_to_the_defaults() -> None:
    async with nobody_told() as settings:
        await settings.listed([config_map(BAD)])
        settings.deleted(config_map(BAD))
        assert settings.is_unusable


class Watched(StandInApi):
    """It has heard what was created where, and who has asked for the lease."""

    def __init__(self, text: str) -> None:
        named = {"metadata": {"name": "winpod-operator"}, "data": {CONFIG_KEY: text}}
        super().__init__({NODES: [], CLASSES: [], PODS: [], CONFIG_MAPS: [named]})
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_lease_wanted = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith(LEASES):
            self.is_lease_wanted.set()
        if request.path == EVENTS and request.method == "POST":
            self.events.put_nowait(told := await request.json())
            return web.json_response(told)
        return await super().__call__(request)

    async def configure(self, text: str) -> None:
        """Once somebody listens."""
        deadline = time.monotonic() + 30
        while CONFIG_MAPS not in dict(self._watches):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        self.tell(CONFIG_MAPS, "MODIFIED", config_map(text).to_dict())


async def until_answered(url: str, wanted: tuple[int, str]) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if (answer.status, await answer.text()) == wanted:
                        return
            except aiohttp.ClientError:
                pass  # nobody listens yet
            await asyncio.sleep(0.02)


async def test_without_settings_an_operator_is_not_ready_does_not_lead_and_says_why(
    unused_tcp_port: int,
) -> None:
    api = Watched(BAD)
    async with serve(api) as address, asyncio.timeout(60):
        access = Access(f"http://{address}", ssl.create_default_context())
        place = Place(
            NAMESPACE, "one", "127.0.0.1", unused_tcp_port, has_webhook=False, page_port=0
        )
        running = asyncio.create_task(Operator(access, place).run())
        try:
            told = await api.events.get()
            assert (told["reason"], told["involvedObject"]["name"]) == (
                "SettingsNotUsed",
                "winpod-operator",
            )
            assert "lables is not a setting" in told["message"]
            ready = f"http://127.0.0.1:{unused_tcp_port}/readyz"
            await until_answered(ready, (503, "the settings cannot be used, see the log\n"))
            await api.configure(BAD.replace("lables", "labbels"))
            assert "labbels is not a setting" in (await api.events.get())["message"]
            assert not api.is_lease_wanted.is_set()
            await api.configure(GOOD)
            await api.is_lease_wanted.wait()
            await until_answered(ready, (200, "waits to lead\n"))
        finally:
            running.cancel()
            await asyncio.wait((running,))

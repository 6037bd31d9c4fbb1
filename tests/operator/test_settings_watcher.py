"""Tests of watching settings: valid, invalid and deleted ones."""

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

from tests.support.fake_api_server import StandInApi, reached
from tests.support.registries import serve
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.models import core_v1 as v1
from winpod.operator.cluster_cache import CLASSES, NODES, PODS
from winpod.operator.manager import OperatorManager, OperatorOptions
from winpod.operator.settings import CONFIG_KEY, OperatorSettings
from winpod.operator.settings_watcher import SettingsWatcher

NAMESPACE = "winpod-system"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
GOOD, BAD = "labels: {enabled: false}", "lables: {}"


def config_map(text: str) -> v1.ConfigMap:
    return v1.ConfigMap(data={CONFIG_KEY: text})


@asynccontextmanager
async def nobody_told() -> AsyncIterator[SettingsWatcher]:
    """Settings that the test feeds directly."""
    async with reached(StandInApi({})) as api:
        yield SettingsWatcher(api, NAMESPACE)


async def test_defaults_are_for_a_cluster_without_the_config_map() -> None:
    async with nobody_told() as settings:
        assert not settings.is_synced
        await settings.on_list([])
        assert settings.is_synced
        assert (settings.now, settings.problem) == (OperatorSettings(), "")


async def test_invalid_initial_settings_are_not_synced_until_fixed() -> None:
    async with nobody_told() as settings:
        changed = settings.subscribe()
        await settings.on_list([config_map(BAD)])
        assert (settings.is_synced, settings.is_unusable, changed.is_set()) == (False, True, True)
        assert "lables is not a setting" in settings.problem
        changed.clear()
        settings.on_change(config_map(""))
        assert (settings.is_synced, settings.is_unusable, changed.is_set()) == (True, False, True)
        assert (settings.now, settings.problem) == (OperatorSettings(), "")


async def test_invalid_update_keeps_the_last_valid_settings() -> None:
    async with nobody_told() as settings:
        await settings.on_list([config_map(GOOD)])
        settings.on_change(config_map(BAD))
        assert settings.is_synced
        assert not settings.now.labels
        assert settings.problem.endswith("The previous settings stay in effect.")
        changed = settings.subscribe()
        settings.on_change(config_map(GOOD))
        assert (settings.problem, changed.is_set()) == ("", True)


@pytest.mark.parametrize("is_listed", [False, True])
async def test_deleted_config_map_keeps_settings_and_is_reported(is_listed: bool) -> None:
    async with nobody_told() as settings:
        await settings.on_list([config_map(GOOD)])
        if is_listed:
            await settings.on_list([])
        else:
            settings.on_delete(config_map(GOOD))
        assert not settings.now.labels
        assert "was deleted" in settings.problem
        settings.on_change(config_map(""))
        assert (settings.now, settings.problem) == (OperatorSettings(), "")


async def test_deleting_an_invalid_config_map_does_not_apply_defaults() -> None:
    async with nobody_told() as settings:
        await settings.on_list([config_map(BAD)])
        settings.on_delete(config_map(BAD))
        assert settings.is_unusable


class SettingsApi(StandInApi):
    """A stand-in API server that records events and lease requests."""

    def __init__(self, text: str) -> None:
        named = {"metadata": {"name": "winpod-operator"}, "data": {CONFIG_KEY: text}}
        super().__init__({NODES: [], CLASSES: [], PODS: [], CONFIG_MAPS: [named]})
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_lease_wanted = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith(LEASES):
            self.is_lease_wanted.set()
        if request.path == EVENTS and request.method == "POST":
            self.events.put_nowait(event := await request.json())
            return web.json_response(event)
        return await super().__call__(request)

    async def configure(self, text: str) -> None:
        """Send the change once there is a watch."""
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


async def test_operator_with_invalid_settings_is_unready_and_does_not_lead(
    unused_tcp_port: int,
) -> None:
    api = SettingsApi(BAD)
    async with serve(api) as address, asyncio.timeout(60):
        access = RestConfig(f"http://{address}", ssl.create_default_context())
        place = OperatorOptions(
            NAMESPACE, "one", "127.0.0.1", unused_tcp_port, has_webhook=False, page_port=0
        )
        running = asyncio.create_task(OperatorManager(access, place).run())
        try:
            event = await api.events.get()
            assert (event["reason"], event["involvedObject"]["name"]) == (
                "SettingsNotUsed",
                "winpod-operator",
            )
            assert "lables is not a setting" in event["message"]
            ready = f"http://127.0.0.1:{unused_tcp_port}/readyz"
            await until_answered(ready, (503, "the settings are invalid, see the log\n"))
            await api.configure(BAD.replace("lables", "labbels"))
            assert "labbels is not a setting" in (await api.events.get())["message"]
            assert not api.is_lease_wanted.is_set()
            await api.configure(GOOD)
            await api.is_lease_wanted.wait()
            await until_answered(ready, (200, "standby\n"))
        finally:
            running.cancel()
            await asyncio.wait((running,))

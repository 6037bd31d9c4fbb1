"""Tests of recording many events of one object."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.support.fake_api_server import reached
from winpod.k8s.event_recorder import BURST, Event, ObjectReference
from winpod.operator.events import OperatorEventRecorder
from winpod.operator.upgrade.resource import KIND

UPGRADE = ObjectReference(KIND, "", "2019-to-2022", "uid-1")
STEPS = 2 * BURST


class Events:
    """A stand-in API server that stores events; `last` is the reason the test waits for."""

    def __init__(self, last: str) -> None:
        self.told: list[tuple[str, str]] = []
        self.is_last_told = asyncio.Event()
        self._kept: dict[str, dict[str, Any]] = {}
        self._last = last

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        change: dict[str, Any] = await request.json()
        name = request.path.rpartition("/")[2] if request.method == "PATCH" else ""
        event = self._kept.get(name, {}) | change
        self._kept[event["metadata"]["name"]] = event
        self.told.append((event["reason"], event["message"]))
        if event["reason"] == self._last:
            self.is_last_told.set()
        return web.json_response(event)


@pytest.mark.parametrize(
    "end", ["UpgradeDone", "UpgradeBlocked", "UpgradeWaits", "StepFailed", "UpgradeUndone"]
)
async def test_completion_event_is_not_rate_limited_by_step_events(end: str) -> None:
    events = Events(end)
    async with reached(events) as api:
        telling = OperatorEventRecorder(api, "one")
        running = asyncio.create_task(telling.run())
        try:
            for number in range(STEPS):
                telling.record(Event(UPGRADE, "Normal", "StepDone", f"node-{number} is drained"))
            telling.record(Event(UPGRADE, "Normal", end, "that was all"))
            async with asyncio.timeout(30):
                await events.is_last_told.wait()
        finally:
            running.cancel()
            await asyncio.wait((running,))
    assert events.told[-1] == (end, "that was all")
    assert len(events.told) == BURST + 1, "steps alone are limited still"

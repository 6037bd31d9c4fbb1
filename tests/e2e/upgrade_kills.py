"""Upgrades in the process of a test, which die at a write of their own, as if killed there."""

import asyncio
from typing import Any

from winpod.cluster.admission.looking_up import Found
from winpod.cluster.settings import Settings
from winpod.cluster.upgrade.controller import Upgrades
from winpod.cluster.upgrade.progress import is_over, is_settled
from winpod.cluster.upgrade.resource import UPGRADES, WindowsUpgrade
from winpod.cluster.upgrade.survey import Survey
from winpod.node.access import Access
from winpod.node.api import ApiServer


class DyingServer(ApiServer):
    """Whoever uses it dies after so many of its writes, which are made; those after are not."""

    def __init__(self, access: Access, writes: int) -> None:
        super().__init__(access)
        self.writes_left = writes

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        self.writes_left -= method != "GET"
        if method != "GET" and self.writes_left < 0:
            raise Killed
        answer = await super().request(method, path, body, **more)
        if method != "GET" and self.writes_left == 0:
            raise Killed
        return answer


class Killed(Exception):
    pass


GONE = "gone"


async def upgrade_until(api: ApiServer, name: str, phase: str) -> bool:
    """Whether it got there, and was let go where it is over; False where it died before."""

    async def has_come() -> None:
        while True:
            upgrade = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
            if upgrade is None and phase == GONE:
                return
            is_there = upgrade is not None and upgrade.status.phase == phase
            if upgrade and is_there and (is_over(upgrade) or not is_settled(upgrade)):
                return
            await asyncio.sleep(0.05)

    async def no_image(text: str, secrets: object) -> Found:
        del text, secrets
        return Found(None, "nobody is asked")

    upgrades = Upgrades(api, Survey(api, Settings, no_image), lambda _: None)
    working = asyncio.create_task(upgrades.run())
    coming = asyncio.create_task(has_come())
    try:
        async with asyncio.timeout(30):
            await asyncio.wait((working, coming), return_when=asyncio.FIRST_COMPLETED)
        return coming.done()
    finally:
        working.cancel()
        coming.cancel()
        await asyncio.gather(working, coming, return_exceptions=True)
        await api.close()

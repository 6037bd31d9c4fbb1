"""Upgrades as a process of a test, given a kubeconfig and a layout; it may be killed in between."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from winpod.cluster.settings import Settings
from winpod.cluster.telling import Telling
from winpod.cluster.upgrade import Upgrades
from winpod.cluster.upgrade_resource import UPGRADES, WindowsUpgrade
from winpod.cluster.upgrade_survey import Survey, certain_images
from winpod.images.source import ImageSources
from winpod.node.access import Access, read_kubeconfig
from winpod.node.api import ApiServer


async def upgrade_for_good(kubeconfig: Path, layout: Path) -> None:
    api = ApiServer(read_kubeconfig(kubeconfig))
    telling = Telling(api, "test")
    async with ImageSources(layouts=[layout], offline=True, sizes=False) as sources:
        survey = Survey(api, Settings, certain_images(sources))
        await asyncio.gather(telling.run(), Upgrades(api, survey, telling.tell).run())


class DyingServer(ApiServer):
    """Whoever uses it dies after so many of its writes, which are made."""

    def __init__(self, access: Access, writes: int) -> None:
        super().__init__(access)
        self.writes_left = writes

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> bytes:
        answer = await super().request(method, path, body, params=params, content=content)
        if method != "GET":
            self.writes_left -= 1
            if self.writes_left == 0:
                raise Killed
        return answer


class Killed(Exception):
    pass


async def upgrade_until(api: ApiServer, name: str, *phases: str) -> bool:
    """Whether it got there; False where it died before."""

    async def has_come() -> None:
        while True:
            upgrade = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
            if upgrade and upgrade.status.phase in phases:
                return
            await asyncio.sleep(0.05)

    async def no_image(text: str, secrets: object) -> None:
        del text, secrets

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


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(upgrade_for_good(Path(sys.argv[1]), Path(sys.argv[2])))

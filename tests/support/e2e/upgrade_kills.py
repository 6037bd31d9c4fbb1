"""Upgrades in the process of a test, which die at a write of their own."""

import asyncio
import math

from tests.support.e2e.server_crash_points import DyingServer
from winpod.images.lookup import ImageLookupResult
from winpod.k8s.kubeconfig import RestConfig
from winpod.operator.settings import OperatorSettings
from winpod.operator.upgrade.controller import UpgradeController
from winpod.operator.upgrade.progress import is_finished, is_settled
from winpod.operator.upgrade.resource import UPGRADES, WindowsUpgrade
from winpod.operator.upgrade.snapshot import SnapshotReader

GONE = "gone"
_PATIENCE = 300


async def upgrade_until(
    access: RestConfig, name: str, phase: str, writes: float = math.inf
) -> bool:
    """Whether it got there, and was let go where it is over; False where it died before."""
    api = DyingServer(access, writes)

    async def has_come() -> None:
        while True:
            upgrade = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
            if upgrade is None and phase == GONE:
                return
            is_there = upgrade is not None and upgrade.status.phase == phase
            if upgrade and is_there and (is_finished(upgrade) or not is_settled(upgrade)):
                return
            await asyncio.sleep(0.05)

    async def no_image(text: str, secrets: object) -> ImageLookupResult:
        del text, secrets
        return ImageLookupResult(None, "nobody is asked")

    upgrades = UpgradeController(
        api, SnapshotReader(api, OperatorSettings, no_image), lambda _: None
    )
    coming = asyncio.create_task(has_come())
    ends = (asyncio.create_task(upgrades.run()), coming, asyncio.create_task(api.died.wait()))
    try:
        async with asyncio.timeout(_PATIENCE):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return coming.done()
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await api.close()

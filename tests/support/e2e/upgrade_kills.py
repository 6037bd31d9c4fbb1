"""Upgrade controllers in the process of a test, which crash at a given write."""

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
_TIMEOUT = 300


async def upgrade_until(
    access: RestConfig, name: str, phase: str, writes: float = math.inf
) -> bool:
    """Run until an upgrade reaches the phase; return False if the run crashed before."""
    api = DyingServer(access, writes)

    async def wait_for_phase() -> None:
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
        return ImageLookupResult(None, "no registry is queried")

    upgrades = UpgradeController(
        api, SnapshotReader(api, OperatorSettings, no_image), lambda _: None
    )
    reached = asyncio.create_task(wait_for_phase())
    tasks = (asyncio.create_task(upgrades.run()), reached, asyncio.create_task(api.died.wait()))
    try:
        async with asyncio.timeout(_TIMEOUT):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return reached.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await api.close()

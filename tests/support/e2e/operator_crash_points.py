"""Instance controller in the process of a test, which crashes at a given write."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.operator_process import NAMESPACE, own_kubeconfig
from tests.support.e2e.server_crash_points import DyingServer
from winpod.instances.operator.setup import setup_instances
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.operator.manager import ManagerContext, OperatorOptions
from winpod.operator.settings_watcher import SettingsWatcher

_TIMEOUT = 600.0


def live_until(plane: ControlPlane, payload: Path, holds: Callable[[], bool]) -> int:
    """Run with one write, then two, and so on, until the condition holds; return the crashes."""
    kubeconfig = own_kubeconfig(plane)
    deadline, deaths = time.monotonic() + _TIMEOUT, 0
    while not holds():
        assert time.monotonic() < deadline, f"not so after {deaths} deaths"
        deaths += asyncio.run(_live(kubeconfig, payload, holds, deaths + 1))
    return deaths


async def _live(kubeconfig: Path, payload: Path, holds: Callable[[], bool], writes: int) -> bool:
    """Return whether the run crashed at its write limit instead of finishing."""
    access = read_kubeconfig(kubeconfig)
    api = DyingServer(access, writes)
    settings = SettingsWatcher(api, NAMESPACE)
    place = OperatorOptions(NAMESPACE, "dying")
    shared = ManagerContext(access, api, place, settings, lambda _: None, CollectorRegistry())
    _, run = setup_instances(payload, shared)
    working = [asyncio.ensure_future(settings.run()), asyncio.ensure_future(run())]
    dying = asyncio.create_task(api.died.wait())
    try:
        while not dying.done() and not await asyncio.to_thread(holds):
            await asyncio.wait([dying], timeout=0.5)
        return dying.done()
    finally:
        for task in (*working, dying):
            task.cancel()
        await asyncio.gather(*working, dying, return_exceptions=True)
        await api.close()

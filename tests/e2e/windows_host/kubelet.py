"""Kubelet stand-in of a host, running while its service runs: kubelet.exe is not available here."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.e2e.windows_host.host import SERVER_2022, WindowsHost
from tests.support.e2e.fake_kubelet import run_kubelet

from winpod.instances.paths import KUBECONFIG

_PROGRAM = "kube-log-runner.exe"
_POLL_SECONDS = 0.5


@contextmanager
def playing_kubelet(host: WindowsHost, node: str) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_play(host, node, ended)))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def _play(host: WindowsHost, node: str, ended: threading.Event) -> None:
    task: asyncio.Task[None] | None = None
    while not ended.is_set():
        await asyncio.sleep(_POLL_SECONDS)
        runs = _runs(host)
        if runs and (task is None or task.done()):
            with suppress(OSError):  # the host has just gone down
                _update_kubeconfig_paths(host)
                work = run_kubelet(host.drive, node, host.address, SERVER_2022, "containerd")
                task = asyncio.create_task(work)
        elif task and not runs:
            await _end(task)
            task = None
    if task:
        await _end(task)


def _update_kubeconfig_paths(host: WindowsHost) -> None:
    """Update the paths in its kubeconfig, which change when the host is switched off and on."""
    kubeconfig = host.path(KUBECONFIG)
    if kubeconfig.exists():
        text = kubeconfig.read_text()
        kubeconfig.write_text(re.sub(r"/proc/\d+/root(?=/)", str(host.machine.root), text))


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


def _runs(host: WindowsHost) -> bool:
    try:
        return any(_PROGRAM in line for line in host.machine.command_lines().values())
    except OSError:  # the host is going down
        return False

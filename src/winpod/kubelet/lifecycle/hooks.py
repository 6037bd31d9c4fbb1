"""Lifecycle hooks: postStart and preStop handlers of a container."""

from __future__ import annotations

import asyncio

from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.prober.probe import Prober
from winpod.kubelet.prober.results import ProbeResult

_CONNECT_SECONDS = 30.0


class HookFailed(WinpodError):
    """A lifecycle hook could not be run, or failed."""


async def run_hook(
    hook: v1.LifecycleHandler,
    container: v1.Container,
    container_id: str,
    ip: str,
    prober: Prober,
) -> None:
    """Run a hook to completion; the caller sets the timeout. Any HTTP response is a success."""
    if hook.exec:
        answer = await prober.exec(container_id, hook.exec.command or [], 0)
        if answer.result is not ProbeResult.SUCCESS:
            raise HookFailed(f"the hook command failed: {answer.output}")
    elif hook.httpGet:
        answer = await prober.http(hook.httpGet, container, ip, _CONNECT_SECONDS)
        if answer.result is not ProbeResult.SUCCESS and not answer.status:
            raise HookFailed(answer.output)
    elif hook.tcpSocket:
        answer = await prober.tcp(hook.tcpSocket, container, ip, _CONNECT_SECONDS)
        if answer.result is not ProbeResult.SUCCESS:
            raise HookFailed(answer.output)
    elif hook.sleep:
        await asyncio.sleep(hook.sleep.seconds)

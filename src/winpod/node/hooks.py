"""What a container has done when it has started, and before it is ended."""

from __future__ import annotations

import asyncio

from lightkube.models import core_v1 as v1

from winpod.node.checks import Checks
from winpod.node.health import Result
from winpod.windows.errors import WinpodError

_CONNECT_SECONDS = 30.0


class HookFailed(WinpodError):
    """A hook could not be run, or said no."""


async def run_hook(
    hook: v1.LifecycleHandler,
    container: v1.Container,
    container_id: str,
    ip: str,
    checks: Checks,
) -> None:
    """To its end, which whoever waits may cut short. An HTTP answer is good whatever it says."""
    if hook.exec:
        answer = await checks.command(container_id, hook.exec.command or [], 0)
        if answer.result is not Result.SUCCESS:
            raise HookFailed(f"the command of the hook failed: {answer.output}")
    elif hook.httpGet:
        answer = await checks.http(hook.httpGet, container, ip, _CONNECT_SECONDS)
        if answer.result is not Result.SUCCESS and not answer.status:
            raise HookFailed(answer.output)
    elif hook.tcpSocket:
        answer = await checks.tcp(hook.tcpSocket, container, ip, _CONNECT_SECONDS)
        if answer.result is not Result.SUCCESS:
            raise HookFailed(answer.output)
    elif hook.sleep:
        await asyncio.sleep(hook.sleep.seconds)

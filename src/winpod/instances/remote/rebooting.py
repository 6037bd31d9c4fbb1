"""Restarting an instance: it must be seen gone, or booted anew, before anything else is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from winpod.instances.errors import LoginRefused, Unreachable
from winpod.instances.remote import powershell
from winpod.instances.remote.scripts import OddAnswer, call, last_line
from winpod.instances.remote.ssh import Host
from winpod.windows.errors import WinpodError

CONNECT_SECONDS = 10.0

Tell = Callable[[str], None]
"""Takes sentences about what goes on, for people."""


class NotBack(Unreachable):
    """An instance did not restart, or did not come back."""


async def reboot(host: Host, tell: Tell) -> str:
    before, patience = await when_booted(host), host.patience
    said = await _shut_down(host)
    tell("it restarts")
    await host.close()
    began, told = time.monotonic(), 0.0
    while True:
        await asyncio.sleep(patience.poll_restart)
        booted = await _booted_now(host)
        waited = time.monotonic() - began
        if booted and booted != before:
            tell(f"it is back after {waited:.0f} seconds")
            return "it has booted anew"
        if booted and waited > patience.going:
            raise NotBack(
                f"{host.name}: the host did not restart within {waited:.0f} seconds: {said}.",
                "See what keeps it, restart it by hand, and run the same again.",
            )
        if waited > patience.coming:
            raise NotBack(
                f"{host.name}: the host did not come back within {waited / 60:.0f} minutes of its "
                "restart.",
                "See its console; once it is back, run the same again.",
            )
        if waited - told > patience.told:
            told = waited
            tell(f"it has been away for {waited:.0f} seconds")


async def _shut_down(host: Host) -> str:
    """A host that is gone before its answer is what was asked for."""
    try:
        return (await host.run([call("shutdown.exe", "/r", "/f", "/t", "3")])).last_line
    except Unreachable as error:
        return error.sentence


async def when_booted(host: Host) -> str:
    answer = await host.run([powershell.powershell(powershell.BOOTED)])
    found = answer.output.strip()
    if not found.isdecimal():
        raise OddAnswer(
            f"{host.name}: PowerShell did not say when the host booted: {last_line(found)}.",
            "See that PowerShell starts there: powershell.exe -NoProfile -Command Get-Date",
        )
    return found


async def _booted_now(host: Host) -> str:
    """Nothing while it is away. A host that is coming up refuses logins for a while."""
    try:
        await host.connect(CONNECT_SECONDS)
        return await when_booted(host)
    except (Unreachable, LoginRefused):
        return ""
    except WinpodError:
        await host.close()
        return ""

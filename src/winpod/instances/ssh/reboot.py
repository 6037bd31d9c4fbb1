"""Reboot of an instance: waits until the boot time has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from winpod.errors import WinpodError
from winpod.instances.errors import InstanceUnreachable, LoginRefused
from winpod.instances.ssh import scripts
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.scripts import UnexpectedOutput, call_program, last_line

CONNECT_SECONDS = 10.0

ProgressCallback = Callable[[str], None]
"""Receives progress messages for people."""


class RebootTimeout(InstanceUnreachable):
    """An instance did not restart, or did not come back."""

    reason = InstanceUnreachable.reason


async def reboot(host: SshHost, progress: ProgressCallback) -> str:
    before, timeouts = await boot_time(host), host.timeouts
    output = await _shut_down(host)
    progress("rebooting")
    await host.close()
    started, reported = time.monotonic(), 0.0
    while True:
        await asyncio.sleep(timeouts.poll_restart)
        boot = await _boot_time_if_up(host)
        waited = time.monotonic() - started
        if boot and boot != before:
            progress(f"back after {waited:.0f} seconds")
            return "rebooted"
        if boot and waited > timeouts.shutdown:
            raise RebootTimeout(
                f"{host.name}: the host did not restart within {waited:.0f} seconds: {output}.",
                "Check what blocks it, restart it manually, and run the command again.",
            )
        if waited > timeouts.boot:
            raise RebootTimeout(
                f"{host.name}: the host did not come back within {waited / 60:.0f} minutes of its "
                "restart.",
                "Check its console; once it is back, run the command again.",
            )
        if waited - reported > timeouts.progress:
            reported = waited
            progress(f"still down after {waited:.0f} seconds")


async def _shut_down(host: SshHost) -> str:
    """Request the reboot; a lost connection is expected."""
    try:
        return (await host.run([call_program("shutdown.exe", "/r", "/f", "/t", "3")])).last_line
    except InstanceUnreachable as error:
        return error.message


async def boot_time(host: SshHost) -> str:
    answer = await host.run([scripts.powershell(scripts.BOOTED)])
    text = answer.output.strip()
    if not text.isdecimal():
        raise UnexpectedOutput(
            f"{host.name}: PowerShell did not report the boot time: {last_line(text)}.",
            "Check that PowerShell starts there: powershell.exe -NoProfile -Command Get-Date",
        )
    return text


async def _boot_time_if_up(host: SshHost) -> str:
    """Return the boot time, empty while the host is down; a booting host refuses logins for a
    while.
    """
    try:
        await host.connect(CONNECT_SECONDS)
        return await boot_time(host)
    except (InstanceUnreachable, LoginRefused):
        return ""
    except WinpodError:
        await host.close()
        return ""

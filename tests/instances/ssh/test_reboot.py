"""Reboot of an instance and its timeouts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh
import pytest

from tests.support.scripted_windows import ScriptedWindows
from tests.support.ssh_server import SHORT, ssh_server
from winpod.instances.ssh.reboot import RebootTimeout, reboot


@dataclass
class Restarting(ScriptedWindows):
    went: asyncio.Event = field(default_factory=asyncio.Event)

    def reboot(self) -> None:
        super().reboot()
        self.went.set()


async def test_reboot_waits_for_the_host(tmp_path: Path) -> None:
    machine, away = Restarting(tmp_path), asyncio.Event()

    def progress(line: str) -> None:
        if "still down" in line:
            away.set()

    host_key = asyncssh.generate_private_key("ssh-ed25519")
    async with ssh_server(tmp_path, machine.reply, host_key=host_key) as server:
        key, port, host = server.key, server.port, server.host()
        waiting = asyncio.create_task(reboot(host, progress))
        await machine.went.wait()
    await asyncio.wait_for(away.wait(), 20)
    assert not waiting.done()
    async with ssh_server(tmp_path, machine.reply, port=port, host_key=host_key) as server:
        server.key = key
        assert await asyncio.wait_for(waiting, 20) == "rebooted"
        await host.close()


async def test_host_that_does_not_restart_is_an_error(tmp_path: Path) -> None:
    timeouts = replace(SHORT, shutdown=0.1)
    machine = ScriptedWindows(tmp_path, stubborn={"shutdown"})
    async with (
        ssh_server(tmp_path, machine.reply) as server,
        server.host(timeouts=timeouts) as host,
    ):
        with pytest.raises(RebootTimeout, match="win-1: the host did not restart"):
            await reboot(host, print)


async def test_host_that_stays_down_is_an_error(tmp_path: Path) -> None:
    timeouts = replace(SHORT, boot=0.2)
    machine = Restarting(tmp_path)
    async with ssh_server(tmp_path, machine.reply) as server:
        waiting = asyncio.create_task(reboot(server.host(timeouts=timeouts), print))
        await machine.went.wait()
    with pytest.raises(RebootTimeout, match="win-1: the host did not come back"):
        await waiting

"""Waiting for a host to go and to come back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh
import pytest

from tests.instances.scripted_windows import ScriptedWindows
from tests.instances.ssh_server import SHORT, ssh_server
from winpod.instances.remote.rebooting import NotBack, reboot


@dataclass
class Restarting(ScriptedWindows):
    went: asyncio.Event = field(default_factory=asyncio.Event)

    def reboot(self) -> None:
        super().reboot()
        self.went.set()


async def test_a_host_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    machine, away = Restarting(tmp_path), asyncio.Event()

    def tell(line: str) -> None:
        if "has been away" in line:
            away.set()

    host_key = asyncssh.generate_private_key("ssh-ed25519")
    async with ssh_server(tmp_path, machine.reply, host_key=host_key) as server:
        key, port, host = server.key, server.port, server.host()
        waiting = asyncio.create_task(reboot(host, tell))
        await machine.went.wait()
    await asyncio.wait_for(away.wait(), 20)
    assert not waiting.done()
    async with ssh_server(tmp_path, machine.reply, port=port, host_key=host_key) as server:
        server.key = key
        assert await asyncio.wait_for(waiting, 20) == "it has booted anew"
        await host.close()


async def test_a_host_that_does_not_restart_is_a_sentence(tmp_path: Path) -> None:
    patience = replace(SHORT, going=0.1)
    machine = ScriptedWindows(tmp_path, stubborn={"shutdown"})
    async with (
        ssh_server(tmp_path, machine.reply) as server,
        server.host(patience=patience) as host,
    ):
        with pytest.raises(NotBack, match="win-1: the host did not restart"):
            await reboot(host, print)


async def test_a_host_that_stays_away_is_a_sentence(tmp_path: Path) -> None:
    patience = replace(SHORT, coming=0.2)
    machine = Restarting(tmp_path)
    async with ssh_server(tmp_path, machine.reply) as server:
        waiting = asyncio.create_task(reboot(server.host(patience=patience), print))
        await machine.went.wait()
    with pytest.raises(NotBack, match="win-1: the host did not come back"):
        await waiting

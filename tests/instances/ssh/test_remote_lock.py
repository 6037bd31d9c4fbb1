"""The lock on an instance, however its previous holder ended."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from tests.support.ssh_server import SshServer, ssh_server
from winpod.instances.errors import InstanceBusy
from winpod.instances.ssh import remote_lock as module
from winpod.instances.ssh.remote_lock import LOCK, remote_lock

OTHER = {
    "id": "1",
    "who": "anna@laptop",
    "since": "2026-11-16T10:00:00Z",
    "machine": "another",
    "process": "1 1",
}


def foreign_lock(server: SshServer, age: float = 0.0, **change: str) -> Path:
    """Create a lock that was left, or is held, by another process."""
    lock = server.local(LOCK)
    lock.write_text(json.dumps(OTHER | change))
    os.utime(lock, (time.time() - age,) * 2)
    return lock


async def test_second_process_is_rejected_and_the_lock_is_removed(
    tmp_path: Path,
) -> None:
    async with ssh_server(tmp_path) as server, server.host() as first, server.host() as second:
        async with remote_lock(first):
            with pytest.raises(InstanceBusy, match=r"win-1: locked by \S+ since 20\d\d-.*Z"):
                async with remote_lock(second):
                    pytest.fail("two at a time")
            assert server.local(LOCK).exists()
        assert not server.local(LOCK).exists()
        async with remote_lock(second):
            pass
    assert list(server.local(r"C:\Windows\Temp").iterdir()) == []


async def test_renewed_lock_is_respected_and_stale_lock_is_taken_over(
    tmp_path: Path,
) -> None:
    async with ssh_server(tmp_path) as server, server.host() as host:
        foreign_lock(server, age=60)
        with pytest.raises(InstanceBusy, match="locked by anna@laptop since 2026-11-16T10:00:00Z"):
            async with remote_lock(host):
                pytest.fail("two at a time")
        foreign_lock(server, age=180)
        async with remote_lock(host):
            assert "anna" not in server.local(LOCK).read_text()
        server.local(LOCK).write_bytes(b"")
        with pytest.raises(InstanceBusy, match="locked by an unknown process"):
            async with remote_lock(host):
                pytest.fail("it is just being written")
    assert [one.name for one in server.local(r"C:\Windows\Temp").iterdir()] == ["winpod.lock"]


async def test_lock_of_an_exited_local_process_is_stale(
    tmp_path: Path,
) -> None:
    mine = module._own_holder()
    async with ssh_server(tmp_path) as server, server.host() as host:
        for process in ("4194305 1", mine.process):
            foreign_lock(server, machine=mine.machine, process=process)
            async with remote_lock(host):
                pass
        one = f"1 {module._process('1').partition(' ')[2]}"
        foreign_lock(server, machine=mine.machine, process=one)
        with pytest.raises(InstanceBusy):
            async with remote_lock(host):
                pytest.fail("that process runs")


async def test_holder_stops_when_the_lock_was_taken_over(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with remote_lock(host):
            foreign_lock(server)
            await asyncio.sleep(20)

    async with ssh_server(tmp_path) as server, server.host() as host:
        with pytest.raises(InstanceBusy, match="anna@laptop"):
            await work()
        assert "anna" in server.local(LOCK).read_text()


async def test_lock_is_renewed_while_held(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server, server.host() as host, remote_lock(host):
        lock = server.local(LOCK)
        os.utime(lock, (1, 1))
        for _ in range(400):
            if lock.stat().st_mtime > 1:
                break
            await asyncio.sleep(0.02)
        assert lock.stat().st_mtime > 1

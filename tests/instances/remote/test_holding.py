"""One at a time on an instance, however the one before has ended."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from tests.instances.ssh_server import SshServer, ssh_server
from winpod.instances.errors import Busy
from winpod.instances.remote import holding as module
from winpod.instances.remote.holding import LOCK, holding

OTHER = {
    "id": "1",
    "who": "anna@laptop",
    "since": "2026-11-16T10:00:00Z",
    "machine": "another",
    "process": "1 1",
}


def left(server: SshServer, age: float = 0.0, **change: str) -> Path:
    """A lock that somebody left, or holds."""
    lock = server.local(LOCK)
    lock.write_text(json.dumps(OTHER | change))
    os.utime(lock, (time.time() - age,) * 2)
    return lock


async def test_who_comes_second_is_told_who_was_first_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    async with ssh_server(tmp_path) as server, server.host() as first, server.host() as second:
        async with holding(first):
            with pytest.raises(Busy, match=r"win-1: \S+ works on it, since 20\d\d-.*Z"):
                async with holding(second):
                    pytest.fail("two at a time")
            assert server.local(LOCK).exists()
        assert not server.local(LOCK).exists()
        async with holding(second):
            pass
    assert list(server.local(r"C:\Windows\Temp").iterdir()) == []


async def test_a_lock_that_somebody_renews_counts_and_one_that_grew_old_does_not(
    tmp_path: Path,
) -> None:
    async with ssh_server(tmp_path) as server, server.host() as host:
        left(server, age=60)
        with pytest.raises(Busy, match="anna@laptop works on it, since 2026-11-16T10:00:00Z"):
            async with holding(host):
                pytest.fail("two at a time")
        left(server, age=180)
        async with holding(host):
            assert "anna" not in server.local(LOCK).read_text()
        server.local(LOCK).write_bytes(b"")
        with pytest.raises(Busy, match="somebody works on it"):
            async with holding(host):
                pytest.fail("it is just being written")
    assert [one.name for one in server.local(r"C:\Windows\Temp").iterdir()] == ["winpod.lock"]


async def test_what_a_process_of_this_machine_left_that_has_ended_counts_no_longer(
    tmp_path: Path,
) -> None:
    mine = module._myself()
    async with ssh_server(tmp_path) as server, server.host() as host:
        for process in ("4194305 1", mine.process):
            left(server, machine=mine.machine, process=process)
            async with holding(host):
                pass
        one = f"1 {module._process('1').partition(' ')[2]}"
        left(server, machine=mine.machine, process=one)
        with pytest.raises(Busy):
            async with holding(host):
                pytest.fail("that process runs")


async def test_whoever_finds_that_another_took_over_stops_and_leaves_it_to_them(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with holding(host):
            left(server)
            await asyncio.sleep(20)

    async with ssh_server(tmp_path) as server, server.host() as host:
        with pytest.raises(Busy, match="anna@laptop"):
            await work()
        assert "anna" in server.local(LOCK).read_text()


async def test_it_is_renewed_while_the_work_goes_on(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server, server.host() as host, holding(host):
        lock = server.local(LOCK)
        os.utime(lock, (1, 1))
        for _ in range(400):
            if lock.stat().st_mtime > 1:
                break
            await asyncio.sleep(0.02)
        assert lock.stat().st_mtime > 1

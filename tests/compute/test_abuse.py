"""winit, wproxy and the relay among those who break every rule: bounded, and others are served."""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.shells import StandinShell, standin_shell
from tests.compute.supervision import Conmon, call, until
from winpod.compute.agent import Agent, Program
from winpod.compute.errors import PipeRefused
from winpod.compute.pipes import Pipe, start_relay, write_pipes
from winpod.windows.errors import WinpodError

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinShell]:
    with standin_shell(tmp_path / "bundle") as running:
        yield running


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


def garbage(chosen: random.Random) -> bytes:
    """Bytes that look like frames at first, at least sometimes."""
    whole = b"".join(
        frame(chosen.randrange(256), chosen.randbytes(chosen.randrange(200)))
        for _ in range(chosen.randrange(5))
    )
    return whole + chosen.randbytes(chosen.randrange(3000))


async def served(agent: Agent) -> None:
    await asyncio.wait_for(agent.ping(), 120)


async def test_garbage_ends_its_own_connection_only(shell: StandinShell) -> None:
    chosen = random.Random(4)
    for _ in range(150):
        _, writer = await asyncio.open_unix_connection(shell.agent.path)
        writer.write(garbage(chosen))
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
    await served(shell.agent)
    assert shell.memory < 16 * MIB


async def test_half_a_frame_waits_alone_and_in_bounded_memory(shell: StandinShell) -> None:
    writers = []
    for _ in range(20):
        _, writer = await asyncio.open_unix_connection(shell.agent.path)
        writer.write(struct.pack("<IB", 500_000, 1) + b"x" * 400_000)
        await writer.drain()
        writers.append(writer)
    await served(shell.agent)
    assert shell.memory < 32 * MIB
    for writer in writers:
        writer.close()
    await served(shell.agent)


async def test_clients_that_never_read_cost_no_more_than_their_windows(
    shell: StandinShell,
) -> None:
    start = frame(1, Program(f"flood {64 * MIB}").encode())
    deaf = []
    for _ in range(60):
        _, writer = await asyncio.open_unix_connection(shell.agent.path, limit=1)
        writer.write(start)
        writer.write(frame(6) * 200)
        deaf.append(writer)
    await served(shell.agent)
    assert (await asyncio.wait_for(shell.agent.run(Program("say on")), 120)).output == b"on"
    assert shell.memory < 60 * MIB + 16 * MIB
    for writer in deaf:
        writer.close()


async def test_three_hundred_connections_at_once_are_served_or_turned_away(
    shell: StandinShell,
) -> None:
    async def ask() -> bool:
        try:
            finished = await shell.agent.run(Program("say on"))
        except WinpodError:
            return False
        return finished.output == b"on"

    done = await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(300))), 120)
    assert sum(done) >= 128
    await served(shell.agent)


@pytest.mark.parametrize("seed", range(8))
def test_an_agent_that_raves_is_a_shell_that_died_to_wproxy(shell: StandinShell, seed: int) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program(f"garble {seed}"))
    until(conmon.exit_file.exists)
    told = (shell.folder / "exit32").exists()
    assert told or conmon.exit_file.read_text() == "137"


@pytest.mark.parametrize("line", ["half", "die", "huge", "nonsense"])
def test_an_agent_that_ends_anywhere_is_a_shell_that_died_to_wproxy(
    shell: StandinShell, line: str
) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program(line))
    until(conmon.exit_file.exists)
    assert conmon.exit_file.read_text() == "137"
    assert not (shell.folder / "exit32").exists()


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (None, b"The program to start cannot be read"),
        (b"x" * (600 << 10), b"The program to start cannot be read"),
        (b"", b"The container's shell"),
        (os.urandom(300), b"The container's shell"),
    ],
    ids=["missing", "too long", "empty", "random"],
)
def test_a_start_that_makes_no_sense_is_refused(
    shell: StandinShell, start: bytes | None, sentence: bytes
) -> None:
    if start is not None:
        (shell.folder / "start").write_bytes(start)
    process = call(shell.folder)
    assert sentence in process.communicate(timeout=120)[1]
    assert process.returncode == 1


# ---- the relay ----


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(120)
        yield server


def relays(folder: Path) -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            held = {str(one.readlink()) for one in (process / "fd").iterdir()}
            if str(folder) in held and (process / "comm").read_text() == "wproxy-relay\n":
                found.append(process)
    return found


async def test_a_pipe_is_carried_and_the_relay_ends_with_the_shell(
    shell: StandinShell, tmp_path: Path
) -> None:
    with listening(tmp_path / "s") as server:
        write_pipes(shell.folder, [Pipe("echo", tmp_path / "s")])
        await start_relay(shell.folder)
        connection, _ = await asyncio.to_thread(server.accept)
        connection.settimeout(120)
        for _ in range(50):
            connection.sendall(b"x" * 20_000)
            got = b""
            while len(got) < 20_000:
                got += connection.recv(20_000)
        connection.close()
    assert len(relays(shell.folder)) == 1
    shell.process.kill()
    until(lambda: not relays(shell.folder))


@pytest.mark.parametrize("seed", range(8))
async def test_a_pipe_of_an_agent_that_raves_ends_and_the_relay_goes_on(
    shell: StandinShell, tmp_path: Path, seed: int
) -> None:
    with listening(tmp_path / "s") as server:
        write_pipes(shell.folder, [Pipe(f"garble {seed}", tmp_path / "s")])
        await start_relay(shell.folder)
        connection, _ = await asyncio.to_thread(server.accept)
        connection.settimeout(120)
        while connection.recv(1 << 16):
            pass
        connection.close()
    assert len(relays(shell.folder)) == 1
    await served(shell.agent)


async def test_a_pipe_that_windows_refuses_is_said(shell: StandinShell, tmp_path: Path) -> None:
    write_pipes(shell.folder, [Pipe("refused", tmp_path / "s")])
    with pytest.raises(PipeRefused, match=r"Access is denied\.$"):
        await start_relay(shell.folder)
    assert relays(shell.folder) == []


@pytest.mark.parametrize(
    "pipes",
    [
        b"x",
        struct.pack("<I", 1 << 31),
        struct.pack("<I", 4) + b"name",
        struct.pack("<I", 4) + b"name" + struct.pack("<I", 5) + b"where",
        (struct.pack("<I", 4) + b"name" + struct.pack("<I", 2) + b"/x") * 17,
    ],
    ids=["short", "long", "half", "no directory", "too many"],
)
async def test_pipes_that_make_no_sense_are_refused(shell: StandinShell, pipes: bytes) -> None:
    (shell.folder / "pipes").write_bytes(pipes)
    with pytest.raises(PipeRefused, match="cannot be read"):
        await start_relay(shell.folder)


async def test_a_relay_waits_for_room_in_a_full_shell_without_haste(
    shell: StandinShell, tmp_path: Path
) -> None:
    held = []
    for number in range(256):
        if number % 64 == 0:
            await served(shell.agent)
        held.append((await asyncio.open_unix_connection(shell.agent.path))[1])
    write_pipes(shell.folder, [Pipe("waits", tmp_path / "s")])
    starting = asyncio.create_task(start_relay(shell.folder))
    while not relays(shell.folder):  # noqa: ASYNC110 - a process, which tells nobody
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert not starting.done()
    [process] = relays(shell.folder)
    ticks = sum(map(int, (process / "stat").read_text().split()[13:15]))
    assert ticks / os.sysconf("SC_CLK_TCK") < 0.2
    for writer in held:
        writer.close()
    await asyncio.wait_for(starting, 120)

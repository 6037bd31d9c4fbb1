"""Protocol violations against winit, wproxy and the pipe relay: bounded, and others are served."""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.conmon_supervision import Conmon, call, until
from tests.support.silos import StandinSilo, standin_silo
from winpod.compute.agent.client import AgentClient, Program
from winpod.compute.errors import NamedPipeFailed
from winpod.compute.wine.backend import NamedPipe, start_pipe_relay, write_named_pipes
from winpod.errors import WinpodError

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinSilo]:
    with standin_silo(tmp_path / "bundle") as running:
        yield running


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


def garbage(chosen: random.Random) -> bytes:
    """Return random bytes that may start with valid frames."""
    whole = b"".join(
        frame(chosen.randrange(256), chosen.randbytes(chosen.randrange(200)))
        for _ in range(chosen.randrange(5))
    )
    return whole + chosen.randbytes(chosen.randrange(3000))


async def served(agent: AgentClient) -> None:
    await asyncio.wait_for(agent.ping(), 120)


async def test_garbage_ends_its_own_connection_only(shell: StandinSilo) -> None:
    chosen = random.Random(4)
    for _ in range(150):
        _, writer = await asyncio.open_unix_connection(shell.agent.path)
        writer.write(garbage(chosen))
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
    await served(shell.agent)
    assert shell.memory < 16 * MIB


async def test_partial_frame_blocks_only_its_connection_in_bounded_memory(
    shell: StandinSilo,
) -> None:
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


async def test_clients_that_never_read_use_bounded_memory(
    shell: StandinSilo,
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


async def test_three_hundred_connections_are_served_or_rejected(
    shell: StandinSilo,
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
def test_wproxy_treats_garbage_from_the_agent_as_a_dead_silo(shell: StandinSilo, seed: int) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program(f"garble {seed}"))
    until(conmon.exit_file.exists)
    has_exit_code = (shell.folder / "exit32").exists()
    assert has_exit_code or conmon.exit_file.read_text() == "137"


@pytest.mark.parametrize("line", ["half", "die", "huge", "nonsense"])
def test_wproxy_treats_a_truncated_agent_stream_as_a_dead_silo(
    shell: StandinSilo, line: str
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
        (b"", b"The container's silo"),
        (os.urandom(300), b"The container's silo"),
    ],
    ids=["missing", "too long", "empty", "random"],
)
def test_invalid_start_file_is_refused(
    shell: StandinSilo, start: bytes | None, sentence: bytes
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


async def test_pipe_is_relayed_and_the_relay_ends_with_the_silo(
    shell: StandinSilo, tmp_path: Path
) -> None:
    with listening(tmp_path / "s") as server:
        write_named_pipes(shell.folder, [NamedPipe("echo", tmp_path / "s")])
        await start_pipe_relay(shell.folder)
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
async def test_garbage_from_the_agent_ends_the_pipe_but_not_the_relay(
    shell: StandinSilo, tmp_path: Path, seed: int
) -> None:
    with listening(tmp_path / "s") as server:
        write_named_pipes(shell.folder, [NamedPipe(f"garble {seed}", tmp_path / "s")])
        await start_pipe_relay(shell.folder)
        connection, _ = await asyncio.to_thread(server.accept)
        connection.settimeout(120)
        while connection.recv(1 << 16):
            pass
        connection.close()
    assert len(relays(shell.folder)) == 1
    await served(shell.agent)


async def test_pipe_refused_by_windows_is_reported(shell: StandinSilo, tmp_path: Path) -> None:
    write_named_pipes(shell.folder, [NamedPipe("refused", tmp_path / "s")])
    with pytest.raises(NamedPipeFailed, match=r"Access is denied\.$"):
        await start_pipe_relay(shell.folder)
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
async def test_invalid_pipes_file_is_refused(shell: StandinSilo, pipes: bytes) -> None:
    (shell.folder / "pipes").write_bytes(pipes)
    with pytest.raises(NamedPipeFailed, match="cannot be read"):
        await start_pipe_relay(shell.folder)


async def test_relay_retries_slowly_while_the_silo_has_no_free_connection(
    shell: StandinSilo, tmp_path: Path
) -> None:
    held = []
    for number in range(256):
        if number % 64 == 0:
            await served(shell.agent)
        held.append((await asyncio.open_unix_connection(shell.agent.path))[1])
    write_named_pipes(shell.folder, [NamedPipe("waits", tmp_path / "s")])
    starting = asyncio.create_task(start_pipe_relay(shell.folder))
    while not relays(shell.folder):  # noqa: ASYNC110 - a process without notification
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert not starting.done()
    [process] = relays(shell.folder)
    ticks = sum(map(int, (process / "stat").read_text().split()[13:15]))
    assert ticks / os.sysconf("SC_CLK_TCK") < 0.2
    for writer in held:
        writer.close()
    await asyncio.wait_for(starting, 120)

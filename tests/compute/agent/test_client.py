"""The agent's client and winit with a stand-in agent: frames, bounds, and disconnects."""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.silos import StandinSilo, change_registry, standin_silo
from winpod.compute.agent.client import (
    AgentClient,
    Program,
    RegistryChange,
    Stream,
    TerminalSize,
)
from winpod.compute.agent.protocol import MAX_FRAME, STDIN_WINDOW, Signal
from winpod.compute.errors import AgentProtocolError, AgentUnavailable, WindowsError
from winpod.errors import InvalidInput

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinSilo]:
    with standin_silo(tmp_path / "shell") as running:
        yield running


def decoded(payload: bytes) -> tuple[int, int, int, list[str]]:
    """Decode a START as the agent does: flags, columns, rows, texts."""
    flags, columns, rows = struct.unpack_from("<BHH", payload)
    at, texts = 5, []
    while at < len(payload):
        units = struct.unpack_from("<I", payload, at)[0]
        texts.append(payload[at + 4 : at + 4 + 2 * units].decode("utf-16-le"))
        at += 4 + 2 * units
    return flags, columns, rows, texts


async def test_stdout_and_stderr_are_separate_and_the_exit_code_has_32_bits(
    shell: StandinSilo,
) -> None:
    result = await shell.agent.run(Program("say hello"))
    assert (result.code, result.output, result.errors) == (0, b"hello", b"")
    cried = await shell.agent.run(Program("cry oh no"))
    assert (cried.output, cried.errors) == (b"", b"oh no")
    assert (await shell.agent.run(Program(f"exit {0xC0000005}"))).code == 0xC0000005


async def test_program_is_sent_unchanged(shell: StandinSilo) -> None:
    program = Program(
        'show "a b" c\\"d é 𝄞',
        directory="C:\\app",
        environment={"PATH": "C:\\x;C:\\y", "Empty": "", "=C:": "C:\\z"},
        terminal=TerminalSize(132, 43),
        stdin=True,
        kill_descendants=True,
    )
    finished = await shell.agent.run(program, stdin=b"")
    assert decoded(finished.output) == (
        7,
        132,
        43,
        [
            'show "a b" c\\"d é 𝄞\0',
            "C:\\app\0",
            "PATH=C:\\x;C:\\y\0Empty=\0=C:=C:\\z\0\0",
        ],
    )


async def test_windows_error_has_number_and_message(
    shell: StandinSilo,
) -> None:
    with pytest.raises(WindowsError, match="A sentence") as raised:
        await shell.agent.start(Program("fail 267"))
    assert raised.value.number == 267


async def test_stdin_and_its_end_reach_the_program(shell: StandinSilo) -> None:
    data = bytes(range(256)) * 4096
    finished = await shell.agent.run(Program("copy", stdin=True), stdin=data)
    assert finished.output == data


async def test_program_that_does_not_read_stdin_receives_signals(shell: StandinSilo) -> None:
    async with await shell.agent.start(Program("deaf", stdin=True)) as running:
        writing = asyncio.create_task(running.write(b"x" * (STDIN_WINDOW + 1)))
        await asyncio.sleep(0.2)
        assert not writing.done()
        await running.signal(Signal.SHUTDOWN)
        assert await running.wait() == Signal.SHUTDOWN
        await writing


async def test_write_fails_when_the_silo_dies(shell: StandinSilo) -> None:
    async with await shell.agent.start(Program("deaf", stdin=True)) as running:
        writing = asyncio.create_task(running.write(b"x" * (STDIN_WINDOW + 1)))
        await asyncio.sleep(0.1)
        shell.process.kill()
        with pytest.raises(AgentUnavailable):
            await asyncio.wait_for(running.wait(), 60)
        with pytest.raises(AgentUnavailable):
            await asyncio.wait_for(writing, 60)


async def test_a_terminal_is_resized(shell: StandinSilo) -> None:
    async with await shell.agent.start(Program("wait", terminal=TerminalSize(80, 25))) as running:
        await running.resize(TerminalSize(100, 40))
        await running.signal(Signal.INTERRUPT)
        pieces = [data async for _, data in running.output()]
        assert b"".join(pieces) == b"size 100 40\nsignal 3\n"


async def test_run_keeps_only_the_first_bytes_of_output(shell: StandinSilo) -> None:
    finished = await shell.agent.run(Program(f"flood {3 * MIB}"), max_output=MIB)
    assert len(finished.output) == MIB


async def test_slow_reader_blocks_no_other_client_and_uses_bounded_memory(
    shell: StandinSilo,
) -> None:
    async with await shell.agent.start(Program(f"flood {200 * MIB}")) as slow:
        output = slow.output()
        await anext(output)
        before = shell.memory
        for turn in range(20):
            result = await asyncio.wait_for(shell.agent.run(Program(f"say {turn}")), 60)
            assert result.output == str(turn).encode()
        many = await asyncio.gather(
            *(shell.agent.run(Program(f"flood {MIB + turn}")) for turn in range(20))
        )
        assert [len(one.output) for one in many] == [MIB + turn for turn in range(20)]
        assert shell.memory - before < 8 * MIB
        rest = 0
        async for stream, data in output:
            assert stream is Stream.OUTPUT
            rest += len(data)
        assert rest > 199 * MIB
    assert shell.memory < 16 * MIB


async def test_program_is_terminated_when_its_client_disconnects(shell: StandinSilo) -> None:
    running = await shell.agent.start(Program("wait"))
    assert len(await shell.agent.processes()) == 1
    async with running:
        pass
    for _ in range(3000):
        if not await shell.agent.processes():
            return
        await asyncio.sleep(0.02)
    pytest.fail("the program outlived its client")


async def test_process_list_and_registry_need_no_program(shell: StandinSilo) -> None:
    await shell.agent.ping()
    await change_registry(shell.agent, [RegistryChange("Software\\A", "B", b"1\0")])
    async with await shell.agent.start(Program("wait")):
        [one] = await shell.agent.processes()
    assert (one.name, one.parent, one.threads) == ("pretended.exe", 1, 2)
    assert (one.working_set, one.private_bytes) == (7, 8)


@pytest.mark.parametrize("line", ["die", "huge"])
async def test_silo_ends_with_its_agent(shell: StandinSilo, line: str) -> None:
    with pytest.raises(AgentUnavailable):
        async with await shell.agent.start(Program(line)) as running:
            await running.wait()
    shell.process.wait(5)
    with pytest.raises(AgentUnavailable, match="does not answer"):
        await shell.agent.ping()


async def test_invalid_answer_is_refused(shell: StandinSilo) -> None:
    with pytest.raises(AgentProtocolError):
        async with await shell.agent.start(Program("nonsense")) as running:
            await running.wait()
    await shell.agent.ping()


async def test_missing_silo_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(AgentUnavailable):
        await AgentClient(tmp_path / "agent.sock").ping()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<IB", MAX_FRAME + 1, 1),
        struct.pack("<IB", 0xFFFFFFFF, 2),
        struct.pack("<IB", 0, 0),
        struct.pack("<IB", 4, 32) + b"\1\0\0\0",
        struct.pack("<IB", 0, 33),
        struct.pack("<IB", 0, 255),
    ],
    ids=["too long", "longest", "type 0", "credit", "close", "type 255"],
)
async def test_winit_disconnects_a_client_that_violates_the_protocol(
    shell: StandinSilo, frame: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(shell.agent.path)
    writer.write(frame)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    await shell.agent.ping()


async def test_frames_may_be_fragmented(shell: StandinSilo) -> None:
    reader, writer = await asyncio.open_unix_connection(shell.agent.path)
    payload = Program("say pieces").encode()
    for byte in struct.pack("<IB", len(payload), 1) + payload:
        writer.write(bytes([byte]))
        await writer.drain()
    assert b"pieces" in await asyncio.wait_for(reader.readuntil(b"pieces"), 60)
    writer.close()


async def test_winit_rejects_excess_clients_and_serves_the_others(
    shell: StandinSilo,
) -> None:
    connections = []
    for number in range(256):
        if number % 64 == 0:  # never more than the socket holds unaccepted
            await shell.agent.ping()
        connections.append(await asyncio.open_unix_connection(shell.agent.path))
    extra, closing = await asyncio.open_unix_connection(shell.agent.path)
    assert await asyncio.wait_for(extra.read(), 60) == b""
    closing.close()
    for _, writer in connections:
        writer.close()
    await asyncio.sleep(0.1)
    await shell.agent.ping()


async def test_socket_in_a_long_directory_is_reachable(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with standin_silo(folder) as shell:
        await shell.agent.ping()


@pytest.mark.parametrize(
    "program",
    [
        Program("a\0b"),
        Program("x" * 32767),
        Program("x", directory="C:\\a\0"),
        Program("x", environment={"": "1"}),
        Program("x", environment={"A=B": "1"}),
        Program("x", environment={"A": "1\0"}),
        Program("x", environment={f"A{n}": "y" * 30_000 for n in range(20)}),
    ],
    ids=["zero", "long", "directory", "no name", "equals", "zero value", "environment"],
)
def test_invalid_program_is_refused_before_sending(program: Program) -> None:
    with pytest.raises(InvalidInput):
        program.encode()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200))
def test_command_line_round_trips(line: str) -> None:
    assert decoded(Program(line).encode())[3][0] == line + "\0"


@given(
    line=st.text(st.characters(exclude_characters="\0"), max_size=20),
    variables=st.dictionaries(
        st.text(st.characters(exclude_characters="=\0"), min_size=1, max_size=9),
        st.text(st.characters(exclude_characters="\0"), max_size=9),
    ),
    terminal=st.none() | st.builds(TerminalSize, st.integers(1, 999), st.integers(1, 999)),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_program_round_trips(
    line: str, variables: dict[str, str], terminal: TerminalSize | None, flags: tuple[bool, bool]
) -> None:
    stdin, whole = flags
    variables = {**variables, "=C:": "C:\\x=y"}
    program = Program(
        line, "C:\\app", variables, terminal=terminal, stdin=stdin, kill_descendants=whole
    )
    assert Program.decode(program.encode()) == program

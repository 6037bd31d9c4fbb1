"""The agent's client and winit, against a stand-in agent: frames, bounds, ends of either side."""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compute.shells import StandinShell, change_registry, standin_shell
from winpod.compute.agent import (
    INPUT_WINDOW,
    MAX_FRAME,
    Agent,
    Program,
    RegistryChange,
    Signal,
    Size,
    Stream,
)
from winpod.compute.errors import AgentGone, AgentMisspoke, WindowsError
from winpod.windows.errors import InvalidInput

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinShell]:
    with standin_shell(tmp_path / "shell") as running:
        yield running


def decoded(payload: bytes) -> tuple[int, int, int, list[str]]:
    """A START as the other side reads it: flags, columns, rows, texts."""
    flags, columns, rows = struct.unpack_from("<BHH", payload)
    at, texts = 5, []
    while at < len(payload):
        units = struct.unpack_from("<I", payload, at)[0]
        texts.append(payload[at + 4 : at + 4 + 2 * units].decode("utf-16-le"))
        at += 4 + 2 * units
    return flags, columns, rows, texts


async def test_output_and_errors_come_apart_and_the_exit_code_has_32_bits(
    shell: StandinShell,
) -> None:
    said = await shell.agent.run(Program("say hello"))
    assert (said.code, said.output, said.errors) == (0, b"hello", b"")
    cried = await shell.agent.run(Program("cry oh no"))
    assert (cried.output, cried.errors) == (b"", b"oh no")
    assert (await shell.agent.run(Program(f"exit {0xC0000005}"))).code == 0xC0000005


async def test_a_program_travels_as_it_was_given(shell: StandinShell) -> None:
    program = Program(
        'show "a b" c\\"d é 𝄞',
        directory="C:\\app",
        environment={"PATH": "C:\\x;C:\\y", "Empty": "", "=C:": "C:\\z"},
        terminal=Size(132, 43),
        stdin=True,
        whole=True,
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


async def test_what_windows_refuses_is_raised_with_its_number_and_sentence(
    shell: StandinShell,
) -> None:
    with pytest.raises(WindowsError, match="A sentence") as raised:
        await shell.agent.start(Program("fail 267"))
    assert raised.value.number == 267


async def test_input_goes_to_the_program_and_its_end_too(shell: StandinShell) -> None:
    data = bytes(range(256)) * 4096
    finished = await shell.agent.run(Program("copy", stdin=True), stdin=data)
    assert finished.output == data


async def test_a_program_that_takes_no_input_still_hears_a_signal(shell: StandinShell) -> None:
    async with await shell.agent.start(Program("deaf", stdin=True)) as running:
        writing = asyncio.create_task(running.write(b"x" * (INPUT_WINDOW + 1)))
        await asyncio.sleep(0.2)
        assert not writing.done()
        await running.signal(Signal.SHUTDOWN)
        assert await running.wait() == Signal.SHUTDOWN
        await writing


async def test_a_writer_does_not_wait_for_a_shell_that_has_died(shell: StandinShell) -> None:
    async with await shell.agent.start(Program("deaf", stdin=True)) as running:
        writing = asyncio.create_task(running.write(b"x" * (INPUT_WINDOW + 1)))
        await asyncio.sleep(0.1)
        shell.process.kill()
        with pytest.raises(AgentGone):
            await asyncio.wait_for(running.wait(), 60)
        with pytest.raises(AgentGone):
            await asyncio.wait_for(writing, 60)


async def test_a_terminal_is_resized(shell: StandinShell) -> None:
    async with await shell.agent.start(Program("wait", terminal=Size(80, 25))) as running:
        await running.resize(Size(100, 40))
        await running.signal(Signal.INTERRUPT)
        pieces = [data async for _, data in running.output()]
        assert b"".join(pieces) == b"size 100 40\nsignal 3\n"


async def test_only_the_first_bytes_are_kept_of_what_is_too_much(shell: StandinShell) -> None:
    finished = await shell.agent.run(Program(f"flood {3 * MIB}"), most=MIB)
    assert len(finished.output) == MIB


async def test_a_reader_that_stops_blocks_no_one_else_and_holds_little_memory(
    shell: StandinShell,
) -> None:
    async with await shell.agent.start(Program(f"flood {200 * MIB}")) as slow:
        output = slow.output()
        await anext(output)
        before = shell.memory
        for turn in range(20):
            said = await asyncio.wait_for(shell.agent.run(Program(f"say {turn}")), 60)
            assert said.output == str(turn).encode()
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


async def test_a_client_that_vanishes_takes_its_program_along(shell: StandinShell) -> None:
    running = await shell.agent.start(Program("wait"))
    assert len(await shell.agent.processes()) == 1
    async with running:
        pass
    for _ in range(3000):
        if not await shell.agent.processes():
            return
        await asyncio.sleep(0.02)
    pytest.fail("the program outlived its client")


async def test_processes_and_the_registry_are_asked_without_a_program(shell: StandinShell) -> None:
    await shell.agent.ping()
    await change_registry(shell.agent, [RegistryChange("Software\\A", "B", b"1\0")])
    async with await shell.agent.start(Program("wait")):
        [one] = await shell.agent.processes()
    assert (one.name, one.parent, one.threads) == ("pretended.exe", 1, 2)
    assert (one.working_set, one.private_bytes) == (7, 8)


@pytest.mark.parametrize("line", ["die", "huge"])
async def test_an_agent_that_ends_or_is_ended_ends_its_shell(
    shell: StandinShell, line: str
) -> None:
    with pytest.raises(AgentGone):
        async with await shell.agent.start(Program(line)) as running:
            await running.wait()
    shell.process.wait(5)
    with pytest.raises(AgentGone, match="does not answer"):
        await shell.agent.ping()


async def test_an_answer_that_makes_no_sense_is_refused(shell: StandinShell) -> None:
    with pytest.raises(AgentMisspoke):
        async with await shell.agent.start(Program("nonsense")) as running:
            await running.wait()
    await shell.agent.ping()


async def test_a_shell_that_never_was_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(AgentGone):
        await Agent(tmp_path / "agent.sock").ping()


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
async def test_winit_hangs_up_on_a_client_that_breaks_the_protocol(
    shell: StandinShell, frame: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(shell.agent.path)
    writer.write(frame)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    await shell.agent.ping()


async def test_frames_may_come_in_any_pieces(shell: StandinShell) -> None:
    reader, writer = await asyncio.open_unix_connection(shell.agent.path)
    payload = Program("say pieces").encode()
    for byte in struct.pack("<IB", len(payload), 1) + payload:
        writer.write(bytes([byte]))
        await writer.drain()
    assert b"pieces" in await asyncio.wait_for(reader.readuntil(b"pieces"), 60)
    writer.close()


async def test_more_clients_than_winit_serves_are_turned_away_and_the_rest_go_on(
    shell: StandinShell,
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


async def test_a_socket_in_a_long_directory_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with standin_shell(folder) as shell:
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
def test_what_windows_cannot_take_is_refused_before_it_is_sent(program: Program) -> None:
    with pytest.raises(InvalidInput):
        program.encode()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200))
def test_every_command_line_survives_its_encoding(line: str) -> None:
    assert decoded(Program(line).encode())[3][0] == line + "\0"


@given(
    line=st.text(st.characters(exclude_characters="\0"), max_size=20),
    variables=st.dictionaries(
        st.text(st.characters(exclude_characters="=\0"), min_size=1, max_size=9),
        st.text(st.characters(exclude_characters="\0"), max_size=9),
    ),
    terminal=st.none() | st.builds(Size, st.integers(1, 999), st.integers(1, 999)),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_what_was_written_down_to_start_is_read_again(
    line: str, variables: dict[str, str], terminal: Size | None, flags: tuple[bool, bool]
) -> None:
    stdin, whole = flags
    variables = {**variables, "=C:": "C:\\x=y"}
    program = Program(line, "C:\\app", variables, terminal=terminal, stdin=stdin, whole=whole)
    assert Program.decode(program.encode()) == program

"""Attaching through the real conmon to programs of a stand-in agent."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.conmon_supervision import Conmon
from tests.support.silos import StandinSilo, standin_silo
from winpod.compute.agent.client import Program, Stream, TerminalSize
from winpod.compute.wine.conmon import AttachedStreams, AttachFailed

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinSilo]:
    with standin_silo(tmp_path / ("bundle" * 20)) as running:
        yield running


def supervise(shell: StandinSilo, program: str, *, stays: bool = False, tty: bool = False) -> None:
    """Start the program with conmon, as the backend does."""
    options = ["--full-attach", "--stdin"]
    options += ["--leave-stdin-open"] if stays else []
    options += ["--terminal"] if tty else []
    (shell.folder / "stdio").write_text("stdin stdin_stays" if stays else "stdin")
    terminal = TerminalSize() if tty else None
    Conmon(shell.folder).start(Program(program, terminal=terminal, stdin=True), *options)


async def attach(shell: StandinSilo, *, stdin: bool = True) -> AttachedStreams:
    attached = await AttachedStreams.connect(shell.folder, stdin=stdin)
    await asyncio.sleep(0.1)  # conmon does not report that it accepted a client
    return attached


async def heard(attached: AttachedStreams, size: int) -> bytes:
    """Read that many bytes of any stream."""
    found = b""
    async for _, data in attached.output():
        found += data
        if len(found) >= size:
            break
    return found


async def test_streams_are_separate_and_stdin_stays_open_for_the_next_client(
    shell: StandinSilo,
) -> None:
    supervise(shell, "both", stays=True)
    for word in (b"first", b"second"):
        async with await attach(shell) as attached:
            output = attached.output()
            await attached.write(word)
            assert await anext(output) == (Stream.OUTPUT, word)
            await attached.write(b"!" + word)
            assert await anext(output) == (Stream.ERRORS, b"!" + word)
            await attached.close_stdin()


async def test_all_data_is_relayed_in_both_directions_until_the_end(shell: StandinSilo) -> None:
    supervise(shell, "copy")
    data = os.urandom(3 * MIB)

    async def send(attached: AttachedStreams) -> None:
        await attached.write(data)
        await attached.close_stdin()

    async with await attach(shell) as attached, asyncio.timeout(120):
        sending = asyncio.create_task(send(attached))
        found = b"".join([piece async for _, piece in attached.output()])
        await sending
    assert found == data
    assert (shell.folder / "exit32").read_text() == "0\n"


async def test_client_without_stdin_does_not_close_that_of_others(shell: StandinSilo) -> None:
    supervise(shell, "copy")
    async with await attach(shell, stdin=False):
        pass
    data = bytes(2 * MIB)
    async with await attach(shell) as attached, asyncio.timeout(120):
        sending = asyncio.create_task(attached.write(data))
        assert len(await heard(attached, len(data))) == len(data)
        await sending
        await attached.close_stdin()
        async for _ in attached.output():
            pass
    assert (shell.folder / "exit32").read_text() == "0\n"


async def test_terminal_of_a_container_is_resized(shell: StandinSilo) -> None:
    supervise(shell, "wait", tty=True)
    async with await attach(shell) as attached, asyncio.timeout(120):
        hearing = asyncio.create_task(heard(attached, 12))
        while not hearing.done():  # output before conmon accepted the client is lost
            await attached.resize(TerminalSize(132, 43))
            await asyncio.wait((hearing,), timeout=0.2)
        assert b"size 132 43" in await hearing


async def test_attach_without_conmon_fails(shell: StandinSilo) -> None:
    with pytest.raises(
        AttachFailed, match="cannot attach to the container: No such file or directory"
    ):
        await attach(shell)

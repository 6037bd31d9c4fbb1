"""Attaching through the real conmon, to programs that a stand-in agent pretends."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.shells import StandinShell, standin_shell
from tests.compute.supervision import Conmon
from winpod.compute.agent import Program, Size, Stream
from winpod.compute.attach import Attached, AttachFailed

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinShell]:
    with standin_shell(tmp_path / ("bundle" * 20)) as running:
        yield running


def supervise(shell: StandinShell, program: str, *, stays: bool = False, tty: bool = False) -> None:
    """By conmon, as the runtime starts it."""
    options = ["--full-attach", "--stdin"]
    options += ["--leave-stdin-open"] if stays else []
    options += ["--terminal"] if tty else []
    (shell.folder / "stdio").write_text("stdin stdin_stays" if stays else "stdin")
    terminal = Size() if tty else None
    Conmon(shell.folder).start(Program(program, terminal=terminal, stdin=True), *options)


async def attach(shell: StandinShell, *, stdin: bool = True) -> Attached:
    attached = await Attached.to(shell.folder, stdin=stdin)
    await asyncio.sleep(0.1)  # conmon tells nobody when it has taken a client
    return attached


async def heard(attached: Attached, size: int) -> bytes:
    """So much of what comes, whichever the stream."""
    found = b""
    async for _, data in attached.output():
        found += data
        if len(found) >= size:
            break
    return found


async def test_streams_come_apart_and_input_stays_open_for_the_next(shell: StandinShell) -> None:
    supervise(shell, "both", stays=True)
    for word in (b"first", b"second"):
        async with await attach(shell) as attached:
            output = attached.output()
            await attached.write(word)
            assert await anext(output) == (Stream.OUTPUT, word)
            await attached.write(b"!" + word)
            assert await anext(output) == (Stream.ERRORS, b"!" + word)
            await attached.end_input()


async def test_every_byte_goes_both_ways_and_the_end_is_seen(shell: StandinShell) -> None:
    supervise(shell, "copy")
    data = os.urandom(3 * MIB)

    async def send(attached: Attached) -> None:
        await attached.write(data)
        await attached.end_input()

    async with await attach(shell) as attached, asyncio.timeout(120):
        sending = asyncio.create_task(send(attached))
        found = b"".join([piece async for _, piece in attached.output()])
        await sending
    assert found == data
    assert (shell.folder / "exit32").read_text() == "0\n"


async def test_a_client_without_input_does_not_end_that_of_others(shell: StandinShell) -> None:
    supervise(shell, "copy")
    async with await attach(shell, stdin=False):
        pass
    data = bytes(2 * MIB)
    async with await attach(shell) as attached, asyncio.timeout(120):
        sending = asyncio.create_task(attached.write(data))
        assert len(await heard(attached, len(data))) == len(data)
        await sending
        await attached.end_input()
        async for _ in attached.output():
            pass
    assert (shell.folder / "exit32").read_text() == "0\n"


async def test_the_terminal_of_a_container_changes_its_size(shell: StandinShell) -> None:
    supervise(shell, "wait", tty=True)
    async with await attach(shell) as attached, asyncio.timeout(120):
        hearing = asyncio.create_task(heard(attached, 12))
        while not hearing.done():  # what is said before conmon has taken a client is lost
            await attached.resize(Size(132, 43))
            await asyncio.wait((hearing,), timeout=0.2)
        assert b"size 132 43" in await hearing


async def test_without_a_supervisor_it_is_said(shell: StandinShell) -> None:
    with pytest.raises(AttachFailed, match="cannot be attached to: No such file or directory"):
        await attach(shell)

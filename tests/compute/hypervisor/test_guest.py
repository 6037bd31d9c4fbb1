"""The host keeps to its own questions, whatever a guest sends; a scripted peer is the guest."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from winpod.compute.errors import GuestRefused, MachineGone
from winpod.compute.hypervisor.guest import MOST_BYTES, Guest

PULSE = 0.05
Answers = Callable[[list[bytes]], tuple[int, bytes]]


@asynccontextmanager
async def peer(path: Path, answers: Answers, first: bytes = b"") -> AsyncIterator[Guest]:
    """Answers each request; to who connects it sends what it had still to say."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        try:
            while True:
                (size,) = struct.unpack("<I", await reader.readexactly(4))
                mark = await reader.readexactly(8)
                error, data = answers((await reader.readexactly(size)).split(b"\0")[:-1])
                writer.write(mark + struct.pack("<II", len(data), error) + data)
        except (EOFError, ConnectionError):
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    guest = Guest(path)
    try:
        yield guest
    finally:
        guest.close()
        server.close()


def echo(words: list[bytes]) -> tuple[int, bytes]:
    return 0, b" ".join(words)


async def test_what_is_asked_is_answered(tmp_path: Path) -> None:
    async with peer(tmp_path / "s", echo) as guest:
        assert await guest.ask("read", "/a b") == b"read /a b"


@pytest.mark.parametrize(
    "late",
    [
        b"12345678" + struct.pack("<II", 0, 22),
        b"12345678" + struct.pack("<II", 5, 0) + b"hello",
        b"lf of an answer that was begun",
        b"x" * MOST_BYTES,
    ],
    ids=["an error", "data", "half of one", "a long one"],
)
async def test_an_answer_that_came_too_late_for_another_is_passed_over(
    tmp_path: Path, late: bytes
) -> None:
    async with peer(tmp_path / "s", echo, late) as guest:
        assert await guest.ask("one") == b"one"
        assert await guest.ask("two") == b"two"


async def test_an_error_is_told_with_its_number(tmp_path: Path) -> None:
    def refuse(words: list[bytes]) -> tuple[int, bytes]:
        return (0, b"") if words == [b"ping"] else (2, b"")

    async with peer(tmp_path / "s", refuse) as guest:
        with pytest.raises(GuestRefused, match="No such file") as refused:
            await guest.ask("read", "/gone")
    assert refused.value.number == 2


async def test_a_guest_that_floods_its_host_is_let_go(tmp_path: Path) -> None:
    async with peer(tmp_path / "s", echo, b"x" * (5 * MOST_BYTES)) as guest:
        with pytest.raises(MachineGone):
            await guest.ask("ping")


async def test_where_nobody_listens_the_machine_is_gone(tmp_path: Path) -> None:
    with pytest.raises(MachineGone):
        await Guest(tmp_path / "none").ask("ping")


async def test_nobody_waits_for_the_guest_of_a_machine_that_has_ended(tmp_path: Path) -> None:
    with pytest.raises(MachineGone):
        await Guest(tmp_path / "none").until_up(3600, lambda: False)


async def test_a_guest_that_answers_is_not_silent(tmp_path: Path) -> None:
    asked: list[list[bytes]] = []
    often = asyncio.Event()

    def remember(words: list[bytes]) -> tuple[int, bytes]:
        asked.append(words)
        if len(asked) == 20:
            often.set()
        return 0, b""

    async with peer(tmp_path / "s", remember) as guest:
        silence = asyncio.create_task(guest.until_silent(PULSE))
        await often.wait()
        assert not silence.done()
        silence.cancel()


async def test_a_guest_that_answers_nobody_is_silent(tmp_path: Path) -> None:
    kept: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _, writer: kept.append(writer), tmp_path / "s")
    await Guest(tmp_path / "s").until_silent(PULSE)
    server.close()


async def test_a_guest_whose_machine_has_ended_is_silent(tmp_path: Path) -> None:
    await Guest(tmp_path / "none").until_silent(PULSE)

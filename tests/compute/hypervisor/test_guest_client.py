"""The guest client with a scripted peer that sends valid and invalid answers."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from winpod.compute.agent.protocol import GUEST_MAX_BYTES
from winpod.compute.errors import GuestError, MicroVmGone
from winpod.compute.hypervisor.guest_client import GuestClient

PULSE = 0.05
Answers = Callable[[list[bytes]], tuple[int, bytes]]


@asynccontextmanager
async def peer(path: Path, answers: Answers, first: bytes = b"") -> AsyncIterator[GuestClient]:
    """A peer that answers each request, and sends leftovers to each new connection."""

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
    guest = GuestClient(path)
    try:
        yield guest
    finally:
        guest.close()
        server.close()


def echo(command: list[bytes]) -> tuple[int, bytes]:
    return 0, b" ".join(command)


async def test_request_returns_the_answer(tmp_path: Path) -> None:
    async with peer(tmp_path / "s", echo) as guest:
        assert await guest.request("read", "/a b") == b"read /a b"


@pytest.mark.parametrize(
    "late",
    [
        b"12345678" + struct.pack("<II", 0, 22),
        b"12345678" + struct.pack("<II", 5, 0) + b"hello",
        b"lf of an answer that was begun",
        b"x" * GUEST_MAX_BYTES,
    ],
    ids=["an error", "data", "half of one", "a long one"],
)
async def test_late_answer_to_another_request_is_ignored(tmp_path: Path, late: bytes) -> None:
    async with peer(tmp_path / "s", echo, late) as guest:
        assert await guest.request("one") == b"one"
        assert await guest.request("two") == b"two"


async def test_error_has_the_errno(tmp_path: Path) -> None:
    def refuse(command: list[bytes]) -> tuple[int, bytes]:
        return (0, b"") if command == [b"ping"] else (2, b"")

    async with peer(tmp_path / "s", refuse) as guest:
        with pytest.raises(GuestError, match="No such file") as refused:
            await guest.request("read", "/gone")
    assert refused.value.number == 2


async def test_flooding_guest_is_disconnected(tmp_path: Path) -> None:
    async with peer(tmp_path / "s", echo, b"x" * (5 * GUEST_MAX_BYTES)) as guest:
        with pytest.raises(MicroVmGone):
            await guest.request("ping")


async def test_missing_listener_means_the_microvm_is_gone(tmp_path: Path) -> None:
    with pytest.raises(MicroVmGone):
        await GuestClient(tmp_path / "none").request("ping")


async def test_wait_ready_fails_when_qemu_has_ended(tmp_path: Path) -> None:
    with pytest.raises(MicroVmGone):
        await GuestClient(tmp_path / "none").wait_ready(3600, lambda: False)


async def test_answering_guest_is_not_unresponsive(tmp_path: Path) -> None:
    requests: list[list[bytes]] = []
    often = asyncio.Event()

    def remember(command: list[bytes]) -> tuple[int, bytes]:
        requests.append(command)
        if len(requests) == 20:
            often.set()
        return 0, b""

    async with peer(tmp_path / "s", remember) as guest:
        silence = asyncio.create_task(guest.wait_unresponsive(PULSE))
        await often.wait()
        assert not silence.done()
        silence.cancel()


async def test_guest_that_answers_no_request_is_unresponsive(tmp_path: Path) -> None:
    kept: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _, writer: kept.append(writer), tmp_path / "s")
    await GuestClient(tmp_path / "s").wait_unresponsive(PULSE)
    server.close()


async def test_guest_of_an_ended_microvm_is_unresponsive(tmp_path: Path) -> None:
    await GuestClient(tmp_path / "none").wait_unresponsive(PULSE)

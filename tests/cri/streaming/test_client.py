"""winpod's own client of exec and attach, against the real server and real processes."""

import asyncio

import pytest

from tests.cri.streaming.local_backend import EXIT_WITH
from winpod.cri.streaming import Size, StreamingServer
from winpod.cri.streaming.client import (
    STDERR,
    STDOUT,
    Session,
    SessionFailed,
    SessionLost,
    open_session,
)
from winpod.windows.errors import Unavailable


async def all_output(session: Session) -> dict[int, bytes]:
    found = {STDOUT: b"", STDERR: b""}
    async for channel, data in session.output():
        found[channel] += data
    return found


async def test_output_comes_apart_and_the_code_whole(server: StreamingServer) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    url = server.exec_url("container", command, stdout=True, stderr=True)
    async with open_session(url) as session:
        assert await all_output(session) == {STDOUT: b"out\n", STDERR: b"err\n"}
        assert session.exit_code == 3
    url = server.exec_url("container", [EXIT_WITH, "3221225477"], stdout=True)
    async with open_session(url) as session:
        await all_output(session)
        assert session.exit_code == 0xC0000005


async def test_input_of_megabytes_goes_through_and_ends(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    sent = bytes(range(256)) * 12_000
    async with open_session(url) as session:
        reading = asyncio.create_task(all_output(session))
        await session.write(sent)
        await session.end_input()
        assert (await reading)[STDOUT] == sent
        assert session.exit_code == 0


async def test_a_terminal_has_the_size_of_ours(server: StreamingServer) -> None:
    command = ["sh", "-c", "until [ \"$(stty size)\" = '33 99' ]; do sleep 0.05; done; echo seen"]
    url = server.exec_url("container", command, stdin=True, stdout=True, tty=True)
    async with open_session(url) as session:
        await session.resize(Size(width=99, height=33))
        assert b"seen" in (await all_output(session))[STDOUT]


async def test_what_the_runtime_cannot_do_is_its_sentence(server: StreamingServer) -> None:
    url = server.exec_url("other", ["true"], stdout=True)
    async with open_session(url) as session:
        await all_output(session)
        with pytest.raises(SessionFailed, match="There is no container other"):
            _ = session.exit_code


async def test_a_runtime_that_ends_is_told_from_a_program_that_ends(
    server: StreamingServer,
) -> None:
    url = server.attach_url("container", stdin=True, stdout=True)
    async with open_session(url) as session:
        reading = asyncio.create_task(all_output(session))
        await asyncio.sleep(0.1)
        await server.close()
        await reading
        with pytest.raises(SessionLost):
            _ = session.exit_code


async def test_a_url_is_used_once(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with open_session(url) as session:
        await all_output(session)
    with pytest.raises(Unavailable, match="does not answer"):
        async with open_session(url):
            pass

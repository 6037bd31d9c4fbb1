"""The exec and attach client against the streaming server with real processes."""

import asyncio

import pytest

from tests.support.streaming_backend import EXIT_WITH
from winpod.cri.streaming import StreamingServer, StreamTerminalSize
from winpod.cri.streaming.client import (
    STDERR,
    STDOUT,
    Session,
    SessionFailed,
    SessionLost,
    open_session,
)
from winpod.errors import Unavailable


async def all_output(session: Session) -> dict[int, bytes]:
    found = {STDOUT: b"", STDERR: b""}
    async for channel, data in session.output():
        found[channel] += data
    return found


async def test_stdout_stderr_and_exit_code_are_returned(server: StreamingServer) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    url = server.exec_url("container", command, stdout=True, stderr=True)
    async with open_session(url) as session:
        assert await all_output(session) == {STDOUT: b"out\n", STDERR: b"err\n"}
        assert session.exit_code == 3
    url = server.exec_url("container", [EXIT_WITH, "3221225477"], stdout=True)
    async with open_session(url) as session:
        await all_output(session)
        assert session.exit_code == 0xC0000005


async def test_large_stdin_is_forwarded_to_its_end(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    sent = bytes(range(256)) * 12_000
    async with open_session(url) as session:
        reading = asyncio.create_task(all_output(session))
        await session.write(sent)
        await session.close_stdin()
        assert (await reading)[STDOUT] == sent
        assert session.exit_code == 0


async def test_terminal_size_is_forwarded(server: StreamingServer) -> None:
    command = ["sh", "-c", "until [ \"$(stty size)\" = '33 99' ]; do sleep 0.05; done; echo seen"]
    url = server.exec_url("container", command, stdin=True, stdout=True, tty=True)
    async with open_session(url) as session:
        await session.resize(StreamTerminalSize(width=99, height=33))
        assert b"seen" in (await all_output(session))[STDOUT]


async def test_runtime_error_is_raised_with_its_message(server: StreamingServer) -> None:
    url = server.exec_url("other", ["true"], stdout=True)
    async with open_session(url) as session:
        await all_output(session)
        with pytest.raises(SessionFailed, match="There is no container other"):
            _ = session.exit_code


async def test_lost_runtime_is_distinguished_from_program_exit(
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


async def test_url_can_be_used_once(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with open_session(url) as session:
        await all_output(session)
    with pytest.raises(Unavailable, match="does not answer"):
        async with open_session(url):
            pass

"""WebSocket channels, with the aiohttp client."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.support.streaming_backend import LocalBackend
from winpod.cri.streaming import StreamingServer, websocket

Socket = aiohttp.ClientWebSocketResponse
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


@asynccontextmanager
async def connect(url: str, *protocols: str) -> AsyncIterator[Socket]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=protocols) as socket,
    ):
        yield socket


async def collect(socket: Socket) -> list[bytes | str]:
    return [message.data async for message in socket]


async def test_first_message_is_empty_and_on_the_lowest_channel(
    server: StreamingServer,
) -> None:
    for flags, first in (
        ({"stdout": True}, b"\x01"),
        ({"stderr": True}, b"\x02"),
        ({"stdin": True}, b"\x03"),
    ):
        url = server.exec_url("container", ["true"], **flags)
        async with connect(url, V4) as socket:
            assert (await collect(socket))[0] == first
            assert socket.close_code == 1000


async def test_messages_start_with_their_channel(server: StreamingServer) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 4"]
    url = server.exec_url("container", command, stdout=True, stderr=True)
    async with connect(url, V4) as socket:
        _, *messages = await collect(socket)
    assert sorted(str(message[:1]) for message in messages) == ["b'\\x01'", "b'\\x02'", "b'\\x03'"]
    status = messages[-1]
    assert isinstance(status, bytes)
    assert json.loads(status[1:])["details"]["causes"][0]["message"] == "4"


async def test_base64_protocol_uses_text_messages(server: StreamingServer) -> None:
    url = server.exec_url("container", ["head", "-c", "4"], stdin=True, stdout=True)
    async with connect(url, "v4.base64.channel.k8s.io") as socket:
        await socket.send_str("0" + base64.b64encode(b"text").decode())
        messages = await collect(socket)
    assert messages[:2] == ["1", "1" + base64.b64encode(b"text").decode()]


async def test_invalid_base64_closes_the_connection(
    server: StreamingServer, backend: LocalBackend
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True)
    async with connect(url, "base64.channel.k8s.io") as socket:
        await socket.send_str("0!!!")
        async with asyncio.timeout(120):
            await collect(socket)
            await backend.ended_by_hangup.get()


async def test_version_5_closes_one_channel(server: StreamingServer) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    async with connect(url, V5) as socket:
        await socket.send_bytes(b"\x00input")
        await socket.send_bytes(b"")
        await socket.send_bytes(bytes([255, 9]))
        await socket.send_bytes(bytes([9]) + b"nowhere")
        await socket.send_bytes(bytes([255, 0]))
        messages = await collect(socket)
    assert messages[1] == b"\x01input"
    assert isinstance(messages[2], bytes)
    assert json.loads(messages[2][1:])["status"] == "Success"


async def test_default_protocol_is_version_1(server: StreamingServer) -> None:
    url = server.exec_url("container", ["sh", "-c", "exit 4"], stdout=True)
    async with connect(url) as socket:
        messages = await collect(socket)
        assert socket.protocol is None
    assert messages[-1] == (
        b"\x03command terminated with non-zero exit code:"
        b" error executing command [sh -c exit 4], exit code 4"
    )


async def test_failed_negotiation_is_forbidden(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    with pytest.raises(aiohttp.WSServerHandshakeError) as failure:
        async with connect(url, "v9.channel.k8s.io"):
            pass
    assert failure.value.status == 403


async def test_terminal_is_resized(server: StreamingServer) -> None:
    command = ["sh", "-c", "until [ \"$(stty size)\" = '20 90' ]; do sleep 0.05; done; echo seen"]
    url = server.exec_url("container", command, stdout=True, tty=True)
    async with connect(url, V5) as socket, asyncio.timeout(120):
        await socket.send_bytes(b'\x04{"Width":90,"Height":20}')
        assert b"\x01seen\r\n" in await collect(socket)


async def test_disconnect_ends_the_process(server: StreamingServer, backend: LocalBackend) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with connect(url, V5) as socket:
        assert [await socket.receive_bytes() for _ in range(2)] == [b"\x01", b"\x01up\n"]
    async with asyncio.timeout(120):
        await backend.ended_by_hangup.get()


async def test_unread_client_gets_pongs(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PONG_INTERVAL", 0.1)
    url = server.exec_url("container", ["sleep", "600"], stdin=True)
    soon = aiohttp.ClientWSTimeout(ws_close=0.05)  # its close frame is not read either
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=(V5,), autoping=False, timeout=soon) as socket,
    ):
        for _ in range(3):
            await socket.send_bytes(b"\x00" + bytes(512 * 1024))
        async with asyncio.timeout(120):
            await socket.receive_bytes()
            assert (await socket.receive()).type is aiohttp.WSMsgType.PONG


async def test_idle_session_ends(backend: LocalBackend) -> None:
    server = StreamingServer(backend, idle_timeout=3.0)
    await server.start()
    url = server.exec_url("container", ["sh", "-c", "echo up; exec sleep 600"], stdout=True)
    async with connect(url, V5) as socket, asyncio.timeout(120):
        assert await collect(socket) == [b"\x01", b"\x01up\n"]
        await backend.ended_by_hangup.get()
    await server.close()

"""Port-forward: pairs of streams over SPDY, pairs of channels over WebSocket."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.streaming_client import StandInClient
from winpod.cri.streaming import StreamingServer, port_forward
from winpod.cri.streaming import spdy_frames as frames

PROTOCOL = "portforward.k8s.io"


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    """Run a server that echoes its input after a half-close; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()[1]


async def test_stream_pair_is_a_connection(server: StreamingServer, echo_port: int) -> None:
    async with await StandInClient.connect(server.port_forward_url("sandbox"), PROTOCOL) as client:
        port = str(echo_port)
        data = await client.open(streamtype="data", port=port, requestid="7")
        await client.open(streamtype="error", port=port, requestid="7")
        await client.write(data, b"hello", fin=True)
        assert await data_of(client, data) == b"got hello"


async def test_without_a_request_id_the_data_stream_follows_the_error_stream(
    server: StreamingServer, echo_port: int
) -> None:
    async with await StandInClient.connect(server.port_forward_url("sandbox"), PROTOCOL) as client:
        for word in (b"one", b"two"):
            await client.open(streamtype="error", port=str(echo_port))
            data = await client.open(streamtype="data", port=str(echo_port))
            await client.write(data, word, fin=True)
            assert await data_of(client, data) == b"got " + word


async def data_of(client: StandInClient, stream_id: int) -> bytes:
    found = b""
    async for frame in client.received():
        if isinstance(frame, frames.Data) and frame.stream_id == stream_id:
            found += frame.data
            if frame.fin:
                return found
    raise AssertionError("the stream did not end")


@pytest.mark.parametrize(
    ("sandbox", "why"),
    [("sandbox", b"Nothing listens on port 1 of the pod."), ("gone", b"There is no pod gone.")],
)
async def test_failure_is_sent_on_the_error_stream(
    server: StreamingServer, sandbox: str, why: bytes
) -> None:
    async with await StandInClient.connect(server.port_forward_url(sandbox), PROTOCOL) as client:
        error = await client.open(streamtype="error", port="1", requestid="0")
        data = await client.open(streamtype="data", port="1", requestid="0")
        message = await data_of(client, error)
        assert message.startswith(b"error forwarding port 1 to pod")
        assert message.endswith(why)
        assert await client.until(frames.RstStream) == frames.RstStream(
            data, frames.ResetStatus.CANCEL
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "data", "port": "-1"},
        {"streamtype": "data", "port": "999999999999"},
        {"streamtype": "stdin", "port": "80"},
        {"port": "80"},
    ],
)
async def test_streams_with_invalid_headers_are_reset(
    server: StreamingServer, headers: dict[str, str]
) -> None:
    async with await StandInClient.connect(server.port_forward_url("sandbox"), PROTOCOL) as client:
        stream_id = await client.open(**headers)
        reset = await client.until(frames.RstStream)
        assert reset == frames.RstStream(stream_id, frames.ResetStatus.CANCEL)


async def test_second_stream_of_one_type_is_reset(server: StreamingServer) -> None:
    async with await StandInClient.connect(server.port_forward_url("sandbox"), PROTOCOL) as client:
        await client.open(streamtype="data", port="80", requestid="1")
        again = await client.open(streamtype="data", port="80", requestid="1")
        assert await client.until(frames.RstStream) == frames.RstStream(
            again, frames.ResetStatus.CANCEL
        )


async def test_incomplete_pair_is_reset_after_timeout(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "PAIR_TIMEOUT", 0.1)
    async with await StandInClient.connect(server.port_forward_url("sandbox"), PROTOCOL) as client:
        alone = await client.open(streamtype="data", port="80", requestid="1")
        assert await client.until(frames.RstStream) == frames.RstStream(
            alone, frames.ResetStatus.CANCEL
        )


async def test_stream_reset_closes_the_connection(server: StreamingServer) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionError:
            ended.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = str(listener.sockets[0].getsockname()[1])
        url = server.port_forward_url("sandbox")
        async with await StandInClient.connect(url, PROTOCOL) as client:
            await client.open(streamtype="error", port=port, requestid="1")
            data = await client.open(streamtype="data", port=port, requestid="1")
            await client.write(data, b"x" * 100_000)
            await client.send(frames.rst_stream(data, frames.ResetStatus.CANCEL))
            async with asyncio.timeout(120):
                await ended.wait()


async def test_websocket_channels_start_with_the_port_number(
    server: StreamingServer,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.readexactly(5))
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as listener,
        aiohttp.ClientSession() as session,
    ):
        port = listener.sockets[0].getsockname()[1]
        url = server.port_forward_url("sandbox", [port, 1])
        async with session.ws_connect(url, protocols=("v4.channel.k8s.io",)) as socket:
            await socket.send_bytes(b"\x00hello")
            messages = [message.data async for message in socket]
    for channel, number in ((0, port), (1, port), (2, 1), (3, 1)):
        assert bytes([channel]) + number.to_bytes(2, "little") in messages
    assert b"\x00got hello" in messages
    assert any(m[0] == 3 and m.endswith(b"Nothing listens on port 1 of the pod.") for m in messages)


async def test_websocket_port_forward_requires_ports_in_the_request(
    server: StreamingServer,
) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as failure:
            await session.ws_connect(server.port_forward_url("sandbox"))
    assert failure.value.status == 400


async def test_spdy_is_tunneled_through_websocket(server: StreamingServer, echo_port: int) -> None:
    writer, parser = frames.FrameWriter(), frames.FrameParser()
    port = str(echo_port)
    sent = (
        writer.syn_stream(1, {"streamtype": "error", "port": port, "requestid": "0"})
        + writer.syn_stream(3, {"streamtype": "data", "port": port, "requestid": "0"})
        + frames.data_frame_header(3, 5, fin=True)
        + b"hello"
    )
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            server.port_forward_url("sandbox"), protocols=(port_forward.TUNNEL_PROTOCOL,)
        ) as socket,
    ):
        for start in range(0, len(sent), 3):
            await socket.send_bytes(sent[start : start + 3])
        found = b""
        async for message in socket:
            got = [frame for frame in parser.feed(message.data) if isinstance(frame, frames.Data)]
            found += b"".join(frame.data for frame in got if frame.stream_id == 3)
            if any(frame.fin and frame.stream_id == 3 for frame in got):
                break
    assert found == b"got hello"

"""Exec and attach: the client's streams joined to the runtime, and the end told to the client."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from winpod.cri.streaming import status
from winpod.cri.streaming.api import AttachRequest, Backend, Duplex, ExecRequest, Streams
from winpod.cri.streaming.lost import ClientGone, Connection, unless_lost
from winpod.cri.streaming.resize import Sizes
from winpod.cri.streaming.spdy import SpdyConnection
from winpod.cri.streaming.websocket import ChannelProtocol, WebSocketConnection
from winpod.windows.errors import WinpodError

log = logging.getLogger(__name__)

CommandRequest = ExecRequest | AttachRequest

STREAMS_TIMEOUT = 30.0
RESIZE_SINCE = 3

SPDY_PROTOCOLS = {
    "v5.channel.k8s.io": 5,
    "v4.channel.k8s.io": 4,
    "v3.channel.k8s.io": 3,
    "v2.channel.k8s.io": 2,
    "channel.k8s.io": 1,
}

WEBSOCKET_PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        ChannelProtocol("v5.channel.k8s.io", 5),
        ChannelProtocol("v4.channel.k8s.io", 4),
        ChannelProtocol("v4.base64.channel.k8s.io", 4, base64=True),
        ChannelProtocol("channel.k8s.io", 1),
        ChannelProtocol("base64.channel.k8s.io", 1, base64=True),
        ChannelProtocol("", 1),
    )
}
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)


@dataclass
class CommandStreams:
    """The streams of one client; those it did not ask for are None."""

    error: Duplex
    stdin: Duplex | None = None
    stdout: Duplex | None = None
    stderr: Duplex | None = None
    resize: Duplex | None = None


async def serve_spdy(
    connection: SpdyConnection, request: CommandRequest, backend: Backend, version: int
) -> None:
    """Waits for the client's streams, then runs the request over them."""
    try:
        async with asyncio.timeout(STREAMS_TIMEOUT):
            streams = await _gather(connection, _expected(request, version))
    except (TimeoutError, ClientGone):
        return
    await connection.refuse_more()
    await _serve(connection, streams, request, backend, version)


async def serve_websocket(
    connection: WebSocketConnection, request: CommandRequest, backend: Backend, version: int
) -> None:
    channels = connection.channels
    streams = CommandStreams(
        error=channels[ERROR],
        stdin=channels[STDIN] if request.stdin else None,
        stdout=channels[STDOUT] if request.stdout else None,
        stderr=channels[STDERR] if request.stderr else None,
        resize=channels[RESIZE] if request.tty else None,
    )
    first = STDOUT if request.stdout else STDERR if request.stderr else ERROR
    with contextlib.suppress(ConnectionError):
        await connection.send(first, b"")  # an empty message tells the client that all is set up
    await _serve(connection, streams, request, backend, version)


def readable_channels(request: CommandRequest) -> set[int]:
    """The channels on which a client may send."""
    return ({STDIN} if request.stdin else set()) | ({RESIZE} if request.tty else set())


def _expected(request: CommandRequest, version: int) -> set[str]:
    asked = {"stdin": request.stdin, "stdout": request.stdout, "stderr": request.stderr}
    asked["resize"] = request.tty and version >= RESIZE_SINCE
    return {"error"} | {name for name, wanted in asked.items() if wanted}


async def _gather(connection: SpdyConnection, expected: set[str]) -> CommandStreams:
    found: dict[str, Duplex] = {}
    while expected - found.keys():
        stream = await connection.accept()
        kind = stream.headers.get("streamtype", "")
        if kind in expected - found.keys():
            found[kind] = stream
        else:
            await stream.reset()
    return CommandStreams(**found)


async def _serve(
    connection: Connection,
    streams: CommandStreams,
    request: CommandRequest,
    backend: Backend,
    version: int,
) -> None:
    sizes = Sizes()
    following = None
    if streams.resize is None:
        sizes.end()
    else:
        following = asyncio.create_task(sizes.follow(streams.resize))
    io = Streams(streams.stdin, streams.stdout, streams.stderr, sizes)
    try:
        outcome = await unless_lost(connection, _outcome(backend, request, io))
    finally:
        if following is not None:
            following.cancel()
    if outcome is not None:
        await _tell(streams, status.written(outcome, version))
        await connection.finish()


async def _outcome(backend: Backend, request: CommandRequest, io: Streams) -> status.Status:
    verb = "executing command in" if isinstance(request, ExecRequest) else "attaching to"
    try:
        if isinstance(request, ExecRequest):
            code = await backend.exec(request.container_id, request.command, io, tty=request.tty)
            return status.exited(request.command, code)
        await backend.attach(request.container_id, io, tty=request.tty)
    except WinpodError as error:
        return status.failed(f"error {verb} container: {error}")
    except ConnectionError:
        return status.failed(f"error {verb} container: the client closed a stream that was needed.")
    except Exception:
        log.exception("error %s container %s", verb, request.container_id)
        return status.failed(f"error {verb} container: the runtime failed; its log says how.")
    return status.SUCCESS


async def _tell(streams: CommandStreams, words: bytes) -> None:
    """Output ends first: a client waits for that, and then reads the status."""
    for output in (streams.stdout, streams.stderr):
        if output is not None:
            await output.close()
    with contextlib.suppress(ConnectionError):
        await streams.error.write(words)
    for stream in (streams.error, streams.stdin, streams.resize):
        if stream is not None:
            await stream.close()

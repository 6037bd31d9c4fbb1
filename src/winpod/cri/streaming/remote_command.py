"""Exec and attach: connect the client's streams to the runtime and report the result.

Terminal sizes arrive as a stream of JSON objects. The result is sent as a Status on the error
stream.
"""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from typing import Any

from winpod.cri.streaming.api import (
    AttachRequest,
    ByteReader,
    ClientStreams,
    Duplex,
    ExecRequest,
    StreamingBackend,
    StreamTerminalSize,
)
from winpod.cri.streaming.connection import ClientGone, Connection, cancel_on_disconnect
from winpod.cri.streaming.spdy import SpdyConnection
from winpod.cri.streaming.websocket import ChannelProtocol, WebSocketConnection
from winpod.errors import WinpodError

MAX_LENGTH = 256
MAX_SIZE = 0xFFFF


class InvalidTerminalSize(Exception):
    """The client sent an invalid terminal size."""


class ResizeQueue:
    """Async iterator over terminal sizes. Only the latest size is kept.

    Filled by `read_from`; ends when that returns.
    """

    def __init__(self) -> None:
        self._latest: StreamTerminalSize | None = None
        self._closed = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> "ResizeQueue":
        return self

    async def __anext__(self) -> StreamTerminalSize:
        while self._latest is None:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        size, self._latest = self._latest, None
        return size

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def read_from(self, stream: ByteReader) -> None:
        """Read sizes from `stream` until its end or the first invalid size."""
        decoder = SizeDecoder()
        with contextlib.suppress(ConnectionError, InvalidTerminalSize):
            while data := await stream.read():
                for size in decoder.feed(data):
                    self._latest = size
                    self._changed.set()
        self.close()


class SizeDecoder:
    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[StreamTerminalSize]:
        """Return the sizes completed by these bytes. Sizes below 1 are ignored."""
        self._pending += data
        sizes: list[StreamTerminalSize] = []
        while b"}" in self._pending[:MAX_LENGTH]:
            text, brace, self._pending = self._pending.partition(b"}")
            size = _size(text + brace)
            if size.width >= 1 and size.height >= 1:
                sizes.append(size)
        if len(self._pending) >= MAX_LENGTH:
            raise InvalidTerminalSize("terminal size message too long")
        return sizes


def _size(text: bytes) -> StreamTerminalSize:
    try:
        value = json.loads(text)
        width, height = value["Width"], value["Height"]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidTerminalSize("not an object with Width and Height") from error
    if not (isinstance(width, int) and isinstance(height, int)):
        raise InvalidTerminalSize("width and height are not integers")
    return StreamTerminalSize(min(width, MAX_SIZE), min(height, MAX_SIZE))


JSON_SINCE = 4

Status = dict[str, Any]
SUCCESS: Status = {"metadata": {}, "status": "Success"}


def exit_status(command: tuple[str, ...], code: int) -> Status:
    """Return the status of an exited command. The exit code is unsigned 32-bit, as on Windows."""
    code &= 0xFFFFFFFF
    if code == 0:
        return SUCCESS
    text = " ".join(command)
    return {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code:"
        f" error executing command [{text}], exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure_status(attempt: str, error: WinpodError) -> Status:
    """Return the status of a failed attempt, as the kubelet does. The second cause is an addition.

    Its reason is that of the error. Clients other than winpod ignore it.
    """
    message = f"{attempt}: {error}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {message}",
        "reason": "InternalError",
        "details": {
            "causes": [{"message": message}, {"reason": error.reason, "message": str(error)}]
        },
        "code": 500,
    }


_STREAM_CLOSED = WinpodError("the client closed a required stream.", reason="StreamClosed")
_INTERNAL_ERROR = WinpodError("internal error, see the runtime's log.", reason="InternalError")


def encode_status(status: Status, version: int) -> bytes:
    """Encode a status: JSON since protocol version 4, before that failures only, as text."""
    if version >= JSON_SINCE:
        return json.dumps(status).encode()
    return b"" if status is SUCCESS else str(status["message"]).encode()


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
    """The streams of a client; None for those not requested."""

    error: Duplex
    stdin: Duplex | None = None
    stdout: Duplex | None = None
    stderr: Duplex | None = None
    resize: Duplex | None = None


async def serve_spdy(
    connection: SpdyConnection, request: CommandRequest, backend: StreamingBackend, version: int
) -> None:
    """Wait for the client's streams, then run the request."""
    try:
        async with asyncio.timeout(STREAMS_TIMEOUT):
            streams = await _gather(connection, _expected(request, version))
    except (TimeoutError, ClientGone):
        return
    await connection.reject_new_streams()
    await _serve(connection, streams, request, backend, version)


async def serve_websocket(
    connection: WebSocketConnection,
    request: CommandRequest,
    backend: StreamingBackend,
    version: int,
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
        await connection.send(first, b"")  # an empty message signals readiness
    await _serve(connection, streams, request, backend, version)


def readable_channels(request: CommandRequest) -> set[int]:
    """Return the channels on which a client may send."""
    return ({STDIN} if request.stdin else set()) | ({RESIZE} if request.tty else set())


def _expected(request: CommandRequest, version: int) -> set[str]:
    requested = {"stdin": request.stdin, "stdout": request.stdout, "stderr": request.stderr}
    requested["resize"] = request.tty and version >= RESIZE_SINCE
    return {"error"} | {name for name, is_requested in requested.items() if is_requested}


async def _gather(connection: SpdyConnection, expected: set[str]) -> CommandStreams:
    streams: dict[str, Duplex] = {}
    while expected - streams.keys():
        stream = await connection.accept()
        kind = stream.headers.get("streamtype", "")
        if kind in expected - streams.keys():
            streams[kind] = stream
        else:
            await stream.reset()
    return CommandStreams(**streams)


async def _serve(
    connection: Connection,
    streams: CommandStreams,
    request: CommandRequest,
    backend: StreamingBackend,
    version: int,
) -> None:
    sizes = ResizeQueue()
    resize_task = None
    if streams.resize is None:
        sizes.close()
    else:
        resize_task = asyncio.create_task(sizes.read_from(streams.resize))
    io = ClientStreams(streams.stdin, streams.stdout, streams.stderr, sizes)
    try:
        status = await cancel_on_disconnect(connection, _run(backend, request, io))
    finally:
        if resize_task is not None:
            resize_task.cancel()
    if status is not None:
        await _send_status(streams, encode_status(status, version))
        await connection.finish()


async def _run(backend: StreamingBackend, request: CommandRequest, io: ClientStreams) -> Status:
    verb = "executing command in" if isinstance(request, ExecRequest) else "attaching to"
    attempt = f"error {verb} container"
    try:
        if isinstance(request, ExecRequest):
            code = await backend.exec(request.container_id, request.command, io, tty=request.tty)
            return exit_status(request.command, code)
        await backend.attach(request.container_id, io, tty=request.tty)
    except WinpodError as error:
        return failure_status(attempt, error)
    except ConnectionError:
        return failure_status(attempt, _STREAM_CLOSED)
    except Exception:
        log.exception("Error %s container %s", verb, request.container_id)
        return failure_status(attempt, _INTERNAL_ERROR)
    return SUCCESS


async def _send_status(streams: CommandStreams, text: bytes) -> None:
    """Send the status. Output is closed first: clients wait for its end before the status."""
    for output in (streams.stdout, streams.stderr):
        if output is not None:
            await output.close()
    with contextlib.suppress(ConnectionError):
        await streams.error.write(text)
    for stream in (streams.error, streams.stdin, streams.resize):
        if stream is not None:
            await stream.close()

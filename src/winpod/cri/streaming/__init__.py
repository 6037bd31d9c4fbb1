"""Streaming server for exec, attach and port-forward over SPDY/3.1 and WebSocket.

`server` accepts the connection and negotiates the protocol; `spdy` and `websocket` split it into
streams; `remote_command` and `port_forward` connect those to a `StreamingBackend`.
"""

from winpod.cri.streaming.api import (
    ByteReader,
    ByteWriter,
    ClientStreams,
    StreamingBackend,
    StreamTerminalSize,
)
from winpod.cri.streaming.server import StreamingServer, TooManyRequests

__all__ = [
    "ByteReader",
    "ByteWriter",
    "ClientStreams",
    "StreamTerminalSize",
    "StreamingBackend",
    "StreamingServer",
    "TooManyRequests",
]

"""Exec, attach and port-forward as Kubernetes clients speak them: SPDY/3.1 and WebSocket.

`server` takes the connection and agrees on a protocol; `spdy` and `websocket` make streams of it;
`commands` and `port_forward` join those to the runtime, which is a `Backend`.
"""

from winpod.cri.streaming.api import Backend, ByteReader, ByteWriter, Size, Streams
from winpod.cri.streaming.server import StreamingServer
from winpod.cri.streaming.tokens import TooManyRequests

__all__ = [
    "Backend",
    "ByteReader",
    "ByteWriter",
    "Size",
    "StreamingServer",
    "Streams",
    "TooManyRequests",
]

"""Stand-in for a Kubernetes client: enough HTTP and SPDY to send invalid requests.

The real client is in tests/e2e/streaming_client. This one shares the frame code with the server, so
it verifies behaviour, not the format.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from yarl import URL

from winpod.cri.streaming import spdy_frames as frames

V4 = "v4.channel.k8s.io"


class Refused(Exception):
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.headers = headers
        self.body = body


class StandInClient:
    """Upgraded connection that sends and receives frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = frames.FrameWriter()
        self.next_id = 1
        self._parser = frames.FrameParser()

    @classmethod
    async def connect(
        cls,
        url: str,
        protocols: str | None = V4,
        *,
        upgrade: str = "SPDY/3.1",
        trust: ssl.SSLContext | None = None,
    ) -> Self:
        where = URL(url)
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=trust)
        lines = [
            f"POST {where.raw_path_qs} HTTP/1.1",
            f"Host: {where.authority}",
            "Content-Length: 0",
        ]
        if upgrade:
            lines += ["Connection: Upgrade", f"Upgrade: {upgrade}"]
        if protocols is not None:
            lines.append(f"X-Stream-Protocol-Version: {protocols}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = int(head[0].split()[1])
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
        }
        if status != 101:
            body = await reader.readexactly(int(headers["content-length"]))
            writer.close()
            raise Refused(status, headers, body)
        client = cls(reader, writer)
        client.headers = headers
        return client

    headers: Mapping[str, str]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.close()

    async def open(self, **headers: str) -> int:
        stream_id = self.next_id
        self.next_id += 2
        await self.send(self.frames.syn_stream(stream_id, headers))
        return stream_id

    async def send(self, *parts: bytes) -> None:
        self.writer.writelines(parts)
        await self.writer.drain()

    async def write(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        await self.send(frames.data_frame_header(stream_id, len(data), fin=fin), data)

    async def received(self) -> AsyncIterator[frames.Frame]:
        data = b""  # read by an earlier call
        while True:
            for frame in self._parser.feed(data):
                yield frame
            if not (data := await self.reader.read(65536)):
                return

    async def until(self, kind: type[frames.Frame]) -> frames.Frame:
        async for frame in self.received():
            if isinstance(frame, kind):
                return frame
        raise AssertionError(f"no {kind.__name__} came before the end")

    async def collect(self) -> dict[int, bytes]:
        """Return the data of each stream up to GOAWAY or the end of the connection."""
        found: dict[int, bytes] = {}
        async for frame in self.received():
            if isinstance(frame, frames.Data):
                found[frame.stream_id] = found.get(frame.stream_id, b"") + frame.data
            if isinstance(frame, frames.GoAway):
                break
        return found


@asynccontextmanager
async def exec_client(
    url: str, *streams: str, protocol: str = V4, trust: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[StandInClient, dict[str, int]]]:
    """Open a client with the named streams; return it with the stream ids."""
    async with await StandInClient.connect(url, protocol, trust=trust) as client:
        ids = {name: await client.open(streamtype=name) for name in ("error", *streams)}
        yield client, ids

"""The name server of the pods: names of services and pods from what is known, all others from the
machine's own servers."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from winpod.node.play.dns_wire import (
    Code,
    Kind,
    Question,
    Record,
    answer,
    failure,
    parse_question,
)
from winpod.node.play.services import DOMAIN, Names, is_of_services, reverse_name
from winpod.windows.errors import InvalidInput

_log = logging.getLogger(__name__)
_UPSTREAM_SECONDS = 3.0
_IDLE_SECONDS = 30.0
_MOST_STEPS = 8
RESOLVER_FILE = Path("/etc/resolv.conf")


def decide(
    question: Question, names: Names, domain: str = DOMAIN
) -> tuple[Code, list[Record]] | None:
    """What the cluster itself says; None where the question is for others."""
    name = question.name
    if address := reverse_name(name):
        found = names.reverse.get(address)
        if found is None:
            return (Code.NO_SUCH_NAME, []) if is_of_services(address) else None
        wanted = question.kind == Kind.PTR
        return Code.GOOD, [Record(name, Kind.PTR, found)] if wanted else []
    if name != domain and not name.endswith(f".{domain}"):
        return None
    records: list[Record] = []
    here = name
    for _ in range(_MOST_STEPS):
        if here not in names.aliases:
            break
        records.append(Record(here, Kind.CNAME, names.aliases[here]))
        here = names.aliases[here]
    records += _of(here, question.kind, names)
    if records or names.knows(name) or name == domain:
        return Code.GOOD, records
    return Code.NO_SUCH_NAME, []


def _of(name: str, kind: int, names: Names) -> list[Record]:
    if kind in (Kind.A, Kind.AAAA):
        return [
            Record(name, Kind(kind), address)
            for address in names.addresses.get(name, ())
            if (":" in address) == (kind == Kind.AAAA)
        ]
    if kind == Kind.SRV:
        return [Record(name, Kind.SRV, host, port) for port, host in names.ports.get(name, ())]
    return []


def upstream_servers(file: Path = RESOLVER_FILE) -> list[str]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return []
    words = (line.split() for line in lines)
    return [pair[1] for pair in words if len(pair) > 1 and pair[0] == "nameserver"]


class NameServer:
    """Answers at one address, over UDP and TCP. `names` is asked for each question anew."""

    def __init__(
        self,
        names: Callable[[], Names],
        upstream: Callable[[], Sequence[str]] = upstream_servers,
        upstream_port: int = 53,
    ) -> None:
        self._names = names
        self._upstream = upstream
        self._upstream_port = upstream_port
        self._datagrams: asyncio.DatagramTransport | None = None
        self._streams: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str, port: int = 53) -> int:
        """The port that it listens on, which is another one for 0."""
        loop = asyncio.get_running_loop()
        self._streams = await asyncio.start_server(self._serve, address, port)
        port = self._streams.sockets[0].getsockname()[1]
        self._datagrams, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self._datagram), local_addr=(address, port)
        )
        return port

    async def stop(self) -> None:
        if self._datagrams:
            self._datagrams.close()
        if self._streams:
            self._streams.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _datagram(self, transport: asyncio.DatagramTransport, data: bytes, sender: object) -> None:
        async def respond() -> None:
            reply = await self.reply(data, over_udp=True)
            if reply and not transport.is_closing():
                transport.sendto(reply, sender)  # type: ignore[arg-type]

        task = asyncio.create_task(respond())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                while True:
                    (length,) = struct.unpack("!H", await reader.readexactly(2))
                    reply = await self.reply(await reader.readexactly(length), over_udp=False)
                    writer.write(struct.pack("!H", len(reply)) + reply)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()

    async def reply(self, data: bytes, *, over_udp: bool) -> bytes:
        try:
            question = parse_question(data)
        except InvalidInput:
            return failure(data, Code.MALFORMED)
        if not question.is_query:
            return failure(data, Code.NOT_IMPLEMENTED)
        decided = decide(question, self._names())
        if decided is None:
            return await self._ask_others(data, over_udp=over_udp)
        code, records = decided
        if records and records[-1].kind is Kind.CNAME and question.kind != Kind.CNAME:
            records += await self._follow(records[-1].value, question)
        if len({record.kind for record in records}) == 1:
            random.shuffle(records)
        limit = question.room if over_udp else 65535
        return answer(question, records, code=code, domain=DOMAIN, limit=limit)

    async def _follow(self, name: str, question: Question) -> list[Record]:
        """The addresses behind a name of the world, so that the client need not ask again."""
        if question.kind not in (Kind.A, Kind.AAAA):
            return []
        loop = asyncio.get_running_loop()
        family = 2 if question.kind == Kind.A else 10
        try:
            async with asyncio.timeout(_UPSTREAM_SECONDS):
                found = await loop.getaddrinfo(name, None, family=family, type=1)
        except (OSError, TimeoutError):
            return []
        return [Record(name, Kind(question.kind), str(item[4][0])) for item in found]

    async def _ask_others(self, data: bytes, *, over_udp: bool) -> bytes:
        for server in self._upstream():
            try:
                async with asyncio.timeout(_UPSTREAM_SECONDS):
                    if over_udp:
                        return await _ask_udp(server, self._upstream_port, data)
                    return await _ask_tcp(server, self._upstream_port, data)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                _log.debug("the name server %s did not answer: %r", server, error)
        return answer(parse_question(data), (), code=Code.FAILED)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, taken: Callable[[asyncio.DatagramTransport, bytes, object], None]) -> None:
        self._taken = taken
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._transport:
            self._taken(self._transport, data, addr)


class _Answer(asyncio.DatagramProtocol):
    def __init__(self, id_: bytes) -> None:
        self._id = id_
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        del addr
        if data[:2] == self._id and not self.received.done():
            self.received.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.received.done():
            self.received.set_exception(error)


async def _ask_udp(server: str, port: int, data: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _Answer(data[:2]), remote_addr=(server, port)
    )
    try:
        transport.sendto(data)
        return await protocol.received
    finally:
        transport.close()


async def _ask_tcp(server: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server, port)
    try:
        writer.write(struct.pack("!H", len(data)) + data)
        await writer.drain()
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()

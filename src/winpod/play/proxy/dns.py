"""DNS server for pods, and the wire format it needs.

Names of services and pods are answered from the cluster's records; all others are forwarded to the
upstream servers of the machine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from pathlib import Path

from winpod.errors import InvalidInput
from winpod.play.proxy.endpoints import DOMAIN, DnsNames, is_service_address, reverse_name

UDP_LIMIT = 512
_HEADER = struct.Struct("!HHHHHH")
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0200, 0x0080
_RECURSION_DESIRED, _OPCODE = 0x0100, 0x7800
_INTERNET = 1


class RecordType(IntEnum):
    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    AAAA = 28
    SRV = 33
    OPT = 41


class ResponseCode(IntEnum):
    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a DNS query; `udp_size` is the largest reply over UDP."""

    id: int
    name: str
    kind: int
    flags: int = _RECURSION_DESIRED
    raw: bytes = b""
    udp_size: int = UDP_LIMIT
    has_options: bool = False
    class_: int = _INTERNET

    @property
    def is_query(self) -> bool:
        return not self.flags & (_RESPONSE | _OPCODE)


@dataclass(frozen=True, slots=True)
class Record:
    """`value` is an address or a name; SRV has a name and a port."""

    name: str
    kind: RecordType
    value: str
    port: int = 0


def parse_question(data: bytes) -> Question:
    """Parse a message with exactly one question; raise InvalidInput for anything else."""
    try:
        id_, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
        if questions != 1:
            raise InvalidInput("The DNS message must have exactly one question.")
        name, offset = _read_name(data, _HEADER.size)
        kind, class_ = struct.unpack_from("!HH", data, offset)
        end = offset + 4
        udp_size, has_options = UDP_LIMIT, False
        offset = end
        for _ in range(answers + authorities + additional):
            _, offset = _read_name(data, offset)
            kind_of_record, size, _, length = struct.unpack_from("!HHIH", data, offset)
            offset += 10 + length
            if kind_of_record == RecordType.OPT:
                udp_size, has_options = max(size, UDP_LIMIT), True
    except (struct.error, IndexError):
        raise InvalidInput("The data is not a DNS message.") from None
    raw = data[_HEADER.size : end]
    return Question(id_, name, kind, flags, raw, udp_size, has_options, class_)


def _read_name(data: bytes, offset: int) -> tuple[str, int]:
    labels = []
    end = 0
    jumps = 0
    while length := data[offset]:
        if length >= 0xC0:
            end = end or offset + 2
            offset = (length & 0x3F) << 8 | data[offset + 1]
            jumps += 1
            if jumps > 16:
                raise InvalidInput("The DNS name has a compression loop.")
            continue
        labels.append(data[offset + 1 : offset + 1 + length].decode("ascii", "replace"))
        offset += 1 + length
        if len(labels) > 127:
            raise InvalidInput("The DNS name is too long.")
    return ".".join(labels).lower(), end or offset + 1


def encode_answer(
    question: Question,
    records: Sequence[Record],
    *,
    code: ResponseCode = ResponseCode.NOERROR,
    domain: str = "",
    limit: int = 65535,
) -> bytes:
    """Encode a reply; with a domain it is authoritative, with a SOA record if it is empty."""
    flags = (
        _RESPONSE | _RECURSION_AVAILABLE | question.flags & (_RECURSION_DESIRED | _OPCODE) | code
    )
    flags |= _AUTHORITATIVE if domain else 0
    authority = b""
    if domain and not records:
        authority = _soa_record(domain)
    options = (
        b"\0" + struct.pack("!HHIH", RecordType.OPT, 1232, 0, 0) if question.has_options else b""
    )
    body = b"".join(_record(record) for record in records)
    counts = (1, len(records), bool(authority), bool(options))
    message = _HEADER.pack(question.id, flags, *counts) + question.raw + body + authority + options
    if len(message) <= limit:
        return message
    empty = (1, 0, 0, bool(options))
    return _HEADER.pack(question.id, flags | _TRUNCATED, *empty) + question.raw + options


def _record(record: Record, seconds: int = 5) -> bytes:
    match record.kind:
        case RecordType.A | RecordType.AAAA:
            data = ip_address(record.value).packed
        case RecordType.SRV:
            data = struct.pack("!HHH", 0, 100, record.port) + encode_name(record.value)
        case _:
            data = encode_name(record.value)
    head = encode_name(record.name) + struct.pack(
        "!HHIH", record.kind, _INTERNET, seconds, len(data)
    )
    return head + data


def _soa_record(domain: str) -> bytes:
    times = struct.pack("!IIIII", 1, 7200, 1800, 86400, 5)
    data = encode_name(f"ns.dns.{domain}") + encode_name(f"hostmaster.{domain}") + times
    return (
        encode_name(domain) + struct.pack("!HHIH", RecordType.SOA, _INTERNET, 5, len(data)) + data
    )


def encode_name(name: str) -> bytes:
    labels = [label.encode("ascii", "replace") for label in name.split(".") if label]
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def encode_failure(data: bytes, code: ResponseCode) -> bytes:
    """Encode an error reply to a message that could not be parsed."""
    id_ = data[:2].ljust(2, b"\0")
    return id_ + struct.pack("!HHHHH", _RESPONSE | _RECURSION_AVAILABLE | code, 0, 0, 0, 0)


_log = logging.getLogger(__name__)
_UPSTREAM_SECONDS = 3.0
_IDLE_SECONDS = 30.0
_MAX_ALIASES = 8
RESOLVER_FILE = Path("/etc/resolv.conf")


def answer_cluster_name(
    question: Question, names: DnsNames, domain: str = DOMAIN
) -> tuple[ResponseCode, list[Record]] | None:
    """Answer from the cluster's records; None if the name is not part of the cluster."""
    name = question.name
    if address := reverse_name(name):
        host = names.reverse.get(address)
        if host is None:
            return (ResponseCode.NXDOMAIN, []) if is_service_address(address) else None
        matches = question.kind == RecordType.PTR
        return ResponseCode.NOERROR, [Record(name, RecordType.PTR, host)] if matches else []
    if name != domain and not name.endswith(f".{domain}"):
        return None
    records: list[Record] = []
    target = name
    for _ in range(_MAX_ALIASES):
        if target not in names.aliases:
            break
        records.append(Record(target, RecordType.CNAME, names.aliases[target]))
        target = names.aliases[target]
    records += _records_of(target, question.kind, names)
    if records or names.contains(name) or name == domain:
        return ResponseCode.NOERROR, records
    return ResponseCode.NXDOMAIN, []


def _records_of(name: str, kind: int, names: DnsNames) -> list[Record]:
    if kind in (RecordType.A, RecordType.AAAA):
        return [
            Record(name, RecordType(kind), address)
            for address in names.addresses.get(name, ())
            if (":" in address) == (kind == RecordType.AAAA)
        ]
    if kind == RecordType.SRV:
        return [
            Record(name, RecordType.SRV, host, port) for port, host in names.ports.get(name, ())
        ]
    return []


def upstream_servers(path: Path = RESOLVER_FILE) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    fields = (line.split() for line in lines)
    return [pair[1] for pair in fields if len(pair) > 1 and pair[0] == "nameserver"]


class DnsServer:
    """DNS server on one address, over UDP and TCP. `names` is called for every question."""

    def __init__(
        self,
        names: Callable[[], DnsNames],
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
        """Start listening and return the port, which is chosen by the kernel for port 0."""
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
            return encode_failure(data, ResponseCode.FORMERR)
        if not question.is_query:
            return encode_failure(data, ResponseCode.NOTIMP)
        if question.class_ != _INTERNET:
            return encode_answer(question, (), code=ResponseCode.REFUSED)
        decided = answer_cluster_name(question, self._names())
        if decided is None:
            return await self._forward(data, over_udp=over_udp)
        code, records = decided
        if records and records[-1].kind is RecordType.CNAME and question.kind != RecordType.CNAME:
            records += await self._follow(records[-1].value, question)
        if len({record.kind for record in records}) == 1:
            random.shuffle(records)
        limit = question.udp_size if over_udp else 65535
        return encode_answer(question, records, code=code, domain=DOMAIN, limit=limit)

    async def _follow(self, name: str, question: Question) -> list[Record]:
        """Resolve the target of an external alias, so that the client need not ask again."""
        if question.kind not in (RecordType.A, RecordType.AAAA):
            return []
        loop = asyncio.get_running_loop()
        family = 2 if question.kind == RecordType.A else 10
        try:
            async with asyncio.timeout(_UPSTREAM_SECONDS):
                results = await loop.getaddrinfo(name, None, family=family, type=1)
        except (OSError, TimeoutError):
            return []
        return [Record(name, RecordType(question.kind), str(result[4][0])) for result in results]

    async def _forward(self, data: bytes, *, over_udp: bool) -> bytes:
        for server in self._upstream():
            try:
                async with asyncio.timeout(_UPSTREAM_SECONDS):
                    if over_udp:
                        return await _forward_udp(server, self._upstream_port, data)
                    return await _forward_tcp(server, self._upstream_port, data)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                _log.debug("DNS upstream %s failed: %r", server, error)
        return encode_answer(parse_question(data), (), code=ResponseCode.SERVFAIL)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, handle: Callable[[asyncio.DatagramTransport, bytes, object], None]) -> None:
        self._handle = handle
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._transport:
            self._handle(self._transport, data, addr)


class _UpstreamReply(asyncio.DatagramProtocol):
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


async def _forward_udp(server: str, port: int, data: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _UpstreamReply(data[:2]), remote_addr=(server, port)
    )
    try:
        transport.sendto(data)
        return await protocol.received
    finally:
        transport.close()


async def _forward_tcp(server: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server, port)
    try:
        writer.write(struct.pack("!H", len(data)) + data)
        await writer.drain()
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()

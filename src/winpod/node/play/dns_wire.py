"""Questions and answers of the domain name system, as bytes: as much as a resolver asks for."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address

from winpod.windows.errors import InvalidInput

UDP_LIMIT = 512
_HEADER = struct.Struct("!HHHHHH")
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _RECURSION_OFFERED = 0x8000, 0x0400, 0x0200, 0x0080
_RECURSION_WANTED, _OPCODE = 0x0100, 0x7800
_INTERNET = 1


class Kind(IntEnum):
    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    AAAA = 28
    SRV = 33
    OPT = 41


class Code(IntEnum):
    GOOD = 0
    MALFORMED = 1
    FAILED = 2
    NO_SUCH_NAME = 3
    NOT_IMPLEMENTED = 4
    REFUSED = 5


@dataclass(frozen=True, slots=True)
class Question:
    """`room` is how long an answer over UDP may be."""

    id: int
    name: str
    kind: int
    flags: int = _RECURSION_WANTED
    raw: bytes = b""
    room: int = UDP_LIMIT
    has_options: bool = False

    @property
    def is_query(self) -> bool:
        return not self.flags & (_RESPONSE | _OPCODE)


@dataclass(frozen=True, slots=True)
class Record:
    """`value` is an address or a name; a port and a name for SRV."""

    name: str
    kind: Kind
    value: str
    port: int = 0


def parse_question(data: bytes) -> Question:
    """The one question of a message; anything else is InvalidInput."""
    try:
        id_, flags, questions, answers, authorities, further = _HEADER.unpack_from(data)
        if questions != 1:
            raise InvalidInput("a message has to ask one question.")
        name, at = _read_name(data, _HEADER.size)
        kind, class_ = struct.unpack_from("!HH", data, at)
        end = at + 4
        room, has_options = UDP_LIMIT, False
        at = end
        for _ in range(answers + authorities + further):
            _, at = _read_name(data, at)
            of, size, _, length = struct.unpack_from("!HHIH", data, at)
            at += 10 + length
            if of == Kind.OPT:
                room, has_options = max(size, UDP_LIMIT), True
    except (struct.error, IndexError):
        raise InvalidInput("it is no message of the domain name system.") from None
    del class_
    return Question(id_, name, kind, flags, data[_HEADER.size : end], room, has_options)


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    labels = []
    end = 0
    jumps = 0
    while length := data[at]:
        if length >= 0xC0:
            end = end or at + 2
            at = (length & 0x3F) << 8 | data[at + 1]
            jumps += 1
            if jumps > 16:
                raise InvalidInput("a name leads back to itself.")
            continue
        labels.append(data[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
        if len(labels) > 127:
            raise InvalidInput("a name is too long.")
    return ".".join(labels).lower(), end or at + 1


def answer(
    question: Question,
    records: Sequence[Record],
    *,
    code: Code = Code.GOOD,
    domain: str = "",
    limit: int = 65535,
) -> bytes:
    """With a domain, the answer is given by whom it belongs to, and says so."""
    flags = _RESPONSE | _RECURSION_OFFERED | question.flags & (_RECURSION_WANTED | _OPCODE) | code
    flags |= _AUTHORITATIVE if domain else 0
    authority = b""
    if domain and not records:
        authority = _nothing_here(domain)
    options = b"\0" + struct.pack("!HHIH", Kind.OPT, 1232, 0, 0) if question.has_options else b""
    body = b"".join(_record(record) for record in records)
    counts = (1, len(records), bool(authority), bool(options))
    message = _HEADER.pack(question.id, flags, *counts) + question.raw + body + authority + options
    if len(message) <= limit:
        return message
    empty = (1, 0, 0, bool(options))
    return _HEADER.pack(question.id, flags | _TRUNCATED, *empty) + question.raw + options


def _record(record: Record, seconds: int = 5) -> bytes:
    match record.kind:
        case Kind.A | Kind.AAAA:
            data = ip_address(record.value).packed
        case Kind.SRV:
            data = struct.pack("!HHH", 0, 100, record.port) + encode_name(record.value)
        case _:
            data = encode_name(record.value)
    head = encode_name(record.name) + struct.pack(
        "!HHIH", record.kind, _INTERNET, seconds, len(data)
    )
    return head + data


def _nothing_here(domain: str) -> bytes:
    times = struct.pack("!IIIII", 1, 7200, 1800, 86400, 5)
    data = encode_name(f"ns.dns.{domain}") + encode_name(f"hostmaster.{domain}") + times
    return encode_name(domain) + struct.pack("!HHIH", Kind.SOA, _INTERNET, 5, len(data)) + data


def encode_name(name: str) -> bytes:
    labels = [label.encode("ascii", "replace") for label in name.split(".") if label]
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def failure(data: bytes, code: Code) -> bytes:
    """What can be said to a message that is none."""
    id_ = data[:2].ljust(2, b"\0")
    return id_ + struct.pack("!HHHHH", _RESPONSE | _RECURSION_OFFERED | code, 0, 0, 0, 0)

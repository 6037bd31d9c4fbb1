"""SPDY/3.1 frames as bytes and as data: no I/O, and nothing but `SpdyError` for bad bytes.

Written here because PyPI has no maintained library for SPDY, which Kubernetes alone still speaks.
What arrives may be cut anywhere and is bounded everywhere: a data frame is handed on in pieces as
it comes, a control frame and what its headers expand to have a limit.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from winpod.cri.streaming.spdy_dictionary import DICTIONARY

VERSION = 3
MAX_CONTROL_LENGTH = 64 * 1024
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_DATA_LENGTH = (1 << 24) - 1
MAX_STREAM_ID = MAX_WINDOW = 0x7FFFFFFF

FIN = 0x01


class Kind(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class Reset(IntEnum):
    """Why a stream was reset."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7


class Leaving(IntEnum):
    """Why a connection ends."""

    OK = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


INITIAL_WINDOW_SIZE = 7


class SpdyError(Exception):
    """The bytes are not SPDY/3.1, or more than is let in; the connection cannot go on."""


@dataclass(frozen=True)
class SynStream:
    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True)
class SynReply:
    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True)
class Headers:
    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True)
class Data:
    """A data frame, or a piece of one: only the last piece of a frame can carry `fin`."""

    stream_id: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True)
class RstStream:
    stream_id: int
    status: int


@dataclass(frozen=True)
class Settings:
    values: Mapping[int, int]


@dataclass(frozen=True)
class Ping:
    ping_id: int


@dataclass(frozen=True)
class GoAway:
    last_stream_id: int
    status: int


@dataclass(frozen=True)
class WindowUpdate:
    stream_id: int  # 0 is the connection
    delta: int


Frame = SynStream | SynReply | Headers | Data | RstStream | Settings | Ping | GoAway | WindowUpdate


class FrameParser:
    """Bytes in, frames out. After a `SpdyError` it must not be fed again."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data_stream = 0
        self._data_left = 0
        self._data_fin = False
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames, and pieces of data frames, that these bytes complete."""
        self._pending += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._data_left:
            return self._piece_of_data()
        if len(self._pending) < 8:
            return None
        first, second = struct.unpack_from(">II", self._pending)
        flags, length = second >> 24, second & 0xFFFFFF
        if first & 0x80000000:
            return self._control(first, flags, length)
        if first == 0:
            raise SpdyError("A data frame names no stream.")
        self._take(8)
        self._data_stream, self._data_left, self._data_fin = first, length, bool(flags & FIN)
        return self._piece_of_data() if length else Data(first, b"", self._data_fin)

    def _piece_of_data(self) -> Data | None:
        if not self._pending:
            return None
        piece = self._take(self._data_left)
        self._data_left -= len(piece)
        return Data(self._data_stream, piece, self._data_fin and not self._data_left)

    def _control(self, first: int, flags: int, length: int) -> Frame | None:
        version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
        if version != VERSION:
            raise SpdyError(f"A control frame is of SPDY version {version}, not {VERSION}.")
        if length > MAX_CONTROL_LENGTH:
            raise SpdyError(f"A control frame is {length} bytes long, over {MAX_CONTROL_LENGTH}.")
        if len(self._pending) < 8 + length:
            return None
        body = self._take(8 + length)[8:]
        try:
            return self._frame(Kind(kind), flags, body)
        except (ValueError, struct.error) as error:
            raise SpdyError(f"A control frame of type {kind} is malformed.") from error

    def _frame(self, kind: Kind, flags: int, body: bytes) -> Frame:
        match kind:
            case Kind.SYN_STREAM:
                stream_id = _stream_id(struct.unpack_from(">IIH", body)[0])
                return SynStream(stream_id, self._headers(body[10:]), bool(flags & FIN))
            case Kind.SYN_REPLY | Kind.HEADERS:
                stream_id = _stream_id(struct.unpack_from(">I", body)[0])
                made = SynReply if kind is Kind.SYN_REPLY else Headers
                return made(stream_id, self._headers(body[4:]), bool(flags & FIN))
            case Kind.RST_STREAM:
                stream_id, status = struct.unpack(">II", body)
                return RstStream(_stream_id(stream_id), status)
            case Kind.SETTINGS:
                (count,) = struct.unpack_from(">I", body)
                entries = struct.iter_unpack(">II", body[4:])
                values = {entry[0] & 0xFFFFFF: entry[1] for entry in entries}
                if len(body) != 4 + 8 * count:
                    raise SpdyError("A SETTINGS frame has another length than its count says.")
                return Settings(values)
            case Kind.PING:
                return Ping(*struct.unpack(">I", body))
            case Kind.GOAWAY:
                last, status = struct.unpack(">II", body)
                return GoAway(last & MAX_STREAM_ID, status)
            case Kind.WINDOW_UPDATE:
                stream_id, delta = struct.unpack(">II", body)
                return WindowUpdate(stream_id & MAX_STREAM_ID, delta & MAX_WINDOW)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            text = self._inflate.decompress(block, MAX_HEADER_BYTES)
        except zlib.error as error:
            raise SpdyError("A header block does not decompress.") from error
        if self._inflate.unconsumed_tail:
            raise SpdyError(f"A header block expands to more than {MAX_HEADER_BYTES} bytes.")
        (count,) = struct.unpack_from(">I", text)
        if count > MAX_HEADERS:
            raise SpdyError(f"A header block has {count} headers, over {MAX_HEADERS}.")
        headers: dict[str, str] = {}
        offset = 4
        for _ in range(count):
            name, offset = _string(text, offset)
            value, offset = _string(text, offset)
            if name in headers:
                raise SpdyError(f"A header block has {name!r} twice.")
            headers[name] = value
        if offset != len(text):
            raise SpdyError("A header block goes on after its last header.")
        return headers

    def _take(self, count: int) -> bytes:
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken


class FrameWriter:
    """Frames to bytes. Header blocks share one compressor: write them out in the order made."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def syn_stream(self, stream_id: int, headers: Mapping[str, str], *, fin: bool = False) -> bytes:
        body = struct.pack(">IIH", stream_id, 0, 0) + self._block(headers)
        return _control(Kind.SYN_STREAM, body, FIN if fin else 0)

    def syn_reply(self, stream_id: int, headers: Mapping[str, str]) -> bytes:
        return _control(Kind.SYN_REPLY, struct.pack(">I", stream_id) + self._block(headers))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        parts = [struct.pack(">I", len(headers))]
        for text in (text for item in headers.items() for text in item):
            encoded = text.encode()
            parts += [struct.pack(">I", len(encoded)), encoded]
        return self._deflate.compress(b"".join(parts)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data_head(stream_id: int, length: int, *, fin: bool = False) -> bytes:
    """What goes before the `length` bytes of a data frame."""
    return struct.pack(">II", stream_id, (FIN if fin else 0) << 24 | length)


def rst_stream(stream_id: int, status: Reset) -> bytes:
    return _control(Kind.RST_STREAM, struct.pack(">II", stream_id, status))


def settings(values: Mapping[int, int]) -> bytes:
    entries = b"".join(struct.pack(">II", key, value) for key, value in values.items())
    return _control(Kind.SETTINGS, struct.pack(">I", len(values)) + entries)


def ping(ping_id: int) -> bytes:
    return _control(Kind.PING, struct.pack(">I", ping_id))


def goaway(last_stream_id: int, status: Leaving) -> bytes:
    return _control(Kind.GOAWAY, struct.pack(">II", last_stream_id, status))


def window_update(stream_id: int, delta: int) -> bytes:
    return _control(Kind.WINDOW_UPDATE, struct.pack(">II", stream_id, delta))


def _control(kind: Kind, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HHI", 0x8000 | VERSION, kind, flags << 24 | len(body)) + body


def _stream_id(number: int) -> int:
    if not 0 < number <= MAX_STREAM_ID:
        raise SpdyError(f"A frame names stream {number}, which cannot be.")
    return number


def _string(text: bytes, offset: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">I", text, offset)
    end = offset + 4 + length
    if end > len(text):
        raise SpdyError("A header is longer than its block.")
    return text[offset + 4 : end].decode("latin-1"), end

"""Parser and serializer of SPDY/3.1 frames, without I/O. Raises only `SpdyError` on bad input.

Implemented here because PyPI has no maintained SPDY library. Input may be split anywhere and is
bounded: data frames are passed on in chunks, control frames and decompressed headers have a limit.

DICTIONARY is the zlib dictionary of SPDY/3 header blocks (SPDY draft 3.1, section 2.6.10.1): HTTP
words with a length prefix, followed by status codes and values. Its Adler-32 is 0xe3c6a7c2.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

_DICTIONARY_WORDS = """
options head post put delete trace accept accept-charset accept-encoding accept-language
accept-ranges age allow authorization cache-control connection content-base content-encoding
content-language content-length content-location content-md5 content-range content-type date etag
expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since
last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer
retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""

_DICTIONARY_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
    "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
    "503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 "
    "Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
    "gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _length_prefixed(word: str) -> bytes:
    text = word.replace("_", " ").encode()
    return len(text).to_bytes(4, "big") + text


DICTIONARY = b"".join(map(_length_prefixed, _DICTIONARY_WORDS.split())) + _DICTIONARY_TAIL.encode()


VERSION = 3
MAX_CONTROL_LENGTH = 64 * 1024
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_DATA_LENGTH = (1 << 24) - 1
MAX_STREAM_ID = MAX_WINDOW = 0x7FFFFFFF

FIN = 0x01


class FrameType(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class ResetStatus(IntEnum):
    """Status codes of RST_STREAM."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7


class GoAwayStatus(IntEnum):
    """Status codes of GOAWAY."""

    OK = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


INITIAL_WINDOW_SIZE = 7


class SpdyError(Exception):
    """Invalid or oversized SPDY/3.1 input. The connection must be closed."""


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
    """A data frame or a chunk of one. Only the last chunk of a frame can have `fin`."""

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
    """Incremental frame parser. Must not be used after a `SpdyError`."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data_stream = 0
        self._data_left = 0
        self._data_fin = False
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames and chunks of data frames completed by these bytes."""
        self._pending += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._data_left:
            return self._data_chunk()
        if len(self._pending) < 8:
            return None
        first, second = struct.unpack_from(">II", self._pending)
        flags, length = second >> 24, second & 0xFFFFFF
        if first & 0x80000000:
            return self._control(first, flags, length)
        if first == 0:
            raise SpdyError("A data frame has stream id 0.")
        self._take(8)
        self._data_stream, self._data_left, self._data_fin = first, length, bool(flags & FIN)
        return self._data_chunk() if length else Data(first, b"", self._data_fin)

    def _data_chunk(self) -> Data | None:
        if not self._pending:
            return None
        chunk = self._take(self._data_left)
        self._data_left -= len(chunk)
        return Data(self._data_stream, chunk, self._data_fin and not self._data_left)

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
            return self._frame(FrameType(kind), flags, body)
        except (ValueError, struct.error) as error:
            raise SpdyError(f"A control frame of type {kind} is malformed.") from error

    def _frame(self, kind: FrameType, flags: int, body: bytes) -> Frame:
        match kind:
            case FrameType.SYN_STREAM:
                stream_id = _stream_id(struct.unpack_from(">IIH", body)[0])
                return SynStream(stream_id, self._headers(body[10:]), bool(flags & FIN))
            case FrameType.SYN_REPLY | FrameType.HEADERS:
                stream_id = _stream_id(struct.unpack_from(">I", body)[0])
                frame_class = SynReply if kind is FrameType.SYN_REPLY else Headers
                return frame_class(stream_id, self._headers(body[4:]), bool(flags & FIN))
            case FrameType.RST_STREAM:
                stream_id, status = struct.unpack(">II", body)
                return RstStream(_stream_id(stream_id), status)
            case FrameType.SETTINGS:
                (count,) = struct.unpack_from(">I", body)
                entries = struct.iter_unpack(">II", body[4:])
                values = {entry[0] & 0xFFFFFF: entry[1] for entry in entries}
                if len(body) != 4 + 8 * count:
                    raise SpdyError("The length of a SETTINGS frame does not match its count.")
                return Settings(values)
            case FrameType.PING:
                return Ping(*struct.unpack(">I", body))
            case FrameType.GOAWAY:
                last, status = struct.unpack(">II", body)
                return GoAway(last & MAX_STREAM_ID, status)
            case FrameType.WINDOW_UPDATE:
                stream_id, delta = struct.unpack(">II", body)
                return WindowUpdate(stream_id & MAX_STREAM_ID, delta & MAX_WINDOW)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            text = self._inflate.decompress(block, MAX_HEADER_BYTES)
        except zlib.error as error:
            raise SpdyError("A header block cannot be decompressed.") from error
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
                raise SpdyError(f"A header block contains {name!r} twice.")
            headers[name] = value
        if offset != len(text):
            raise SpdyError("A header block has trailing data.")
        return headers

    def _take(self, count: int) -> bytes:
        data = bytes(self._pending[:count])
        del self._pending[:count]
        return data


class FrameWriter:
    """Frame serializer. Header blocks share a compressor: send them in the order created."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def syn_stream(self, stream_id: int, headers: Mapping[str, str], *, fin: bool = False) -> bytes:
        body = struct.pack(">IIH", stream_id, 0, 0) + self._block(headers)
        return _control(FrameType.SYN_STREAM, body, FIN if fin else 0)

    def syn_reply(self, stream_id: int, headers: Mapping[str, str]) -> bytes:
        return _control(FrameType.SYN_REPLY, struct.pack(">I", stream_id) + self._block(headers))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        parts = [struct.pack(">I", len(headers))]
        for text in (text for item in headers.items() for text in item):
            encoded = text.encode()
            parts += [struct.pack(">I", len(encoded)), encoded]
        return self._deflate.compress(b"".join(parts)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data_frame_header(stream_id: int, length: int, *, fin: bool = False) -> bytes:
    """Return the header of a data frame of `length` bytes."""
    return struct.pack(">II", stream_id, (FIN if fin else 0) << 24 | length)


def rst_stream(stream_id: int, status: ResetStatus) -> bytes:
    return _control(FrameType.RST_STREAM, struct.pack(">II", stream_id, status))


def settings(values: Mapping[int, int]) -> bytes:
    entries = b"".join(struct.pack(">II", key, value) for key, value in values.items())
    return _control(FrameType.SETTINGS, struct.pack(">I", len(values)) + entries)


def ping(ping_id: int) -> bytes:
    return _control(FrameType.PING, struct.pack(">I", ping_id))


def goaway(last_stream_id: int, status: GoAwayStatus) -> bytes:
    return _control(FrameType.GOAWAY, struct.pack(">II", last_stream_id, status))


def window_update(stream_id: int, delta: int) -> bytes:
    return _control(FrameType.WINDOW_UPDATE, struct.pack(">II", stream_id, delta))


def _control(kind: FrameType, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HHI", 0x8000 | VERSION, kind, flags << 24 | len(body)) + body


def _stream_id(number: int) -> int:
    if not 0 < number <= MAX_STREAM_ID:
        raise SpdyError(f"A frame has the invalid stream id {number}.")
    return number


def _string(text: bytes, offset: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">I", text, offset)
    end = offset + 4 + length
    if end > len(text):
        raise SpdyError("A header is longer than its block.")
    return text[offset + 4 : end].decode("latin-1"), end

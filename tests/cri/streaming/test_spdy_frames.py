"""The SPDY frame parser: any input yields frames or a SpdyError."""

import contextlib
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.spdy_frame_strategies import encoded, frame_values
from winpod.cri.streaming import spdy_frames as frames
from winpod.cri.streaming.spdy_frames import DICTIONARY


def chunks(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def joined(pieces: Sequence[frames.Frame]) -> list[frames.Frame]:
    """Join the chunks of a data frame."""
    whole: list[frames.Frame] = []
    open_frame = False
    for piece in pieces:
        last = whole[-1] if whole else None
        if open_frame and isinstance(piece, frames.Data) and isinstance(last, frames.Data):
            whole[-1] = frames.Data(last.stream_id, last.data + piece.data, piece.fin)
        else:
            whole.append(piece)
        open_frame = isinstance(piece, frames.Data)
    return whole


@given(st.lists(frame_values(), max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_parsed_across_chunks(sent: list[frames.Frame], cuts: list[int]) -> None:
    separated: list[frames.Frame] = [
        frame
        for each in sent
        for frame in (each, frames.Ping(1))  # separates data frames
    ]
    writer, parser = frames.FrameWriter(), frames.FrameParser()
    data = b"".join(encoded(writer, frame) for frame in separated)
    got = [frame for chunk in chunks(data, cuts) for frame in parser.feed(chunk)]
    assert joined(got) == separated


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_any_bytes_give_frames_or_a_spdy_error(data: bytes, cuts: list[int]) -> None:
    parser = frames.FrameParser()
    with contextlib.suppress(frames.SpdyError):
        for chunk in chunks(data, cuts):
            list(parser.feed(chunk))


@given(st.sampled_from([*frames.FrameType, 5, 10]), st.integers(0, 255), st.binary(max_size=60))
def test_any_control_frame_gives_a_frame_or_a_spdy_error(
    kind: int, flags: int, body: bytes
) -> None:
    data = struct.pack(">HHI", 0x8003, kind, flags << 24 | len(body)) + body
    with contextlib.suppress(frames.SpdyError):
        assert len(list(frames.FrameParser().feed(data))) == 1


@given(st.binary(max_size=200))
def test_any_header_block_gives_a_frame_or_a_spdy_error(text: bytes) -> None:
    deflate = zlib.compressobj(zdict=DICTIONARY)
    block = deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)
    body = struct.pack(">IIH", 1, 0, 0) + block
    data = struct.pack(">HHI", 0x8003, frames.FrameType.SYN_STREAM, len(body)) + body
    with contextlib.suppress(frames.SpdyError):
        list(frames.FrameParser().feed(data))


def syn_stream(text: bytes) -> bytes:
    deflate = zlib.compressobj(9, zdict=DICTIONARY)
    block = deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)
    body = struct.pack(">IIH", 1, 0, 0) + block
    return struct.pack(">HHI", 0x8003, frames.FrameType.SYN_STREAM, len(body)) + body


HEADER = struct.pack(">I", 1) + b"a" + struct.pack(">I", 1) + b"b"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (syn_stream(bytes(10 * 1024 * 1024)), "expands to more than"),
        (syn_stream(struct.pack(">I", 101)), "101 headers"),
        (syn_stream(struct.pack(">I", 2) + HEADER + HEADER), "twice"),
        (syn_stream(struct.pack(">I", 1) + HEADER + b"more"), "trailing data"),
        (syn_stream(struct.pack(">II", 1, 99)), "longer than its block"),
        (struct.pack(">HHI", 0x8003, 6, frames.MAX_CONTROL_LENGTH + 1), "65537 bytes long"),
        (struct.pack(">HHI", 0x8002, 6, 4) + bytes(4), "version 2"),
        (struct.pack(">HHIII", 0x8003, 3, 8, 0, 1), "invalid stream id 0"),
        (struct.pack(">HHII", 0x8003, 4, 4, 3), "does not match its count"),
        (bytes(8), "has stream id 0"),
    ],
)
def test_invalid_frames_are_reported(data: bytes, message: str) -> None:
    with pytest.raises(frames.SpdyError, match=message):
        list(frames.FrameParser().feed(data))


def test_dictionary_has_the_checksum_of_the_protocol() -> None:
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


def test_data_frame_is_passed_on_in_chunks() -> None:
    parser = frames.FrameParser()
    head = frames.data_frame_header(1, frames.MAX_DATA_LENGTH, fin=True)
    assert list(parser.feed(head + b"abc")) == [frames.Data(1, b"abc", fin=False)]

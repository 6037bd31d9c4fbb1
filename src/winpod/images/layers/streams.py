"""A layer's archive from its compressed bytes, in pieces of bounded size.

The content decides how it is compressed, as it does for containerd: what a manifest says of it is
only asked where the content does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, cast

import zstandard
from isal import igzip_lib

from winpod.images.errors import BadContent

GZIP, ZSTD, NONE = "gzip", "zstd", "none"

_PIECE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED_MAGIC = b"\x2a\x4d\x18"
_LARGEST_WINDOW = 1 << 27
_GzipError = cast(type[Exception], igzip_lib.error)


def decompress(chunks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    rest = iter(chunks)
    head = b""
    while len(head) < len(_ZSTD_MAGIC) and (chunk := next(rest, None)) is not None:
        head += chunk
    whole = chain((head,), rest)
    match _compression_of(head, compression):
        case "gzip":
            return _gunzip(whole)
        case "zstd":
            return _unzstd(whole)
    return (chunk for chunk in whole if chunk)


def decompress_head(head: bytes, compression: str) -> Iterator[bytes]:
    """The same for the first bytes of a layer only: where they end is no failure."""
    pieces = decompress((head,), compression)
    while True:
        try:
            yield next(pieces)
        except (StopIteration, BadContent):
            return


def _compression_of(head: bytes, said: str) -> str:
    if head.startswith(_GZIP_MAGIC):
        return GZIP
    if head.startswith(_ZSTD_MAGIC) or (head[1:4] == _ZSTD_SKIPPED_MAGIC and head[0] >> 4 == 5):
        return ZSTD
    if said != NONE:
        raise BadContent(f"The layer is said to be compressed with {said}, and is not.")
    return NONE


def _gunzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    member = _gzip_member()
    for chunk in chunks:
        data = chunk
        while data or not (member.needs_input or member.eof):
            if member.eof:
                data = data.lstrip(b"\0")
                if not data:
                    break
                member = _gzip_member()
            try:
                piece = member.decompress(data, _PIECE)
            except (_GzipError, EOFError) as error:
                raise BadContent(f"The layer's gzip content is damaged: {error}.") from None
            data = member.unused_data if member.eof else b""
            if piece:
                yield piece
    if not member.eof:
        raise BadContent("The layer's gzip content ends too early.")


def _gzip_member() -> igzip_lib.IgzipDecompressor:
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _unzstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(
        cast(IO[bytes], _Readable(chunks)), read_across_frames=True
    )
    while True:
        try:
            piece = reader.read(_PIECE)
        except zstandard.ZstdError as error:
            raise BadContent(f"The layer's zstd content is damaged: {error}.") from None
        if not piece:
            return
        yield piece


class _Readable:
    """Chunks as zstandard wants them. How much it asks for at a time is a hint only."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)

    def read(self, _size: int) -> bytes:
        return next(self._chunks, b"")

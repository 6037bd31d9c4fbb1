"""Layers of a Windows image for benchmarks: realistic files, deterministic."""

from __future__ import annotations

import itertools
import random
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

SHARES = (0.40, 0.25, 0.20, 0.10, 0.05)
"""Share of the total size for each layer."""

_POOL = 32 << 20
_LARGEST = 64 << 20
_MEDIAN, _SPREAD = 12_000, 2.0
_PER_DIRECTORY = 40
_TOPS = ("Program Files", "ProgramData", "app", "Windows/Microsoft.NET")
_ENDINGS = ("dll", "exe", "json", "js", "xml", "txt", "png", "config")


def write_layers(directory: Path, size: int, *, top: str = "Files") -> list[Path]:
    """Write archives with this total size of files, each tree below `top`."""
    made = []
    pool = _pool()
    for number, share in enumerate(SHARES):
        path = directory / f"{number}.tar"
        chance = random.Random(number)
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in _files(chance, pool, int(size * share), f"layer{number}"):
                member = tarfile.TarInfo(f"{top}/{name}" if top else name)
                member.size, member.mtime = len(content), 1_600_000_000
                member.pax_headers = {"MSWINDOWS.fileattr": "32"}
                tar.addfile(member, BytesIO(content))
        made.append(path)
    return made


def _files(
    chance: random.Random, pool: bytes, size: int, label: str
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents: many small files, and a few that make up most of the size."""
    for count in itertools.count():
        if count % _PER_DIRECTORY == 0:
            folder = f"{chance.choice(_TOPS)}/{label}/part{count // _PER_DIRECTORY}"
        length = min(int(chance.lognormvariate(0, _SPREAD) * _MEDIAN), _LARGEST, size)
        yield f"{folder}/file{count}.{chance.choice(_ENDINGS)}", _content(chance, pool, length)
        size -= length
        if size <= 0:
            return


def _content(chance: random.Random, pool: bytes, length: int) -> bytes:
    parts = []
    while length > 0:
        start = chance.randrange(_POOL - 1)
        part = pool[start : start + length]
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _pool() -> bytes:
    """Return half words, half noise in short runs: gzip compresses it about as well as programs."""
    chance = random.Random(0)
    words = [chance.randbytes(chance.randrange(3, 12)).hex().encode() for _ in range(4000)]
    parts, size = [], 0
    while size < _POOL:
        text = b" ".join(chance.choices(words, k=40))
        noise = chance.randbytes(chance.randrange(100, 250))
        parts += [text, noise, bytes(chance.randrange(64))]
        size += sum(map(len, parts[-3:]))
    return b"".join(parts)[:_POOL]

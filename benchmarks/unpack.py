"""How long unpacking takes, against Debian's tar with gzip and with unpigz, on the same layers.

1 GB of files in five layers. Each way unpacks all of them, one after another and nothing at the
same time, to the same disk; the ways take turns, and the median of the rounds counts. winpod does
more: it hashes the archive, checks every name and keeps what Windows knows of a file. Nothing is
deleted before the end, because ext4 is slow to create files where many were just deleted: that
takes 20 GB of disk.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.windows_layers import write_layers
from winpod.images.layers import unpack_layer

SIZE = 1 << 30
ROUNDS = 3
CHUNK = 1 << 18

Way = Callable[[Path, Path], None]


def with_winpod(archive: Path, target: Path) -> None:
    compression = {".gz": "gzip", ".zst": "zstd"}.get(archive.suffix, "none")
    with archive.open("rb") as file:
        unpack_layer(iter(lambda: file.read(CHUNK), b""), target, compression=compression)


def with_tar(*options: str) -> Way:
    def unpack(archive: Path, target: Path) -> None:
        quiet = "--warning=no-unknown-keyword"
        subprocess.run(["tar", quiet, *options, "-xf", archive, "-C", target], check=True)

    return unpack


WAYS: tuple[tuple[str, str, Way], ...] = (
    ("gzip", "winpod", with_winpod),
    ("gzip", "tar with gzip", with_tar("--use-compress-program=gzip")),
    ("gzip", "tar with unpigz", with_tar("--use-compress-program=unpigz")),
    ("zstd", "winpod", with_winpod),
    ("zstd", "tar with zstd", with_tar("--zstd")),
)


def compress(archives: list[Path]) -> dict[str, list[Path]]:
    """Both forms of the same archives, as registries have them."""
    for archive in archives:
        subprocess.run(["pigz", "-6", "--keep", archive], check=True)
        subprocess.run(["zstd", "-q", "-3", "--keep", archive], check=True)
    return {
        "gzip": [archive.with_suffix(".tar.gz") for archive in archives],
        "zstd": [archive.with_suffix(".tar.zst") for archive in archives],
    }


def measure(way: Way, archives: list[Path], place: Path) -> float:
    """Seconds for all layers, with the page cache warm for reading and clean for writing."""
    targets = [place / str(number) for number in range(len(archives))]
    for target in targets:
        target.mkdir(parents=True)
    os.sync()
    start = time.perf_counter()
    for archive, target in zip(archives, targets, strict=True):
        way(archive, target)
    return time.perf_counter() - start


def main() -> None:
    for program, package in (("unpigz", "pigz"), ("zstd", "zstd")):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install -y {package}")
    with tempfile.TemporaryDirectory(prefix="winpod-benchmark-") as name:
        workspace = Path(name)
        sets = compress(write_layers(workspace, SIZE))
        for kind, archives in sets.items():
            size = sum(archive.stat().st_size for archive in archives)
            print(f"{kind:6} {size / 1e6:7.0f} MB in {len(archives)} layers")
        times: dict[tuple[str, str], list[float]] = {(kind, who): [] for kind, who, _ in WAYS}
        for turn in range(ROUNDS):
            for kind, who, way in WAYS:
                place = workspace / f"{kind} {who} {turn}"
                times[kind, who].append(measure(way, sets[kind], place))
    print()
    for (kind, who), taken in times.items():
        median = statistics.median(taken)
        ratio = median / statistics.median(times[kind, "winpod"])
        print(f"{kind:6} {who:16} {median:6.2f} s   {ratio:5.2f} x winpod")


if __name__ == "__main__":
    main()

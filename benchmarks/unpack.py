"""Duration of unpacking, compared with Debian's tar with gzip and with unpigz, on the same layers.

1 GB of files in five layers. Each tool unpacks all of them, one after the other, to the same disk;
the tools alternate, and the result is the median of the rounds. winpod does more: it hashes the
archive, checks every name and keeps Windows metadata of files. Nothing is deleted before the end,
because ext4 is slow to create files after many were deleted: that takes 20 GB of disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import Taken, measure, report
from benchmarks.windows_layers import write_layers
from winpod.images.layers.unpack import unpack_layer

SIZE = 1 << 30
ROUNDS = 3
CHUNK = 1 << 18

Way = Callable[[Path, Path], None]


def with_winpod(archive: Path, target: Path) -> None:
    compression = {".gz": "gzip", ".zst": "zstd"}[archive.suffix]
    with archive.open("rb") as file:
        unpack_layer(iter(lambda: file.read(CHUNK), b""), target, compression=compression)


def with_tar(*options: str) -> Way:
    def unpack(archive: Path, target: Path) -> None:
        quiet = "--warning=no-unknown-keyword"
        subprocess.run(["tar", quiet, *options, "-xf", archive, "-C", target], check=True)

    return unpack


WAYS: dict[str, dict[str, Way]] = {
    "gzip": {
        "winpod": with_winpod,
        "tar with gzip": with_tar("--use-compress-program=gzip"),
        "tar with unpigz": with_tar("--use-compress-program=unpigz"),
    },
    "zstd": {"winpod": with_winpod, "tar with zstd": with_tar("--zstd")},
}


def compress(archives: list[Path]) -> dict[str, list[Path]]:
    """Compress the archives in both formats that registries have."""
    for archive in archives:
        subprocess.run(["pigz", "-6", "--keep", archive], check=True)
        subprocess.run(["zstd", "-q", "-3", "--keep", archive], check=True)
    return {
        "gzip": [archive.with_suffix(".tar.gz") for archive in archives],
        "zstd": [archive.with_suffix(".tar.zst") for archive in archives],
    }


def unpack_all(run: Way, archives: list[Path], place: Path) -> Taken:
    """Unpack with the page cache warm for reading and clean for writing."""
    targets = [place / str(number) for number in range(len(archives))]
    for target in targets:
        target.mkdir(parents=True)
    os.sync()

    def work() -> None:
        for archive, target in zip(archives, targets, strict=True):
            run(archive, target)

    return measure(work)


def main() -> None:
    for program, package in (("unpigz", "pigz"), ("zstd", "zstd")):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install -y {package}")
    with tempfile.TemporaryDirectory(prefix="winpod-benchmark-") as name:
        workspace = Path(name)
        sets = compress(write_layers(workspace, SIZE))
        for kind, archives in sets.items():
            size = sum(archive.stat().st_size for archive in archives)
            print(f"{kind} {size / 1e6:7.0f} MB in {len(archives)} layers", flush=True)
        for kind, tools in WAYS.items():
            times: dict[str, list[Taken]] = {tool: [] for tool in tools}
            for turn in range(ROUNDS):
                for tool, run in tools.items():
                    place = workspace / f"{kind} {tool} {turn}"
                    times[tool].append(unpack_all(run, sets[kind], place))
            report(kind, times)


if __name__ == "__main__":
    main()

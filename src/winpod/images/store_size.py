"""What an unpacked layer takes of the disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LayerSize:
    bytes: int
    inodes: int


def measure(directory: Path) -> LayerSize:
    """What a tree takes of the disk; what has several names in it counts once."""
    status = directory.lstat()
    blocks = {status.st_ino: status.st_blocks}
    waiting = [os.fspath(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                blocks[status.st_ino] = status.st_blocks
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return LayerSize(sum(blocks.values()) * 512, len(blocks))

"""File system without free space."""

import os
from pathlib import Path


def fill(ballast: Path) -> None:
    file = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    block = bytes(1 << 16)
    while block:
        try:
            os.write(file, block)
        except OSError:
            block = block[: len(block) // 2]
    os.close(file)

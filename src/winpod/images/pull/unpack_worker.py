"""Worker process that unpacks layers, one after another, while they are being downloaded.

Each job is a JSON line on stdin, followed by lines with the growing number of bytes in the blob's
file. The worker answers each job with one JSON line: the result or an error. Content is hashed
while it is read, so a blob is unpacked and verified in one pass. The worker exits immediately when
stdin closes, because then its parent is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from winpod.errors import WinpodError
from winpod.files import tree_usage
from winpod.images.errors import CorruptContent
from winpod.images.layers.names import NameMap
from winpod.images.layers.unpack import unpack_layer

_CHUNK = 1 << 20
ABANDONED = 3


@dataclass(frozen=True, slots=True)
class UnpackJob:
    """A layer to unpack: the location, size and digest of its blob, and the target directory."""

    path: str
    offset: int
    size: int
    digest: str
    target: str
    drive_c: str = ""


class DigestMismatch(CorruptContent):
    """The content of a blob does not match its digest."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        job = UnpackJob(**json.loads(lines.get()))
        answers.write(json.dumps(_answer(job, lines)) + "\n")


def _listen(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(ABANDONED)


def _answer(job: UnpackJob, lines: SimpleQueue[str]) -> dict[str, Any]:
    try:
        return _unpack(job, lines)
    except WinpodError as error:
        kind = type(error).__name__
        return {"error": kind, "message": error.message, "hint": error.hint}
    except (OSError, MemoryError) as error:
        message = f"The layer {job.digest} could not be unpacked: {error}."
        return {"error": "WinpodError", "message": message, "hint": ""}


def _unpack(job: UnpackJob, lines: SimpleQueue[str]) -> dict[str, Any]:
    target = Path(job.target)
    target.mkdir()
    names = NameMap.read_drive(Path(job.drive_c)) if job.drive_c else None
    chunks = _chunks(job, lines)
    try:
        layer = unpack_layer(chunks, target, compression="none", names=names)
    except CorruptContent:
        for _ in chunks:  # read to the end: a digest mismatch explains the error better
            pass
        raise
    return {"diff_id": layer.diff_id, **asdict(tree_usage(target))}


def _chunks(job: UnpackJob, lines: SimpleQueue[str]) -> Iterator[bytes]:
    algorithm, _, value = job.digest.partition(":")
    digest = hashlib.new(algorithm)
    with Path(job.path).open("rb", buffering=0) as file:
        file.seek(job.offset)
        done = available = 0
        while done < job.size:
            while available <= done:
                available = int(lines.get())
            data = file.read(min(_CHUNK, available - done))
            if not data:
                raise CorruptContent(f"{job.path} was truncated while it was read.")
            done += len(data)
            digest.update(data)
            if done == job.size and digest.hexdigest() != value:
                raise DigestMismatch(
                    f"The content of {job.digest} has the digest {algorithm}:{digest.hexdigest()}.",
                    "The stored content is damaged or was replaced; it is not used.",
                )
            yield data


if __name__ == "__main__":
    main()

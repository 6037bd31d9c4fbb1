"""A process of its own that unpacks layers, one after another, while they are still arriving.

It reads lines from its standard input: a job, then how many bytes of the blob are in its file, as
that grows. For each job it answers with one line: what came of it, or the error. Content is hashed
as it is read, so a blob is unpacked and verified in one pass. When its input ends, so does it, at
once and whatever it does: nobody is left who would want the result.
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

from winpod.images.errors import BadContent
from winpod.images.layers import NameMap, unpack_layer
from winpod.images.store_size import measure
from winpod.windows.errors import WinpodError

_CHUNK = 1 << 20
ABANDONED = 3


@dataclass(frozen=True, slots=True)
class Job:
    """A layer to unpack: where its bytes are, what they must be, and where they go."""

    path: str
    offset: int
    size: int
    digest: str
    target: str
    drive_c: str = ""


class WrongDigest(BadContent):
    """The bytes of a blob are not those that its digest names."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        job = Job(**json.loads(lines.get()))
        answers.write(json.dumps(_answer(job, lines)) + "\n")


def _listen(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(ABANDONED)


def _answer(job: Job, lines: SimpleQueue[str]) -> dict[str, Any]:
    try:
        return _unpack(job, lines)
    except WinpodError as error:
        kind = type(error).__name__
        return {"error": kind, "sentence": error.sentence, "advice": error.advice}
    except (OSError, MemoryError) as error:
        sentence = f"The layer {job.digest} could not be unpacked: {error}."
        return {"error": "WinpodError", "sentence": sentence, "advice": ""}


def _unpack(job: Job, lines: SimpleQueue[str]) -> dict[str, Any]:
    target = Path(job.target)
    target.mkdir()
    names = NameMap.of(Path(job.drive_c)) if job.drive_c else None
    chunks = _chunks(job, lines)
    try:
        layer = unpack_layer(chunks, target, compression="none", names=names)
    except BadContent:
        for _ in chunks:  # content that is not what it should be is damaged rather than hostile
            pass
        raise
    return {"diff_id": layer.diff_id, **asdict(measure(target))}


def _chunks(job: Job, lines: SimpleQueue[str]) -> Iterator[bytes]:
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
                raise BadContent(f"{job.path} became shorter while it was read.")
            done += len(data)
            digest.update(data)
            if done == job.size and digest.hexdigest() != value:
                raise WrongDigest(
                    f"The content of {job.digest} has the digest {algorithm}:{digest.hexdigest()}.",
                    "It is damaged or was replaced where it is stored; it is not used.",
                )
            yield data


if __name__ == "__main__":
    main()

"""One layer: from compressed bytes to trees on disk, and the digest of what was in between.

Two threads share the work: the caller's decompresses and hashes, the other reads the archive and
writes files. Most of both happens outside the interpreter, so two cores are used where there are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from winpod.images.errors import BadContent, NoSpace
from winpod.images.layers.limits import Limits, UnpackedLayer
from winpod.images.layers.names import NameMap
from winpod.images.layers.streams import decompress
from winpod.images.layers.tar import Source, read_entries
from winpod.images.layers.tree import Tree, too_large
from winpod.windows.errors import PermissionDenied, WinpodError

RECORD = "layer.json"
_WAITING_PIECES = 16


def unpack_layer(
    chunks: Iterable[bytes],
    target: Path,
    *,
    compression: str,
    limits: Limits | None = None,
    names: NameMap | None = None,
) -> UnpackedLayer:
    """Unpack a layer into an empty directory: `Files`, `Hives` and a record of it.

    A failure leaves what was written so far, and nothing outside the target.
    """
    limits = limits or Limits()
    writer = _Writer(target, limits, names)
    digest = hashlib.sha256()
    size = 0
    writer.start()
    try:
        for piece in decompress(chunks, compression):
            size += len(piece)
            if size > limits.size:
                raise too_large(limits)
            if writer.failure:
                break
            writer.put(piece)
            digest.update(piece)
    except BaseException:
        writer.stop(_Abandoned())
        raise
    writer.stop(None)
    if writer.failure:
        raise writer.failure
    if not size:
        raise BadContent("The layer has no content, or was cut short before its first file.")
    return writer.record(f"sha256:{digest.hexdigest()}")


class _Abandoned(Exception):
    """The archive will not come to its end."""


class _Writer(threading.Thread):
    """Reads the archive as it comes and writes its files, until a failure or the end."""

    def __init__(self, target: Path, limits: Limits, names: NameMap | None) -> None:
        super().__init__(name="layer-writer", daemon=True)
        self.failure: BaseException | None = None
        self._target = target
        self._limits = limits
        self._names = names
        self._pieces: Queue[bytes | _Abandoned | None] = Queue(_WAITING_PIECES)
        self._links: list[tuple[str, str]] = []

    def put(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def stop(self, end: _Abandoned | None) -> None:
        self._pieces.put(end)
        self.join()

    def run(self) -> None:
        pieces = self._iterate()
        try:
            self._unpack(pieces)
        except OSError as error:
            self.failure = _explain(error, self._target)
        except BaseException as error:
            self.failure = error
        try:
            for _ in pieces:
                pass
        except _Abandoned:
            pass

    def record(self, diff_id: str) -> UnpackedLayer:
        tree = self._tree
        layer = UnpackedLayer(
            diff_id,
            tree.size,
            tree.entries,
            tree.has_hives,
            {what: count for what, count in sorted(tree.left_out.items()) if count},
        )
        try:
            text = json.dumps({**asdict(layer), "links": self._links})
            (self._target / RECORD).write_text(text)
        except OSError as error:
            raise _explain(error, self._target) from None
        return layer

    def _iterate(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, _Abandoned):
                raise piece
            yield piece

    def _unpack(self, pieces: Iterator[bytes]) -> None:
        source = Source(pieces)
        with closing(Tree(self._target, self._limits, self._names)) as tree:
            self._tree = tree
            for entry in read_entries(source):
                tree.add(entry, source)
            source.drain()
            self._links = tree.finish()


def _explain(error: OSError, target: Path) -> WinpodError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"There is no room left for the layer at {target.parent}.",
            "Remove images that are not used, or give it more room.",
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        return PermissionDenied(
            f"The layer cannot be unpacked to {target.parent}: {error.strerror}.",
            "Run winpod as root: layers need marks that only root may set.",
        )
    return WinpodError(f"The layer cannot be unpacked to {target.parent}: {error.strerror}.")

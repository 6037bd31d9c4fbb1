"""Unpack a compressed layer to disk and compute its diff id.

The calling thread decompresses and hashes; a second thread parses the archive and writes files.
Both mostly run outside the interpreter lock, so they use two cores.
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

from winpod.errors import PermissionDenied, WinpodError
from winpod.images.errors import CorruptContent, DiskFull
from winpod.images.layers.names import NameMap
from winpod.images.layers.tar import TarStream, decompress, read_entries
from winpod.images.layers.tree import LayerTree, UnpackedLayer, UnpackLimits, limit_exceeded_error

RECORD_FILE = "layer.json"
_QUEUED_CHUNKS = 16


def unpack_layer(
    compressed: Iterable[bytes],
    target: Path,
    *,
    compression: str,
    limits: UnpackLimits | None = None,
    names: NameMap | None = None,
) -> UnpackedLayer:
    """Unpack a layer into an empty directory as `Files`, `Hives` and a JSON record.

    A failure leaves partial content in the target, and never anything outside it.
    """
    limits = limits or UnpackLimits()
    writer = _Writer(target, limits, names)
    digest = hashlib.sha256()
    size = 0
    writer.start()
    try:
        for chunk in decompress(compressed, compression):
            size += len(chunk)
            if size > limits.size:
                raise limit_exceeded_error(limits)
            if writer.failure:
                break
            writer.put(chunk)
            digest.update(chunk)
    except BaseException:
        writer.stop(_UnpackAborted())
        raise
    writer.stop(None)
    if writer.failure:
        raise writer.failure
    if not size:
        raise CorruptContent("The layer is empty, or was truncated before its first file.")
    return writer.record(f"sha256:{digest.hexdigest()}")


class _UnpackAborted(Exception):
    """Tells the writer that decompression failed."""


class _Writer(threading.Thread):
    """Thread that parses the archive and writes its files, until it ends or fails."""

    def __init__(self, target: Path, limits: UnpackLimits, names: NameMap | None) -> None:
        super().__init__(name="layer-writer", daemon=True)
        self.failure: BaseException | None = None
        self._target = target
        self._limits = limits
        self._names = names
        self._chunks: Queue[bytes | _UnpackAborted | None] = Queue(_QUEUED_CHUNKS)
        self._links: list[tuple[str, str]] = []

    def put(self, chunk: bytes) -> None:
        self._chunks.put(chunk)

    def stop(self, end: _UnpackAborted | None) -> None:
        self._chunks.put(end)
        self.join()

    def run(self) -> None:
        chunks = self._iterate()
        try:
            self._unpack(chunks)
        except OSError as error:
            self.failure = _convert_error(error, self._target)
        except BaseException as error:
            self.failure = error
        try:
            for _ in chunks:
                pass
        except _UnpackAborted:
            pass

    def record(self, diff_id: str) -> UnpackedLayer:
        tree = self._tree
        layer = UnpackedLayer(
            diff_id,
            tree.size,
            tree.entries,
            tree.has_hives,
            {reason: count for reason, count in sorted(tree.left_out.items()) if count},
        )
        try:
            text = json.dumps({**asdict(layer), "links": self._links})
            (self._target / RECORD_FILE).write_text(text)
        except OSError as error:
            raise _convert_error(error, self._target) from None
        return layer

    def _iterate(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            if isinstance(chunk, _UnpackAborted):
                raise chunk
            yield chunk

    def _unpack(self, chunks: Iterator[bytes]) -> None:
        source = TarStream(chunks)
        with closing(LayerTree(self._target, self._limits, self._names)) as tree:
            self._tree = tree
            for entry in read_entries(source):
                tree.add(entry, source)
            source.drain()
            self._links = tree.finish()


def _convert_error(error: OSError, target: Path) -> WinpodError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"No space left for the layer in {target.parent}.",
            "Remove unused images, or use a larger disk.",
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        return PermissionDenied(
            f"The layer cannot be unpacked to {target.parent}: {error.strerror}.",
            "Run winpod as root: layers need whiteouts and attributes that only root can set.",
        )
    return WinpodError(f"The layer cannot be unpacked to {target.parent}: {error.strerror}.")

"""Layers from a source into the store: downloaded and unpacked at once, each at most once.

Other processes that bring the same layer are waited for. What ends early leaves what the next one
can go on from; what cannot be used is not left behind.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from winpod.images.base import find_base
from winpod.images.download import finish
from winpod.images.errors import BadContent, NoSpace
from winpod.images.manifests import Descriptor, together
from winpod.images.pull_progress import LayerProgress, LayerState, Progress
from winpod.images.pull_sharing import Sharing
from winpod.images.pull_source import Source
from winpod.images.pull_unpack import Arrival, Unpackers
from winpod.images.pull_worker import Job, WrongDigest
from winpod.images.store import BLOB, LAYER, Store
from winpod.images.store_lock import FileLock
from winpod.images.store_size import LayerSize
from winpod.images.store_trouble import trouble
from winpod.images.stored import Lease, StoredLayer

_LOCK_WAIT = 0.1


@dataclass(frozen=True, slots=True)
class Means:
    """What all pulls of a process share."""

    store: Store
    downloads: asyncio.Semaphore
    unpackers: Unpackers
    sharing: Sharing


class Layers:
    """Of one pull. `sizes` are of those that were unpacked for it."""

    def __init__(self, means: Means, source: Source, lease: Lease, note: Progress) -> None:
        self.sizes: dict[str, LayerSize] = {}
        self._means = means
        self._store = means.store
        self._source = source
        self._lease = lease
        self._note = note
        self._name = source.name
        self._base = find_base(self._store.root)

    async def bring(self, layers: Sequence[StoredLayer], blobs: Sequence[Descriptor]) -> None:
        """Those that are kept; `blobs` are all of them."""
        kept = [layer for layer in layers if layer.kept]
        self._store.keep(self._lease, LAYER, *(layer.diff_id for layer in kept))
        self._store.keep(self._lease, BLOB, *(layer.digest for layer in kept))
        missing = [one for one in kept if not self._store.layer_path(one.diff_id).is_dir()]
        self._means.unpackers.warm_up(len(missing))
        work = {}
        for layer, blob in zip(layers, blobs, strict=True):
            if layer.kept:
                work[layer.diff_id] = self._bring_layer(layer.diff_id, blob)
            else:
                self._note(LayerProgress(blob.digest, LayerState.BASE, 0, blob.size))
        await together(list(work.values()))

    async def _bring_layer(self, diff_id: str, blob: Descriptor) -> None:
        if self._store.layer_path(diff_id).is_dir():
            self._note(LayerProgress(blob.digest, LayerState.HERE, blob.size, blob.size))
        while not self._store.layer_path(diff_id).is_dir():
            await self._means.sharing.share(
                (blob.digest, diff_id),
                lambda report: self._transfer(diff_id, blob, report),
                self._note,
            )

    async def _transfer(self, diff_id: str, blob: Descriptor, report: Progress) -> None:
        """Bring a layer into its place, unless another process does so meanwhile."""
        report(LayerProgress(blob.digest, LayerState.WAITING, 0, blob.size))
        lock = await _locked(self._store.blob_lock(blob.digest))
        try:
            wrong: WrongDigest | None = None
            while not self._store.layer_path(diff_id).is_dir():
                try:
                    await self._unpack(diff_id, blob, report)
                except WrongDigest as error:
                    if not self._source.distrust(blob):
                        raise
                    wrong = error
                except BadContent as error:
                    raise wrong or error from None
        finally:
            lock.remove()
        report(LayerProgress(blob.digest, LayerState.DONE, blob.size, blob.size))

    async def _unpack(self, diff_id: str, blob: Descriptor, report: Progress) -> None:
        """Download and unpack, both at once; what cannot be used is not left behind."""
        target = self._lease.directory / uuid4().hex
        path = self._store.blob_path(blob.digest)
        place = self._source.place(blob)
        arrival = Arrival(blob.size if place else 0)
        job = Job(
            path=str(place.path if place else path),
            offset=place.offset if place else 0,
            size=blob.size,
            digest=blob.digest,
            target=str(target),
            drive_c=str(self._base.drive_c) if self._base else "",
        )
        try:
            results: list[Any] = await together(
                [
                    self._means.unpackers.unpack(job, arrival),
                    self._obtain(blob, path, arrival, report),
                ]
            )
            found, self.sizes[diff_id] = results[0]
            if found != diff_id:
                raise BadContent(
                    f'The layer {blob.digest} of "{self._name}" unpacks to {found}, and the config '
                    f"names {diff_id}.",
                    "The image was put together wrongly; push it again.",
                )
            self._store.adopt_layer(target, diff_id)
        except (BadContent, NoSpace):
            path.unlink(missing_ok=True)
            raise
        finally:
            await finish(asyncio.to_thread(shutil.rmtree, target, ignore_errors=True))
        path.unlink(missing_ok=True)

    async def _obtain(
        self, blob: Descriptor, path: Path, arrival: Arrival, report: Progress
    ) -> None:
        def arrived(available: int) -> None:
            arrival.set(available)
            state = LayerState.DOWNLOADING if available < blob.size else LayerState.UNPACKING
            report(LayerProgress(blob.digest, state, available, blob.size))

        if arrival.available:
            return arrived(blob.size)
        async with self._means.downloads:
            return await self._source.obtain(blob, path, arrived)


async def _locked(path: Path) -> FileLock:
    try:
        while (lock := FileLock.try_take(path)) is None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(_LOCK_WAIT)
    except OSError as error:
        raise trouble(path.parent, error) from None
    return lock

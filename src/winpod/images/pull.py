"""Images into the store, for a handler: chosen by its build, without Microsoft's base layers.

Layers are downloaded and unpacked at once, several at a time, each at most once: pulls in one
process share what they have in common, and pulls in several processes wait for each other, layer by
layer. A pull that ends early, for whatever reason, leaves what the next one can go on from.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from winpod.images.base import find_base
from winpod.images.credentials import CredentialSource
from winpod.images.download import finish
from winpod.images.errors import BadContent, ImageNotFound, NoSpace, NotPulled
from winpod.images.layers import peek_base
from winpod.images.manifests import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    Descriptor,
    ImageManifest,
    describe_image,
    parse_config,
    parse_document,
    parse_rootfs,
    pointer,
    together,
)
from winpod.images.pull_choice import Asked, choose, own_architecture
from winpod.images.pull_source import Source, open_source
from winpod.images.pull_unpack import Arrival, Unpackers
from winpod.images.pull_worker import Job, WrongDigest
from winpod.images.recognise import FOREIGN_TYPES, count_base_layers
from winpod.images.references import Reference, parse_reference
from winpod.images.settings import BasePolicy, ImageSettings
from winpod.images.store import BLOB, DOCUMENT, LAYER, Store
from winpod.images.store_lock import FileLock
from winpod.images.store_size import LayerSize, measure
from winpod.images.store_trouble import not_pulled, trouble
from winpod.images.stored import Lease, NewImage, StoredImage, StoredLayer, Variant
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler
from winpod.windows.objects import Narrowing
from winpod.windows.platforms import Image, Manifest, Platform

LOG = logging.getLogger(__name__)

_PEEK = 1 << 18
_LOCK_WAIT = 0.1
_LOG_SECONDS = 10.0
_LAYER_TYPES = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    *FOREIGN_TYPES,
)


class LayerState(StrEnum):
    BASE = "base layer, not pulled"
    HERE = "already here"
    WAITING = "waiting"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class LayerProgress:
    digest: str
    state: LayerState
    done: int
    total: int


Progress = Callable[[LayerProgress], None]


def _silent(_: LayerProgress) -> None:
    pass


async def pull(
    store: Store,
    reference: str,
    handler: Handler,
    host_build: Build,
    *,
    credentials: Sequence[CredentialSource] = (),
    narrowing: Narrowing | None = None,
    settings: ImageSettings | None = None,
    progress: Progress = _silent,
) -> StoredImage:
    """Pull one image. A process that pulls more than one does so with one `Puller`."""
    async with Puller(store, settings) as puller:
        return await puller.pull(
            reference,
            handler,
            host_build,
            credentials=credentials,
            narrowing=narrowing,
            progress=progress,
        )


async def variant_for(
    store: Store,
    reference: str,
    handler: Handler,
    host_build: Build,
    narrowing: Narrowing | None = None,
) -> StoredImage:
    """The image that a name or an id is to a handler, from what is stored; nobody is asked.

    Where another handler pulled the name, the choice is made again for this one.
    """
    asked = Asked(handler, host_build, narrowing or Narrowing(), own_architecture())
    known = store.find(reference, handler.name, host_build)
    if known and asked.accepts(known.architecture, known.os_version):
        return known

    async def read(descriptor: Descriptor, limit: int) -> bytes:
        del limit  # was kept when the document was fetched
        return store.content(descriptor.digest)

    for name, root in store.roots(reference):
        try:
            image = await describe_image(name, pointer(root), read, sizes=False)
        except ImageNotFound:
            continue
        chosen = choose(image, name, asked)
        names = _names(parse_reference(name), root)
        variant = Variant(names, root, str(host_build.base), handler.name, chosen.digest)
        if found := store.add_variant(variant):
            return found
        raise NotPulled(
            f'failed to resolve image "{reference}": {name} was pulled for other handlers, and its '
            f"manifest for {chosen.platform}, which the handler {handler.name} needs, was not.",
            f"Pull it: winpod pull --handler {handler.name} {name}",
        )
    raise not_pulled(reference, handler.name)


class Puller:
    """The pulls of one process, which share connections to nothing but each other's layers."""

    def __init__(self, store: Store, settings: ImageSettings | None = None) -> None:
        self.store = store
        self.settings = settings or ImageSettings()
        self.downloads = asyncio.Semaphore(self.settings.max_concurrent_downloads)
        self.unpackers = Unpackers(store.session().shared.descriptor)
        self._running: dict[tuple[str, str], _Shared] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.unpackers.__aexit__(kind, error, traceback)

    async def pull(
        self,
        text: str,
        handler: Handler,
        host: Build,
        *,
        credentials: Sequence[CredentialSource] = (),
        narrowing: Narrowing | None = None,
        base_layers: BasePolicy | None = None,
        progress: Progress = _silent,
    ) -> StoredImage:
        asked = Asked(handler, host, narrowing or Narrowing(), own_architecture())
        policy = base_layers or self.settings.base_layers
        timeout = self.settings.inactivity_timeout
        async with open_source(text, credentials, timeout) as source:
            purpose = f"{host.base} {handler.name} {source.reference}"
            with self.store.lease(purpose) as lease:
                return await _Pull(self, source, lease, asked, policy, progress).run()

    async def share(
        self, key: tuple[str, str], work: Callable[[Progress], Awaitable[None]], progress: Progress
    ) -> bool:
        """Do work that others may be doing: wait for theirs, or do it for all.

        False where it was theirs and failed, which says nothing of one's own: they may have gone
        away, or not have been let in.
        """
        shared = self._running.get(key)
        is_own = shared is None
        if shared is None:
            shared = self._running[key] = _Shared()
            shared.task = asyncio.create_task(self._run(key, shared, work))
        shared.waiting.append(progress)
        try:
            await asyncio.shield(shared.task)
        except Exception:
            if is_own:
                raise
            return False
        finally:
            shared.waiting.remove(progress)
            if not shared.waiting:
                self._forget(key, shared)
                shared.task.cancel()
                await asyncio.wait([shared.task])
        return True

    async def _run(
        self, key: tuple[str, str], shared: _Shared, work: Callable[[Progress], Awaitable[None]]
    ) -> None:
        try:
            await work(shared.report)
        finally:
            self._forget(key, shared)

    def _forget(self, key: tuple[str, str], shared: _Shared) -> None:
        """Let nobody else wait for it."""
        if self._running.get(key) is shared:
            del self._running[key]


@dataclass(slots=True)
class _Shared:
    """A layer on its way, and those who wait for it."""

    waiting: list[Progress] = field(default_factory=list)
    task: asyncio.Task[None] = field(init=False)

    def report(self, progress: LayerProgress) -> None:
        for one in self.waiting:
            one(progress)


class _Pull:
    """One pull, from the name to the record of it."""

    def __init__(
        self,
        puller: Puller,
        source: Source,
        lease: Lease,
        asked: Asked,
        policy: BasePolicy,
        progress: Progress,
    ) -> None:
        self._puller = puller
        self._store = puller.store
        self._source = source
        self._lease = lease
        self._asked = asked
        self._policy = policy
        self._progress = progress
        self._name = source.name
        self._base = find_base(self._store.root)
        self._documents: set[str] = set()
        self._logged: dict[str, tuple[LayerState | None, float]] = {}
        self._sizes: dict[str, LayerSize] = {}

    async def run(self) -> StoredImage:
        started = time.monotonic()
        root = await self._source.resolve()
        image = await describe_image(self._name, root, self._fetch, sizes=False)
        chosen = choose(image, self._name, self._asked)
        manifest, config = await self._read_manifest(chosen)
        platform = self._check_platform(chosen, config)
        layers = await self._plan(chosen.digest, manifest, config)
        LOG.info(
            "%s for %s: %s (%s), %d layers, %d of them to pull",
            self._name,
            self._asked.handler.name,
            chosen.digest,
            platform,
            len(layers),
            sum(layer.kept for layer in layers),
        )
        await self._bring(layers, manifest)
        stored = await self._commit(root.digest, chosen, platform, manifest, layers)
        LOG.info("%s: %s in %.1f s", self._name, stored.id, time.monotonic() - started)
        return stored

    async def _fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        self._documents.add(descriptor.digest)
        self._store.keep(self._lease, DOCUMENT, descriptor.digest)
        data = self._store.read_document(descriptor)
        if data is None:
            data = await self._source.fetch(descriptor, limit)
            self._store.write_document(self._lease, descriptor.digest, data)
        return data

    async def _read_manifest(self, chosen: Manifest) -> tuple[ImageManifest, bytes]:
        data = await self._fetch(pointer(chosen.digest), MANIFEST_LIMIT)
        manifest = parse_document(data, f'The manifest {chosen.digest} of "{self._name}"')
        if not isinstance(manifest, ImageManifest):
            raise BadContent(f'{chosen.digest} of "{self._name}" is an index and not a manifest.')
        for layer in manifest.layers:
            is_layer = layer.media_type.startswith(_LAYER_TYPES) and layer.size > 0
            if not is_layer or "encrypted" in layer.media_type:
                raise BadContent(
                    f'{layer.digest} of "{self._name}" is "{layer.media_type}" of {layer.size} '
                    "bytes, which is no layer that can be unpacked.",
                    "Is this a container image?",
                )
        return manifest, await self._fetch(manifest.config, CONFIG_LIMIT)

    def _check_platform(self, chosen: Manifest, config: bytes) -> Platform:
        """What the config says; where the index names no build, that decides."""
        platform = parse_config(config, f'The config of "{self._name}"')
        if chosen.platform.os_version:
            return chosen.platform
        only = Manifest(chosen.digest, platform, 0)
        choose(Image(self._name, chosen.digest, (only,), is_index=False), self._name, self._asked)
        return platform

    async def _plan(
        self, digest: str, manifest: ImageManifest, config: bytes
    ) -> tuple[StoredLayer, ...]:
        """What each layer is, and whether it is to be kept."""
        rootfs = parse_rootfs(config, f'The config of "{self._name}"')
        if len(rootfs.diff_ids) != len(manifest.layers):
            raise BadContent(
                f'The config of "{self._name}" names {len(rootfs.diff_ids)} layers, and its '
                f"manifest {len(manifest.layers)}.",
                "Push the image again with a current tool.",
            )
        if known := self._store.layers_of_manifest(digest):
            base = sum(layer.base for layer in known)
        else:
            base = await count_base_layers(manifest.layers, rootfs.made_by, self._peek)
        skipped = base if self._policy is BasePolicy.SKIP else 0
        return tuple(
            StoredLayer(layer.digest, diff_id, position < base, position >= skipped)
            for position, (layer, diff_id) in enumerate(
                zip(manifest.layers, rootfs.diff_ids, strict=True)
            )
        )

    async def _peek(self, layer: Descriptor) -> bool:
        head = await self._source.head(layer, min(_PEEK, layer.size))
        return await asyncio.to_thread(peek_base, head, "none")

    async def _bring(self, layers: Sequence[StoredLayer], manifest: ImageManifest) -> None:
        kept = [layer for layer in layers if layer.kept]
        self._store.keep(self._lease, LAYER, *(layer.diff_id for layer in kept))
        self._store.keep(self._lease, BLOB, *(layer.digest for layer in kept))
        missing = [one for one in kept if not self._store.layer_path(one.diff_id).is_dir()]
        self._puller.unpackers.warm_up(len(missing))
        work = {}
        for layer, blob in zip(layers, manifest.layers, strict=True):
            if layer.kept:
                work[layer.diff_id] = self._bring_layer(layer.diff_id, blob)
            else:
                self._note(LayerProgress(blob.digest, LayerState.BASE, 0, blob.size))
        await together(list(work.values()))

    async def _bring_layer(self, diff_id: str, blob: Descriptor) -> None:
        if self._store.layer_path(diff_id).is_dir():
            self._note(LayerProgress(blob.digest, LayerState.HERE, blob.size, blob.size))
        while not self._store.layer_path(diff_id).is_dir():
            await self._puller.share(
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
                    self._puller.unpackers.unpack(job, arrival),
                    self._obtain(blob, path, arrival, report),
                ]
            )
            found, self._sizes[diff_id] = results[0]
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
        async with self._puller.downloads:
            return await self._source.obtain(blob, path, arrived)

    async def _commit(
        self,
        root: str,
        chosen: Manifest,
        platform: Platform,
        manifest: ImageManifest,
        layers: tuple[StoredLayer, ...],
    ) -> StoredImage:
        kept = [layer.diff_id for layer in layers if layer.kept]
        for diff_id in self._store.unmeasured(kept):
            if diff_id not in self._sizes:
                path = self._store.layer_path(diff_id)
                self._sizes[diff_id] = await asyncio.to_thread(measure, path)
        if self._puller.settings.sync:
            await finish(asyncio.to_thread(self._store.sync))
        variant = Variant(
            _names(self._source.reference, root),
            root,
            str(self._asked.host.base),
            self._asked.handler.name,
            chosen.digest,
        )
        image = NewImage(
            variant,
            manifest.config.digest,
            platform.architecture,
            platform.os_version,
            layers,
            frozenset(self._documents),
        )
        return self._store.commit(self._lease, image, self._sizes)

    def _note(self, progress: LayerProgress) -> None:
        """To the log what is new or a while ago, and to whoever watches everything."""
        state, at = self._logged.get(progress.digest, (None, 0.0))
        now = time.monotonic()
        if progress.state is not state or now - at > _LOG_SECONDS:
            self._logged[progress.digest] = (progress.state, now)
            LOG.info(
                "%s: %s %s (%d of %d bytes)",
                self._name,
                progress.digest,
                progress.state,
                progress.done,
                progress.total,
            )
        self._progress(progress)


def _names(reference: Reference, root: str) -> frozenset[str]:
    repository = f"{reference.registry}/{reference.repository}"
    tag = {f"{repository}:{reference.tag}"} if reference.tag and not reference.digest else set()
    return frozenset(tag | {f"{repository}@{root}"})


async def _locked(path: Path) -> FileLock:
    try:
        while (lock := FileLock.try_take(path)) is None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(_LOCK_WAIT)
    except OSError as error:
        raise trouble(path.parent, error) from None
    return lock

"""Pull images into the store: choose the manifest of the handler and fetch its layers.

Microsoft's base layers are skipped by default. Layers are downloaded and unpacked concurrently,
each at most once: pulls in one process share them, and pulls in several processes wait for each
other per layer. An interrupted pull leaves content that the next one resumes from; unusable
content is deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from winpod.concurrency import gather_or_cancel, run_to_completion
from winpod.config import BaseLayerPolicy, ImageSettings
from winpod.files import FileLock, TreeUsage, remove_tree, tree_usage
from winpod.images.base.builder import latest_base
from winpod.images.errors import (
    CorruptContent,
    DiskFull,
    ImageNotFound,
    ImageNotPulled,
    not_pulled_error,
    store_error,
)
from winpod.images.layers.base_layers import FOREIGN_TYPES, count_base_layers, is_base_layer
from winpod.images.manifests import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    Descriptor,
    ImageManifest,
    describe_image,
    descriptor_of_digest,
    parse_config,
    parse_document,
    parse_rootfs,
)
from winpod.images.pull.platform_match import PullTarget, choose_for_target, host_architecture
from winpod.images.pull.singleflight import (
    LOGGER,
    LayerProgress,
    LayerState,
    Progress,
    ProgressLog,
    SingleFlight,
    ignore_progress,
)
from winpod.images.pull.source import ImageSource, open_source
from winpod.images.pull.unpack_pool import DownloadPosition, UnpackPool
from winpod.images.pull.unpack_worker import DigestMismatch, UnpackJob
from winpod.images.references import Reference, parse_reference
from winpod.images.registry.auth import CredentialSource
from winpod.images.store.records import (
    ImageVariant,
    Lease,
    NewImage,
    StoredImage,
    StoredLayer,
)
from winpod.images.store.store import BLOB, DOCUMENT, LAYER, Store
from winpod.placement.model import PlatformConstraint
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler
from winpod.windows.platforms import Image, Manifest, Platform


@dataclass(frozen=True, slots=True)
class PullContext:
    """Resources that all pulls of a process share."""

    store: Store
    downloads: asyncio.Semaphore
    unpackers: UnpackPool
    singleflight: SingleFlight


class LayerFetcher:
    """Fetches the layers of one pull. `sizes` has the disk usage of those it unpacked."""

    def __init__(
        self, context: PullContext, source: ImageSource, lease: Lease, progress: Progress
    ) -> None:
        self.sizes: dict[str, TreeUsage] = {}
        self._context = context
        self._store = context.store
        self._source = source
        self._lease = lease
        self._progress = progress
        self._name = source.name
        self._base = latest_base(self._store.root)

    async def fetch(self, layers: Sequence[StoredLayer], blobs: Sequence[Descriptor]) -> None:
        """Fetch the kept layers; `blobs` are the descriptors of all layers."""
        kept = [layer for layer in layers if layer.kept]
        self._store.add_to_lease(self._lease, LAYER, *(layer.diff_id for layer in kept))
        self._store.add_to_lease(self._lease, BLOB, *(layer.digest for layer in kept))
        missing = [layer for layer in kept if not self._store.layer_path(layer.diff_id).is_dir()]
        self._context.unpackers.warm_up(len(missing))
        work = {}
        for layer, blob in zip(layers, blobs, strict=True):
            if layer.kept:
                work[layer.diff_id] = self._fetch_layer(layer.diff_id, blob)
            else:
                self._progress(LayerProgress(blob.digest, LayerState.BASE, 0, blob.size))
        await gather_or_cancel(list(work.values()))

    async def _fetch_layer(self, diff_id: str, blob: Descriptor) -> None:
        if self._store.layer_path(diff_id).is_dir():
            self._progress(LayerProgress(blob.digest, LayerState.PRESENT, blob.size, blob.size))
        while not self._store.layer_path(diff_id).is_dir():
            await self._context.singleflight.run(
                (blob.digest, diff_id),
                lambda report: self._transfer(diff_id, blob, report),
                self._progress,
            )

    async def _transfer(self, diff_id: str, blob: Descriptor, report: Progress) -> None:
        """Fetch a layer into the store, unless another process has done so meanwhile."""
        report(LayerProgress(blob.digest, LayerState.WAITING, 0, blob.size))
        lock = await _acquire_lock(self._store.blob_lock(blob.digest))
        try:
            mismatch: DigestMismatch | None = None
            while not self._store.layer_path(diff_id).is_dir():
                try:
                    await self._unpack(diff_id, blob, report)
                except DigestMismatch as error:
                    if not self._source.report_corrupt(blob):
                        raise
                    mismatch = error
                except CorruptContent as error:
                    raise mismatch or error from None
        finally:
            lock.remove()
        report(LayerProgress(blob.digest, LayerState.DONE, blob.size, blob.size))

    async def _unpack(self, diff_id: str, blob: Descriptor, report: Progress) -> None:
        """Download and unpack a layer concurrently, and delete unusable content."""
        directory = self._lease.directory / uuid4().hex
        path = self._store.blob_path(blob.digest)
        extent = self._source.locate_blob(blob)
        position = DownloadPosition(blob.size if extent else 0)
        job = UnpackJob(
            path=str(extent.path if extent else path),
            offset=extent.offset if extent else 0,
            size=blob.size,
            digest=blob.digest,
            target=str(directory),
            drive_c=str(self._base.drive_c) if self._base else "",
        )
        try:
            results: list[Any] = await gather_or_cancel(
                [
                    self._context.unpackers.unpack(job, position),
                    self._download(blob, path, position, report),
                ]
            )
            actual, self.sizes[diff_id] = results[0]
            if actual != diff_id:
                raise CorruptContent(
                    f'The layer {blob.digest} of "{self._name}" unpacks to {actual}, but the '
                    f"config has {diff_id}.",
                    "The image is inconsistent; build and push it again.",
                )
            self._store.commit_layer(directory, diff_id)
        except (CorruptContent, DiskFull):
            path.unlink(missing_ok=True)
            raise
        finally:
            await run_to_completion(asyncio.to_thread(remove_tree, directory, ignore_errors=True))
        path.unlink(missing_ok=True)

    async def _download(
        self, blob: Descriptor, path: Path, position: DownloadPosition, report: Progress
    ) -> None:
        def advance(available: int) -> None:
            position.set(available)
            state = LayerState.DOWNLOADING if available < blob.size else LayerState.UNPACKING
            report(LayerProgress(blob.digest, state, available, blob.size))

        if position.available:
            return advance(blob.size)
        async with self._context.downloads:
            return await self._source.download(blob, path, advance)


async def _acquire_lock(path: Path) -> FileLock:
    try:
        return await FileLock.acquire_async(path)
    except OSError as error:
        raise store_error(path.parent, error) from None


_PEEK_SIZE = 1 << 18
_LAYER_TYPES = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    *FOREIGN_TYPES,
)


async def pull(
    store: Store,
    reference: str,
    handler: Handler,
    host_build: Build,
    *,
    credentials: Sequence[CredentialSource] = (),
    constraint: PlatformConstraint | None = None,
    settings: ImageSettings | None = None,
    progress: Progress = ignore_progress,
) -> StoredImage:
    """Pull one image. Use a `Puller` to pull more than one in a process."""
    async with Puller(store, settings) as puller:
        return await puller.pull(
            reference,
            handler,
            host_build,
            credentials=credentials,
            constraint=constraint,
            progress=progress,
        )


async def find_variant(
    store: Store,
    reference: str,
    handler: Handler,
    host_build: Build,
    constraint: PlatformConstraint | None = None,
) -> StoredImage:
    """Return the stored image with a name or id for a handler, without network access.

    If the name was pulled for another handler, choose again among the stored manifests.
    """
    target = PullTarget(
        handler, host_build, constraint or PlatformConstraint(), host_architecture()
    )
    stored = store.find(reference, handler.name, host_build)
    if stored and target.accepts(stored.architecture, stored.os_version):
        return stored

    described = await describe_stored(store, reference)
    if not described:
        raise not_pulled_error(reference, handler.name)
    name, root, image = described
    chosen = choose_for_target(image, name, target)
    names = _names(parse_reference(name), root)
    variant = ImageVariant(names, root, str(host_build.base), handler.name, chosen.digest)
    if added := store.add_variant(variant):
        return added
    raise ImageNotPulled(
        f'failed to resolve image "{reference}": {name} was pulled for other handlers, but not '
        f"its manifest for {chosen.platform}, which the handler {handler.name} needs.",
        f"Pull it: winpod pull --handler {handler.name} {name}",
    )


async def describe_stored(store: Store, reference: str) -> tuple[str, str, Image] | None:
    """Return the pulled name for any handler, the digest it resolved to, and its index."""

    async def read(descriptor: Descriptor, limit: int) -> bytes:
        del limit  # was enforced when the document was fetched
        return store.content(descriptor.digest)

    for name, root in store.resolved_names(reference):
        try:
            return (
                name,
                root,
                await describe_image(name, descriptor_of_digest(root), read, sizes=False),
            )
        except ImageNotFound:
            continue
    return None


class Puller:
    """Runs the pulls of one process, which share layers, download slots and unpack workers."""

    def __init__(self, store: Store, settings: ImageSettings | None = None) -> None:
        self.settings = settings or ImageSettings()
        self.context = PullContext(
            store,
            asyncio.Semaphore(self.settings.max_concurrent_downloads),
            UnpackPool(store.work_directory().shared.descriptor),
            SingleFlight(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.context.unpackers.__aexit__(kind, error, traceback)

    async def pull(
        self,
        text: str,
        handler: Handler,
        host: Build,
        *,
        credentials: Sequence[CredentialSource] = (),
        constraint: PlatformConstraint | None = None,
        base_layers: BaseLayerPolicy | None = None,
        progress: Progress = ignore_progress,
    ) -> StoredImage:
        target = PullTarget(handler, host, constraint or PlatformConstraint(), host_architecture())
        policy = base_layers or self.settings.base_layers
        timeout = self.settings.inactivity_timeout
        async with open_source(text, credentials, timeout) as source:
            purpose = f"{host.base} {handler.name} {source.reference}"
            with self.context.store.lease(purpose) as lease:
                return await _Pull(self, source, lease, target, policy, progress).run()


class _Pull:
    """One pull, from resolving the name to committing the image."""

    def __init__(
        self,
        puller: Puller,
        source: ImageSource,
        lease: Lease,
        target: PullTarget,
        policy: BaseLayerPolicy,
        progress: Progress,
    ) -> None:
        self._settings = puller.settings
        self._store = puller.context.store
        self._source = source
        self._lease = lease
        self._target = target
        self._policy = policy
        self._name = source.name
        self._layers = LayerFetcher(
            puller.context, source, lease, ProgressLog(source.name, progress).report
        )
        self._documents: set[str] = set()

    async def run(self) -> StoredImage:
        started = time.monotonic()
        root = await self._source.resolve()
        image = await describe_image(self._name, root, self._fetch, sizes=False)
        chosen = choose_for_target(image, self._name, self._target)
        manifest, config = await self._read_manifest(chosen)
        platform = self._check_platform(chosen, config)
        layers = await self._select_layers(chosen.digest, manifest, config)
        LOGGER.info(
            "Pulling image %s, handler %s, manifest %s (%s), %d layers, %d to pull",
            self._name,
            self._target.handler.name,
            chosen.digest,
            platform,
            len(layers),
            sum(layer.kept for layer in layers),
        )
        await self._layers.fetch(layers, manifest.layers)
        stored = await self._commit(root.digest, chosen, platform, manifest, layers)
        LOGGER.info(
            "Pulled image %s, id %s in %.1f s", self._name, stored.id, time.monotonic() - started
        )
        return stored

    async def _fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        self._documents.add(descriptor.digest)
        self._store.add_to_lease(self._lease, DOCUMENT, descriptor.digest)
        data = self._store.read_document(descriptor)
        if data is None:
            data = await self._source.fetch(descriptor, limit)
            self._store.write_document(self._lease, descriptor.digest, data)
        return data

    async def _read_manifest(self, chosen: Manifest) -> tuple[ImageManifest, bytes]:
        data = await self._fetch(descriptor_of_digest(chosen.digest), MANIFEST_LIMIT)
        manifest = parse_document(data, f'The manifest {chosen.digest} of "{self._name}"')
        if not isinstance(manifest, ImageManifest):
            raise CorruptContent(
                f'{chosen.digest} of "{self._name}" is an index and not a manifest.'
            )
        for layer in manifest.layers:
            is_layer = layer.media_type.startswith(_LAYER_TYPES) and layer.size > 0
            if not is_layer or "encrypted" in layer.media_type:
                raise CorruptContent(
                    f'{layer.digest} of "{self._name}" is "{layer.media_type}" of {layer.size} '
                    "bytes, which is not a supported layer.",
                    "Is this a container image?",
                )
        return manifest, await self._fetch(manifest.config, CONFIG_LIMIT)

    def _check_platform(self, chosen: Manifest, config: bytes) -> Platform:
        """Return the platform, checking that of the config if the index has no build."""
        platform = parse_config(config, f'The config of "{self._name}"')
        if chosen.platform.os_version:
            return chosen.platform
        only = Manifest(chosen.digest, platform, 0)
        choose_for_target(
            Image(self._name, chosen.digest, (only,), is_index=False), self._name, self._target
        )
        return platform

    async def _select_layers(
        self, digest: str, manifest: ImageManifest, config: bytes
    ) -> tuple[StoredLayer, ...]:
        """Return the layers, each with whether it is a base layer and is to be kept."""
        rootfs = parse_rootfs(config, f'The config of "{self._name}"')
        if len(rootfs.diff_ids) != len(manifest.layers):
            raise CorruptContent(
                f'The config of "{self._name}" has {len(rootfs.diff_ids)} layers, but its '
                f"manifest has {len(manifest.layers)}.",
                "Push the image again with a current tool.",
            )
        if recorded := self._store.layers_of_manifest(digest):
            base = sum(layer.base for layer in recorded)
        else:
            base = await count_base_layers(manifest.layers, rootfs.made_by, self._peek)
        skipped = base if self._policy is BaseLayerPolicy.SKIP else 0
        return tuple(
            StoredLayer(layer.digest, diff_id, position < base, position >= skipped)
            for position, (layer, diff_id) in enumerate(
                zip(manifest.layers, rootfs.diff_ids, strict=True)
            )
        )

    async def _peek(self, layer: Descriptor) -> bool:
        head = await self._source.read_head(layer, min(_PEEK_SIZE, layer.size))
        return await asyncio.to_thread(is_base_layer, head, "none")

    async def _commit(
        self,
        root: str,
        chosen: Manifest,
        platform: Platform,
        manifest: ImageManifest,
        layers: tuple[StoredLayer, ...],
    ) -> StoredImage:
        sizes = self._layers.sizes
        kept = [layer.diff_id for layer in layers if layer.kept]
        for diff_id in self._store.layers_without_size(kept):
            if diff_id not in sizes:
                path = self._store.layer_path(diff_id)
                sizes[diff_id] = await asyncio.to_thread(tree_usage, path)
        if self._settings.sync:
            await run_to_completion(asyncio.to_thread(self._store.sync))
        variant = ImageVariant(
            _names(self._source.reference, root),
            root,
            str(self._target.host.base),
            self._target.handler.name,
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
        return self._store.commit(self._lease, image, sizes)


def _names(reference: Reference, root: str) -> frozenset[str]:
    repository = f"{reference.registry}/{reference.repository}"
    tag = {f"{repository}:{reference.tag}"} if reference.tag and not reference.digest else set()
    return frozenset(tag | {f"{repository}@{root}"})

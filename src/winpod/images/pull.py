"""Images into the store, for a handler: chosen by its build, without Microsoft's base layers.

Layers are downloaded and unpacked at once, several at a time, each at most once: pulls in one
process share what they have in common, and pulls in several processes wait for each other, layer by
layer. A pull that ends early, for whatever reason, leaves what the next one can go on from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from winpod.images.credentials import CredentialSource
from winpod.images.download import finish
from winpod.images.errors import BadContent, ImageNotFound, NotPulled
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
)
from winpod.images.pull_choice import Asked, choose, own_architecture
from winpod.images.pull_layers import Layers, Means
from winpod.images.pull_progress import LOG, Notes, Progress, silent
from winpod.images.pull_sharing import Sharing
from winpod.images.pull_source import Source, open_source
from winpod.images.pull_unpack import Unpackers
from winpod.images.recognise import FOREIGN_TYPES, count_base_layers
from winpod.images.references import Reference, parse_reference
from winpod.images.settings import BasePolicy, ImageSettings
from winpod.images.store import DOCUMENT, Store
from winpod.images.store_size import measure
from winpod.images.store_trouble import not_pulled
from winpod.images.stored import Lease, NewImage, StoredImage, StoredLayer, Variant
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler
from winpod.windows.objects import Narrowing
from winpod.windows.platforms import Image, Manifest, Platform

_PEEK = 1 << 18
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
    narrowing: Narrowing | None = None,
    settings: ImageSettings | None = None,
    progress: Progress = silent,
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

    found = await describe_stored(store, reference)
    if not found:
        raise not_pulled(reference, handler.name)
    name, root, image = found
    chosen = choose(image, name, asked)
    names = _names(parse_reference(name), root)
    variant = Variant(names, root, str(host_build.base), handler.name, chosen.digest)
    if added := store.add_variant(variant):
        return added
    raise NotPulled(
        f'failed to resolve image "{reference}": {name} was pulled for other handlers, and its '
        f"manifest for {chosen.platform}, which the handler {handler.name} needs, was not.",
        f"Pull it: winpod pull --handler {handler.name} {name}",
    )


async def describe_stored(store: Store, reference: str) -> tuple[str, str, Image] | None:
    """The name that was pulled for whichever handler, what it was resolved to, and its index."""

    async def read(descriptor: Descriptor, limit: int) -> bytes:
        del limit  # was kept when the document was fetched
        return store.content(descriptor.digest)

    for name, root in store.roots(reference):
        try:
            return name, root, await describe_image(name, pointer(root), read, sizes=False)
        except ImageNotFound:
            continue
    return None


class Puller:
    """The pulls of one process, which share connections to nothing but each other's layers."""

    def __init__(self, store: Store, settings: ImageSettings | None = None) -> None:
        self.settings = settings or ImageSettings()
        self.means = Means(
            store,
            asyncio.Semaphore(self.settings.max_concurrent_downloads),
            Unpackers(store.session().shared.descriptor),
            Sharing(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.means.unpackers.__aexit__(kind, error, traceback)

    async def pull(
        self,
        text: str,
        handler: Handler,
        host: Build,
        *,
        credentials: Sequence[CredentialSource] = (),
        narrowing: Narrowing | None = None,
        base_layers: BasePolicy | None = None,
        progress: Progress = silent,
    ) -> StoredImage:
        asked = Asked(handler, host, narrowing or Narrowing(), own_architecture())
        policy = base_layers or self.settings.base_layers
        timeout = self.settings.inactivity_timeout
        async with open_source(text, credentials, timeout) as source:
            purpose = f"{host.base} {handler.name} {source.reference}"
            with self.means.store.lease(purpose) as lease:
                return await _Pull(self, source, lease, asked, policy, progress).run()


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
        self._settings = puller.settings
        self._store = puller.means.store
        self._source = source
        self._lease = lease
        self._asked = asked
        self._policy = policy
        self._name = source.name
        self._layers = Layers(puller.means, source, lease, Notes(source.name, progress).take)
        self._documents: set[str] = set()

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
        await self._layers.bring(layers, manifest.layers)
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
        for diff_id in self._store.unmeasured(kept):
            if diff_id not in sizes:
                path = self._store.layer_path(diff_id)
                sizes[diff_id] = await asyncio.to_thread(measure, path)
        if self._settings.sync:
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
        return self._store.commit(self._lease, image, sizes)


def _names(reference: Reference, root: str) -> frozenset[str]:
    repository = f"{reference.registry}/{reference.repository}"
    tag = {f"{repository}:{reference.tag}"} if reference.tag and not reference.digest else set()
    return frozenset(tag | {f"{repository}@{root}"})

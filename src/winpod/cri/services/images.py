"""CRI ImageService: pull, list and remove images per runtime handler.

Resolves the handler of a request, calls the store or the puller, and converts the result. Without a
handler in the request, the handler of its sandbox applies, else the default.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from winpod.compute.spec import ImageConfig, read_image_config
from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import SandboxRecord
from winpod.errors import InvalidInput
from winpod.images.errors import ImageNotPulled
from winpod.images.manifests import parse_document
from winpod.images.pull.platform_match import platform_constraint_of, resolve_handler
from winpod.images.pull.puller import Puller, find_variant
from winpod.images.registry.auth import Credential, CredentialSource, read_docker_config
from winpod.images.store.records import StoredImage
from winpod.images.store.store import Store
from winpod.labels import RUNTIME_HANDLER_ANNOTATION
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler, Handlers

SandboxHandler = Callable[[api.PodSandboxConfig], str]
"""Returns the handler of the sandbox with this config; empty if there is none."""

_STREAM_PAGE = 100


@dataclass(frozen=True, slots=True)
class _RequestCredentials:
    """Credentials from a request; used for any registry."""

    credential: Credential

    async def find(self, registry: str, repository: str) -> Credential | None:
        del registry, repository
        return self.credential


class ImageService:
    """The CRI's ImageService over one store, for one host build."""

    def __init__(
        self,
        store: Store,
        puller: Puller,
        host: Build,
        handlers: Handlers,
        sandbox_handler: SandboxHandler,
    ) -> None:
        self._store = store
        self._puller = puller
        self._host = host
        self._handlers = handlers
        self._sandbox_handler = sandbox_handler

    async def list_images(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        return api.ListImagesResponse(images=await self._list(request.filter))

    async def stream_images(
        self, request: api.StreamImagesRequest
    ) -> AsyncIterator[api.StreamImagesResponse]:
        images = await self._list(request.filter)
        for start in range(0, len(images), _STREAM_PAGE):
            yield api.StreamImagesResponse(images=images[start : start + _STREAM_PAGE])

    async def _list(self, filter_: api.ImageFilter) -> list[api.Image]:
        spec = filter_.image
        if not spec.image:
            handler = spec.runtime_handler or None
            return [_image(i) for i in await asyncio.to_thread(self._store.images, handler)]
        found = await self._find(spec)
        return [_image(found)] if found else []

    async def image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        """Return the status of an image; empty, not an error, if it is missing."""
        spec = request.image
        if not spec.image:
            raise InvalidInput("image is required.")
        found = await self._find(spec)
        if found is None:
            return api.ImageStatusResponse()
        info = {"info": self._details(found)} if request.verbose else {}
        return api.ImageStatusResponse(image=_image(found), info=info)

    async def _find(self, spec: api.ImageSpec) -> StoredImage | None:
        handler = self._handler(spec.runtime_handler, spec.annotations)
        try:
            return await find_variant(
                self._store,
                spec.image,
                handler,
                self._host,
                platform_constraint_of(spec.annotations),
            )
        except ImageNotPulled:
            return None

    def _handler(self, named: str, annotations: Mapping[str, str], sandbox: str = "") -> Handler:
        return resolve_handler(self._handlers, named, annotations, sandbox)

    def _details(self, image: StoredImage) -> str:
        manifest = parse_document(self._store.content(image.manifest), image.manifest)
        return json.dumps({"image": asdict(image), "manifest": asdict(manifest)}, default=str)

    async def pull_image(self, request: api.PullImageRequest) -> api.PullImageResponse:
        spec = request.image
        if not spec.image:
            raise InvalidInput("image is required.")
        sandbox = self._sandbox_handler(request.sandbox_config)
        annotations = {**request.sandbox_config.annotations, **spec.annotations}
        pulled = await self._puller.pull(
            spec.image,
            self._handler(spec.runtime_handler, annotations, sandbox),
            self._host,
            credentials=tuple(_credentials(request.auth)),
            constraint=platform_constraint_of(annotations),
        )
        return api.PullImageResponse(image_ref=pulled.id)

    async def remove_image(self, request: api.RemoveImageRequest) -> api.RemoveImageResponse:
        """Remove an image with all its names; without a handler, for every handler."""
        spec = request.image
        if not spec.image:
            raise InvalidInput("image is required.")
        named = spec.runtime_handler or spec.annotations.get(RUNTIME_HANDLER_ANNOTATION, "")
        await asyncio.to_thread(self._store.remove, spec.image, named or None)
        return api.RemoveImageResponse()

    async def image_fs_info(self, request: api.ImageFsInfoRequest) -> api.ImageFsInfoResponse:
        del request
        usage = await asyncio.to_thread(self._store.usage)
        filesystem = api.FilesystemUsage(
            timestamp=int(usage.timestamp * 1e9) or time.time_ns(),
            fs_id=api.FilesystemIdentifier(mountpoint=str(usage.mountpoint)),
            used_bytes=api.UInt64Value(value=usage.bytes),
            inodes_used=api.UInt64Value(value=usage.inodes),
        )
        return api.ImageFsInfoResponse(
            image_filesystems=[filesystem], container_filesystems=[filesystem]
        )


class StoredContainerImages:
    """Images of the store, which are not removed while a container uses them."""

    def __init__(self, store: Store, host: Build, handlers: Handlers) -> None:
        self._store = store
        self._host = host
        self._handlers = handlers

    async def find(self, image: api.ImageSpec, sandbox: SandboxRecord) -> StoredImage:
        annotations = {**sandbox.parsed_config.annotations, **image.annotations}
        return await find_variant(
            self._store,
            image.image,
            self._handlers.get(sandbox.handler),
            self._host,
            platform_constraint_of(annotations),
        )

    def config(self, image: StoredImage) -> ImageConfig:
        document = json.loads(self._store.content(image.manifest))
        return read_image_config(self._store.content(document["config"]["digest"]))

    def layers(self, image: StoredImage) -> list[Path]:
        return self._store.layers_of(image)

    async def retain(self, container_id: str, image: StoredImage) -> None:
        await asyncio.to_thread(self._store.retain, container_id, image)

    async def release(self, container_id: str) -> None:
        await asyncio.to_thread(self._store.release, container_id)


def _image(image: StoredImage) -> api.Image:
    return api.Image(
        id=image.id,
        repo_tags=image.tags,
        repo_digests=image.digests,
        size=max(image.size, 1),  # clients treat size 0 as a broken image
        spec=api.ImageSpec(image=image.id, runtime_handler=image.handler),
        pinned=image.pinned,
    )


def _credentials(auth: api.AuthConfig) -> Iterable[CredentialSource]:
    """Return the credentials of the request, else the docker config of this machine."""
    if auth.ByteSize():
        yield _RequestCredentials(_credential(auth))
    elif config := read_docker_config():
        yield config


def _credential(auth: api.AuthConfig) -> Credential:
    username, password = auth.username, auth.password
    if auth.auth and not username:
        try:
            pair = base64.b64decode(auth.auth, validate=True).decode().rstrip("\0")
        except (binascii.Error, UnicodeDecodeError):
            raise InvalidInput(
                "the credentials of the request are not base64.", "Check the pull secret."
            ) from None
        username, _, password = pair.partition(":")
    return Credential(username, password, auth.identity_token)

"""The image service: images pulled, listed and removed for a handler.

Thin: which handler a request is for, the store or the puller called, the answer translated. A
client that names no handler gets that of the sandbox in the request, else the default.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from winpod.cri.proto import api_pb2 as api
from winpod.images.credentials import Credential, CredentialSource, read_docker_config
from winpod.images.errors import NotPulled
from winpod.images.manifests import parse_document
from winpod.images.pull import Puller, variant_for
from winpod.images.pull_choice import narrowing_of, resolve_handler
from winpod.images.store import Store
from winpod.images.stored import StoredImage
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import Handler, Handlers

SandboxHandler = Callable[[api.PodSandboxConfig], str]
"""The handler of the sandbox that a config describes, empty where there is none."""

_STREAM_PAGE = 100


@dataclass(frozen=True, slots=True)
class _Given:
    """The credentials that came with a request, for whatever registry the image is in."""

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
        return api.ListImagesResponse(images=await self._listed(request.filter))

    async def stream_images(
        self, request: api.StreamImagesRequest
    ) -> AsyncIterator[api.StreamImagesResponse]:
        images = await self._listed(request.filter)
        for start in range(0, len(images), _STREAM_PAGE):
            yield api.StreamImagesResponse(images=images[start : start + _STREAM_PAGE])

    async def _listed(self, wanted: api.ImageFilter) -> list[api.Image]:
        spec = wanted.image
        if not spec.image:
            handler = spec.runtime_handler or None
            return [_image(i) for i in await asyncio.to_thread(self._store.images, handler)]
        found = await self._find(spec)
        return [_image(found)] if found else []

    async def image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        """An image that is not there is an empty answer, not an error."""
        spec = request.image
        if not spec.image:
            raise InvalidInput("no image was named to tell the status of.")
        found = await self._find(spec)
        if found is None:
            return api.ImageStatusResponse()
        info = {"info": self._details(found)} if request.verbose else {}
        return api.ImageStatusResponse(image=_image(found), info=info)

    async def _find(self, spec: api.ImageSpec) -> StoredImage | None:
        handler = self._handler(spec.runtime_handler, spec.annotations)
        try:
            return await variant_for(
                self._store, spec.image, handler, self._host, narrowing_of(spec.annotations)
            )
        except NotPulled:
            return None

    def _handler(self, named: str, annotations: Mapping[str, str], sandbox: str = "") -> Handler:
        return resolve_handler(self._handlers, named, annotations, sandbox)

    def _details(self, image: StoredImage) -> str:
        manifest = parse_document(self._store.content(image.manifest), image.manifest)
        return json.dumps({"image": asdict(image), "manifest": asdict(manifest)}, default=str)

    async def pull_image(self, request: api.PullImageRequest) -> api.PullImageResponse:
        spec = request.image
        if not spec.image:
            raise InvalidInput("no image was named to pull.")
        sandbox = self._sandbox_handler(request.sandbox_config)
        annotations = {**request.sandbox_config.annotations, **spec.annotations}
        pulled = await self._puller.pull(
            spec.image,
            self._handler(spec.runtime_handler, annotations, sandbox),
            self._host,
            credentials=tuple(_credentials(request.auth)),
            narrowing=narrowing_of(annotations),
        )
        return api.PullImageResponse(image_ref=pulled.id)

    async def remove_image(self, request: api.RemoveImageRequest) -> api.RemoveImageResponse:
        """One name removes all names of its image; without a handler, for every handler."""
        spec = request.image
        if not spec.image:
            raise InvalidInput("no image was named to remove.")
        named = spec.runtime_handler or spec.annotations.get("kubernetes.io/runtimehandler", "")
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


def _image(image: StoredImage) -> api.Image:
    return api.Image(
        id=image.id,
        repo_tags=image.tags,
        repo_digests=image.digests,
        size=max(image.size, 1),  # a client takes an image without a size for broken
        spec=api.ImageSpec(image=image.id, runtime_handler=image.handler),
        pinned=image.pinned,
    )


def _credentials(auth: api.AuthConfig) -> Iterable[CredentialSource]:
    """Those of the request; else those this machine has."""
    if auth.ByteSize():
        yield _Given(_credential(auth))
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

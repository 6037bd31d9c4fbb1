"""Resolver of image names to platforms: layouts first, then the registry or, offline, the cache.

Each reference is looked up once per resolver, including failures. The cache on disk has documents
by digest, and the last known digest of each tag. Content is verified whenever it is read, so a
damaged entry counts as missing; an unwritable cache is ignored. Files are written atomically, so
several processes may share a cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from winpod.errors import InvalidInput
from winpod.files import user_home
from winpod.images.errors import CorruptContent, NotCachedOffline, RegistryUnavailable
from winpod.images.layout import Layout, open_layout
from winpod.images.manifests import (
    Descriptor,
    describe_image,
    descriptor_of_digest,
    is_digest,
    verify_content,
)
from winpod.images.references import Reference, parse_reference
from winpod.images.registry.auth import CredentialSource, read_docker_config, read_pull_secrets
from winpod.images.registry.client import RegistryClient, Repository
from winpod.windows.builds import RELEASES, Build, ServicingChannel, parse_version
from winpod.windows.platforms import Image, Manifest, Platform


def default_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else user_home() / ".cache"
    return home / "winpod"


class DocumentCache:
    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def read(self, descriptor: Descriptor) -> bytes | None:
        """Return the content of a digest, or None if it is missing or damaged."""
        path = self._blob(descriptor.digest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            verify_content(data, descriptor, str(path))
        except CorruptContent:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return data

    def write(self, digest: str, data: bytes) -> None:
        self._write(self._blob(digest), data)

    def cached_tag_digest(self, reference: Reference) -> Descriptor | None:
        """Return the digest of a tag at its last lookup."""
        try:
            record = json.loads(self._tag(reference).read_bytes())
            digest = str(record["digest"])
            if record["reference"] != str(reference) or not is_digest(digest):
                return None
            return descriptor_of_digest(digest)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store_tag_digest(self, reference: Reference, digest: str) -> None:
        record = {"reference": str(reference), "digest": digest}
        self._write(self._tag(reference), json.dumps(record).encode())

    def _blob(self, digest: str) -> Path:
        return self.directory / "blobs" / digest.replace(":", "/")

    def _tag(self, reference: Reference) -> Path:
        name = hashlib.sha256(str(reference).encode()).hexdigest()
        return self.directory / "tags" / f"{name}.json"

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


LAYOUT_PREFIXES = ("oci:", "oci-archive:")


def parse_layout_name(text: str) -> tuple[Path, str] | None:
    """Split `oci:DIR[:NAME]` or `oci-archive:FILE[:NAME]`, or return None for other names."""
    for prefix in LAYOUT_PREFIXES:
        if text.startswith(prefix):
            path, _, name = text.removeprefix(prefix).partition(":")
            if not path:
                raise InvalidInput(f'"{text}" has no path.', f"Write {prefix}PATH:NAME.")
            return Path(path), name
    return None


class ImageResolver:
    """Describes images. Async context manager.

    `sizes=False` skips the sizes, which takes one request per image instead of one per platform.
    `time_limit` applies to each image. `credentials` are tried after the pull secrets.
    `user_credentials=False` ignores the current user's logins, for lookups on behalf of other
    users.
    """

    def __init__(
        self,
        *,
        layouts: Sequence[Path] = (),
        offline: bool = False,
        pull_secrets: Sequence[Mapping[str, Any]] = (),
        cache: DocumentCache | None = None,
        time_limit: float = 30.0,
        concurrency: int = 16,
        sizes: bool = True,
        credentials: Sequence[CredentialSource] = (),
        user_credentials: bool = True,
    ) -> None:
        self._layout_paths = tuple(layouts)
        self._offline = offline
        self._pull_secrets = tuple(pull_secrets)
        self._cache = cache or DocumentCache()
        self._time_limit = time_limit
        self._sizes = sizes
        self._credentials = tuple(credentials)
        self._slots = asyncio.Semaphore(concurrency)
        self._registry = RegistryClient(answer_seconds=time_limit / 3, connections=2 * concurrency)
        self._layouts: dict[Path, Layout] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[Image]] = {}
        self._repositories: dict[tuple[str, str, str], Repository] = {}
        self._docker_config: tuple[CredentialSource, ...] | None = None if user_credentials else ()

    async def __aenter__(self) -> Self:
        for path in self._layout_paths:
            self._layout(path)
        await self._registry.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._registry.__aexit__(kind, error, traceback)
        for layout in self._layouts.values():
            layout.close()

    async def describe(self, text: str, pull_secrets: Sequence[Mapping[str, Any]] = ()) -> Image:
        """Return an image's platforms for a reference or a layout name such as `oci:DIR[:NAME]`."""
        if location := parse_layout_name(text):
            path, name = location
            key = (text, "")
            work = self._from_layout(text, path, name)
        else:
            reference = parse_reference(text)
            secrets = (*pull_secrets, *self._pull_secrets)
            key = (str(reference), json.dumps(secrets, sort_keys=True, default=str))
            work = self._from_reference(reference, secrets, key[1])
        if key in self._tasks:
            work.close()
        else:
            self._tasks[key] = asyncio.create_task(work)
        return await asyncio.shield(self._tasks[key])

    async def _from_layout(self, text: str, path: Path, name: str) -> Image:
        layout = self._layout(path)
        return await layout.describe(text, layout.find_by_name(name), sizes=self._sizes)

    async def _from_reference(
        self, reference: Reference, secrets: Sequence[Mapping[str, Any]], secrets_key: str
    ) -> Image:
        for path in self._layout_paths:
            layout = self._layout(path)
            if entry := layout.find(reference):
                return await layout.describe(str(reference), entry, sizes=self._sizes)
        if self._offline:
            return await self._from_cache(reference)
        key = (reference.registry, reference.repository, secrets_key)
        if key not in self._repositories:
            secret_sources = read_pull_secrets(secrets)
            sources = (*secret_sources, *self._credentials, *self._user_credentials())
            self._repositories[key] = self._registry.repository(reference, sources)
        return await self._from_registry(reference, self._repositories[key])

    async def _from_cache(self, reference: Reference) -> Image:
        root = (
            descriptor_of_digest(reference.digest)
            if reference.digest
            else self._cache.cached_tag_digest(reference)
        )
        advice = "Look it up once without --offline, or use a layout that contains it."
        if root is None:
            raise NotCachedOffline(
                f'"{reference.familiar}" is not cached, and offline mode does not contact '
                "registries.",
                advice,
            )

        async def read(descriptor: Descriptor, limit: int) -> bytes:
            del limit  # was enforced when the content was fetched
            if (data := self._cache.read(descriptor)) is not None:
                return data
            raise NotCachedOffline(
                f'"{reference.familiar}" is only partly cached ({descriptor.digest} is missing), '
                "and offline mode does not contact registries.",
                advice,
            )

        return await describe_image(str(reference), root, read, sizes=self._sizes)

    async def _from_registry(self, reference: Reference, repository: Repository) -> Image:
        async def read(descriptor: Descriptor, limit: int) -> bytes:
            if (data := self._cache.read(descriptor)) is not None:
                return data
            data = await repository.fetch(descriptor, limit)
            self._cache.write(descriptor.digest, data)
            return data

        async with self._slots:
            try:
                async with asyncio.timeout(self._time_limit):
                    root = await repository.resolve(reference)
                    image = await describe_image(str(reference), root, read, sizes=self._sizes)
            except TimeoutError:
                error = repository.last_error
                details = f" Last error: {error.message}" if error else ""
                raise RegistryUnavailable(
                    f'"{reference.familiar}" could not be looked up within '
                    f"{self._time_limit:g} s.{details}",
                    "Check the network; --offline uses cached images.",
                ) from None
        if reference.tag and not reference.digest:
            self._cache.store_tag_digest(reference, root.digest)
        return image

    def _layout(self, path: Path) -> Layout:
        if path not in self._layouts:
            self._layouts[path] = open_layout(path)
        return self._layouts[path]

    def _user_credentials(self) -> tuple[CredentialSource, ...]:
        if self._docker_config is None:
            config = read_docker_config()
            self._docker_config = (config,) if config else ()
        return self._docker_config


_VERSION_IN_TAG = re.compile(r"(?:^|[-_])(\d+\.\d+\.\d{5}(?:\.\d+)?)(?=$|[-_])")
_WINDOWS_NAMES = frozenset(
    {"windows", "windowsserver", "windowsservercore", "servercore", "nanoserver", "ltsc"}
)
_BUILD_BY_ALIAS: dict[str, Build] = {
    alias: release.build
    for release in RELEASES
    if release.channel is not ServicingChannel.CLIENT
    for alias in release.aliases
}
_KNOWN_BUILDS = frozenset(release.build for release in RELEASES)


def guess_build_from_tag(reference: Reference) -> Image | None:
    """Guess the Windows build of an image from its tag, for images that cannot be looked up.

    `ltsc2022` and `10.0.17763.805` are unambiguous; `1809` or `2022` count only as a whole part of
    the tag, and if the name or the tag also mentions Windows. Two different builds are no match.
    """
    tag = reference.tag.lower()
    words = set(re.split(r"[-_.]", tag))
    is_windows = bool(_WINDOWS_NAMES & (words | set(re.split(r"[/\-_.]", reference.repository))))
    versions = [parse_version(text) for text in _VERSION_IN_TAG.findall(tag)]
    builds = {v for v in versions if v and v.base in _KNOWN_BUILDS}
    if not builds:
        aliases = {word for word in words if word.startswith("ltsc")}
        if is_windows:
            aliases |= set(re.split(r"[-_]", tag))
        builds = {_BUILD_BY_ALIAS[word] for word in aliases if word in _BUILD_BY_ALIAS}
    if len(builds) != 1:
        return None
    architecture = "arm64" if words & {"arm64", "arm64v8", "aarch64"} else "amd64"
    platform = Platform.normalised("windows", architecture, os_version=str(builds.pop()))
    manifest = Manifest(digest="", platform=platform, size=0)
    return Image(str(reference), "", (manifest,), is_index=False, is_guess=True)

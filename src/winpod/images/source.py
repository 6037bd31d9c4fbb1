"""Where images are looked up: layouts first, then what is cached, then the registry.

The one face of this package for commands that want to know what an image is. Each reference is
looked up once however often it is asked for, failures included.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from winpod.images.cache import Cache
from winpod.images.credentials import CredentialSource, read_docker_config, read_pull_secrets
from winpod.images.errors import NotKnownOffline, RegistryUnavailable
from winpod.images.layout import Layout, open_layout
from winpod.images.manifests import Descriptor, describe_image, pointer
from winpod.images.references import Reference, parse_reference
from winpod.images.registry import Registry, Repository
from winpod.windows.builds import RELEASES, Build, Channel, parse_version
from winpod.windows.errors import InvalidInput
from winpod.windows.platforms import Image, Manifest, Platform

LAYOUT_PREFIXES = ("oci:", "oci-archive:")


def parse_layout_name(text: str) -> tuple[Path, str] | None:
    """Path and name of `oci:DIR[:NAME]` or `oci-archive:FILE[:NAME]`, or None for anything else."""
    for prefix in LAYOUT_PREFIXES:
        if text.startswith(prefix):
            path, _, name = text.removeprefix(prefix).partition(":")
            if not path:
                raise InvalidInput(f'"{text}" names no path.', f"Write {prefix}PATH:NAME.")
            return Path(path), name
    return None


class ImageSources:
    """Describes images. An async context manager.

    `sizes=False` leaves out what only their sizes need: one request an image instead of one a
    platform. `time_limit` is for each image. `user_credentials=False` leaves out this user's own
    logins, where images are looked up for somebody else.
    """

    def __init__(
        self,
        *,
        layouts: Sequence[Path] = (),
        offline: bool = False,
        pull_secrets: Sequence[Mapping[str, Any]] = (),
        cache: Cache | None = None,
        time_limit: float = 30.0,
        concurrency: int = 16,
        sizes: bool = True,
        user_credentials: bool = True,
    ) -> None:
        self._layout_paths = tuple(layouts)
        self._offline = offline
        self._pull_secrets = tuple(pull_secrets)
        self._cache = cache or Cache()
        self._time_limit = time_limit
        self._sizes = sizes
        self._slots = asyncio.Semaphore(concurrency)
        self._registry = Registry(answer_seconds=time_limit / 3, connections=2 * concurrency)
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
        """An image's platforms, by a reference, `oci:DIR[:NAME]` or `oci-archive:FILE[:NAME]`."""
        if location := parse_layout_name(text):
            path, name = location
            key = (text, "")
            work = self._from_layout(text, path, name)
        else:
            reference = parse_reference(text)
            secrets = (*pull_secrets, *self._pull_secrets)
            key = (str(reference), json.dumps(secrets, sort_keys=True, default=str))
            work = self._from_anywhere(reference, secrets, key[1])
        if key in self._tasks:
            work.close()
        else:
            self._tasks[key] = asyncio.create_task(work)
        return await asyncio.shield(self._tasks[key])

    async def _from_layout(self, text: str, path: Path, name: str) -> Image:
        layout = self._layout(path)
        return await layout.describe(text, layout.named(name), sizes=self._sizes)

    async def _from_anywhere(
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
            sources = (*read_pull_secrets(secrets), *self._user_credentials())
            self._repositories[key] = self._registry.repository(reference, sources)
        return await self._from_registry(reference, self._repositories[key])

    async def _from_cache(self, reference: Reference) -> Image:
        root = pointer(reference.digest) if reference.digest else self._cache.resolved(reference)
        advice = "Look it up once without --offline, or give a layout that has it."
        if root is None:
            raise NotKnownOffline(
                f'"{reference.familiar}" is not known here, and no registry is asked (offline).',
                advice,
            )

        async def read(descriptor: Descriptor, limit: int) -> bytes:
            del limit  # was kept when the content was fetched
            if (data := self._cache.read(descriptor)) is not None:
                return data
            raise NotKnownOffline(
                f'"{reference.familiar}" is not wholly known here ({descriptor.digest} is '
                "missing), and no registry is asked (offline).",
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
                trouble = f" Last: {repository.trouble.sentence}" if repository.trouble else ""
                raise RegistryUnavailable(
                    f'"{reference.familiar}" could not be looked up within '
                    f"{self._time_limit:g} s.{trouble}",
                    "Check the network; --offline uses what is already known.",
                ) from None
        if reference.tag and not reference.digest:
            self._cache.remember(reference, root.digest)
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
_WINDOWS_WORDS = frozenset(
    {"windows", "windowsserver", "windowsservercore", "servercore", "nanoserver", "ltsc"}
)
_BY_ALIAS: dict[str, Build] = {
    alias: release.build
    for release in RELEASES
    if release.channel is not Channel.CLIENT
    for alias in release.aliases
}
_KNOWN_BUILDS = frozenset(release.build for release in RELEASES)


def guess_from_tag(reference: Reference) -> Image | None:
    """The Windows build that a tag names, for when nobody can be asked.

    `ltsc2022` and `10.0.17763.805` speak for themselves; `1809` or `2022` count only as a whole
    word of the tag, and where the name or the tag also says Windows. A tag that names two builds
    names none.
    """
    tag = reference.tag.lower()
    words = set(re.split(r"[-_.]", tag))
    says_windows = bool(_WINDOWS_WORDS & (words | set(re.split(r"[/\-_.]", reference.repository))))
    versions = [parse_version(text) for text in _VERSION_IN_TAG.findall(tag)]
    found = {v for v in versions if v and v.base in _KNOWN_BUILDS}
    if not found:
        named = {word for word in words if word.startswith("ltsc")}
        if says_windows:
            named |= set(re.split(r"[-_]", tag))
        found = {_BY_ALIAS[word] for word in named if word in _BY_ALIAS}
    if len(found) != 1:
        return None
    architecture = "arm64" if words & {"arm64", "arm64v8", "aarch64"} else "amd64"
    platform = Platform.normalised("windows", architecture, os_version=str(found.pop()))
    manifest = Manifest(digest="", platform=platform, size=0)
    return Image(str(reference), "", (manifest,), is_index=False, guessed=True)

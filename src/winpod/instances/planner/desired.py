"""Desired state of an instance: plain data, derived from settings and payload."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A file with the content of `source` or `content`.

    `used_by` are the services that must be stopped while it is replaced; `used_by_pods` files are
    held open by pods too. The file is not needed if all files of `unless` exist: a joined kubelet
    has its own credentials and needs no bootstrap token.
    """

    path: str
    sha256: str
    source: Path | None = None
    content: bytes | None = field(default=None, repr=False)
    is_secret: bool = False
    used_by: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    size: int = 0
    used_by_pods: bool = False


def inline_file(
    path: str,
    content: bytes | str,
    used_by: tuple[str, ...] = (),
    *,
    is_secret: bool = False,
    unless: tuple[str, ...] = (),
) -> DesiredFile:
    """Return a file with generated content, as opposed to one from the payload."""
    data = content.encode() if isinstance(content, str) else content
    return DesiredFile(
        path,
        hashlib.sha256(data).hexdigest(),
        content=data,
        is_secret=is_secret,
        used_by=used_by,
        unless=unless,
        size=len(data),
    )


@dataclass(frozen=True, slots=True)
class DesiredService:
    """A service that starts with Windows and restarts after failures."""

    name: str
    command_line: str
    depends: tuple[str, ...] = ()
    description: str = ""
    restarts: tuple[int, ...] = (10_000, 10_000, 10_000)
    reset_seconds: int = 300


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The complete desired state.

    Directories are listed parents first, services in start order. `networks` are created by the
    services and belong to the kubelet: without one installed, leftovers are removed.
    `managed_directories` contain nothing but files of winpod.
    """

    version: str
    features: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    managed_directories: tuple[str, ...] = ()
    files: tuple[DesiredFile, ...] = ()
    unwanted_files: tuple[str, ...] = ()
    services: tuple[DesiredService, ...] = ()
    unwanted_services: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()

    def file(self, path: str) -> DesiredFile:
        return next(file for file in self.files if file.path == path)

    def service(self, name: str) -> DesiredService:
        return next(service for service in self.services if service.name == name)


@dataclass(frozen=True, slots=True)
class FactQuery:
    """The facts to read from an instance: paths to hash, names to look up.

    `images` is whether to list containerd's images.
    """

    directories: tuple[str, ...]
    files: tuple[str, ...]
    services: tuple[str, ...]
    features: tuple[str, ...]
    images: bool = False

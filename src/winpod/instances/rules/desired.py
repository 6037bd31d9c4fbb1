"""What an instance should be like: plain data, the same for the same settings and payload."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file with the bytes of `source` or of `content`.

    `used_by` are the services that must not run while it is replaced; some are used by every pod
    too. It is not wanted where all files of `unless` exist: a joined kubelet has credentials of its
    own and needs no others.
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


def written(
    path: str,
    content: bytes | str,
    used_by: tuple[str, ...] = (),
    *,
    is_secret: bool = False,
    unless: tuple[str, ...] = (),
) -> WantedFile:
    """A file whose content is made here, and not taken from the payload."""
    data = content.encode() if isinstance(content, str) else content
    return WantedFile(
        path,
        hashlib.sha256(data).hexdigest(),
        content=data,
        is_secret=is_secret,
        used_by=used_by,
        unless=unless,
        size=len(data),
    )


@dataclass(frozen=True, slots=True)
class WantedService:
    """A service that starts with Windows, and again after it failed."""

    name: str
    command_line: str
    depends: tuple[str, ...] = ()
    description: str = ""
    restarts: tuple[int, ...] = (10_000, 10_000, 10_000)
    reset_seconds: int = 300


@dataclass(frozen=True, slots=True)
class Desired:
    """Directories have those above them first; services are in the order they start in.

    The networks are those the services make. They belong to a kubelet: where none is installed,
    what is left of them is removed. `owned` directories hold nothing but ours.
    """

    version: str
    features: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    files: tuple[WantedFile, ...] = ()
    unwanted_files: tuple[str, ...] = ()
    services: tuple[WantedService, ...] = ()
    unwanted_services: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()

    def file(self, path: str) -> WantedFile:
        return next(file for file in self.files if file.path == path)

    def service(self, name: str) -> WantedService:
        return next(service for service in self.services if service.name == name)


@dataclass(frozen=True, slots=True)
class Question:
    """What to read on the instance: the hash of each path, and what is known of each name.

    `images` is whether containerd is to be asked for those it has.
    """

    directories: tuple[str, ...]
    files: tuple[str, ...]
    services: tuple[str, ...]
    features: tuple[str, ...]
    images: bool = False

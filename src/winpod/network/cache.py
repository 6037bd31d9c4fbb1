"""What each sandbox was connected with, on disk: libcni's cache, in its place and format.

An entry is written before the first plugin runs and removed after the last has cleaned up, so
whatever a crash leaves behind in the network has an entry that says how to take it away. It holds
the result so far, and in a key of our own how many plugins had finished.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winpod.network.attachments import Json
from winpod.network.errors import CacheUnwritable

_KIND = "cniCacheV1"
_ADDED = "winpod.dev/added"


@dataclass(frozen=True)
class Entry:
    """`added` counts the plugins whose ADD succeeded; None when another runtime wrote it."""

    network: str
    container_id: str
    interface: str
    netns: str
    config: bytes
    arguments: tuple[tuple[str, str], ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    result: Json | None = None
    added: int | None = None

    @property
    def file_name(self) -> str:
        return f"{self.network}-{self.container_id}-{self.interface}"


class Cache:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._results = directory / "results"

    def write(self, entry: Entry) -> None:
        unfinished = self.directory / f".{entry.file_name}"
        try:
            self._results.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.write_bytes(_encode(entry))
            unfinished.replace(self._results / entry.file_name)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise CacheUnwritable(
                f"Sandbox {entry.container_id} cannot be connected: the CNI cache "
                f"{self.directory} cannot be written: {error.strerror}."
            ) from error

    def remove(self, entry: Entry) -> None:
        (self._results / entry.file_name).unlink(missing_ok=True)

    def of(self, container_id: str) -> list[Entry]:
        paths = self._results.glob(f"*-{container_id}-*")
        found = (_decode(path) for path in sorted(paths))
        return [entry for entry in found if entry and entry.container_id == container_id]

    def entries(self) -> list[Entry]:
        return [entry for path in self._paths() if (entry := _decode(path))]

    def unreadable(self) -> list[str]:
        """Names of files that say nothing but their name: a machine that lost its power."""
        return [path.name for path in self._paths() if _decode(path) is None]

    def discard_unfinished(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in self.directory.iterdir():
                if path.name.startswith("."):
                    path.unlink(missing_ok=True)

    def _paths(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            yield from sorted(self._results.iterdir())


def _encode(entry: Entry) -> bytes:
    document: dict[str, Any] = {
        "kind": _KIND,
        "containerId": entry.container_id,
        "config": base64.b64encode(entry.config).decode(),
        "ifName": entry.interface,
        "networkName": entry.network,
        "netns": entry.netns,
        "cniArgs": entry.arguments,
        "capabilityArgs": entry.capabilities,
    }
    if entry.result is not None:
        document["result"] = entry.result
    if entry.added is not None:
        document[_ADDED] = entry.added
    return json.dumps(document).encode()


def _decode(path: Path) -> Entry | None:
    try:
        document = json.loads(path.read_bytes())
        if document["kind"] != _KIND:
            return None
        return Entry(
            network=document["networkName"],
            container_id=document["containerId"],
            interface=document["ifName"],
            netns=document.get("netns", ""),
            config=base64.b64decode(document["config"]),
            arguments=tuple((key, value) for key, value in document.get("cniArgs") or ()),
            capabilities=document.get("capabilityArgs") or {},
            result=document.get("result"),
            added=document.get(_ADDED),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""Logs that have grown too long are moved aside, and so many of them are kept, as kubelet does.

The newest of those moved aside stays as it is, for readers that have it open; older ones are
compressed. A log whose writer could not be told goes back to its place, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.windows.errors import WinpodError

MAX_BYTES = 10 * 1024 * 1024
MAX_FILES = 5
_MOVED = "%Y%m%d-%H%M%S"
_PACKED, _UNFINISHED = ".gz", ".tmp"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tidying:
    """Of the files beside a log, by name: those to remove, and those to compress."""

    remove: tuple[str, ...]
    compress: tuple[str, ...]


def tidying(log: str, present: Collection[str], max_files: int) -> Tidying:
    """What makes room for a log to be moved aside: it and its successor are two of the files."""
    beside = sorted(name for name in present if name.startswith(f"{log}."))
    unfinished = [name for name in beside if name.endswith(_UNFINISHED)]
    packed = {name for name in beside if name.endswith(_PACKED)}
    twice = [name for name in beside if f"{name}{_PACKED}" in packed]
    kept = [name for name in beside if name not in unfinished and name not in twice]
    excess = kept[: max(0, len(kept) - max(0, max_files - 2))]
    compress = [name for name in kept if name not in excess and name not in packed]
    return Tidying((*unfinished, *twice, *excess), tuple(compress))


class LogRotation:
    """Every container of the runtime that runs is looked after."""

    def __init__(
        self,
        client: Client,
        *,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._clock = clock
        self._paths: dict[str, Path | None] = {}

    async def look(self) -> None:
        """Once through all logs."""
        running = api.ContainerFilter(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING))
        request = api.ListContainersRequest(filter=running)
        listed = (await self._client.call("ListContainers", request)).containers
        self._paths = {one.id: self._paths[one.id] for one in listed if one.id in self._paths}
        for one in listed:
            try:
                if path := await self._path(one.id):
                    await self.look_at(one.id, path)
            except (WinpodError, OSError) as error:
                _log.warning("the log of container %s is not rotated: %s", one.id, error)

    async def _path(self, container: str) -> Path | None:
        if container not in self._paths:
            request = api.ContainerStatusRequest(container_id=container)
            status = (await self._client.call("ContainerStatus", request)).status
            self._paths[container] = Path(status.log_path) if status.log_path else None
        return self._paths[container]

    async def look_at(self, container: str, log: Path) -> None:
        size = _size(log)
        if size is None:
            await self._reopen(container)
        elif size > self._max_bytes:
            await asyncio.to_thread(_tidy, log, self._max_files)
            await self._move_aside(container, log)

    async def _move_aside(self, container: str, log: Path) -> None:
        moved = log.with_name(f"{log.name}.{self._clock().strftime(_MOVED)}")
        _rename(log, moved)
        try:
            await self._reopen(container)
        except WinpodError:
            _rename(moved, log)
            raise

    async def _reopen(self, container: str) -> None:
        request = api.ReopenContainerLogRequest(container_id=container)
        await self._client.call("ReopenContainerLog", request)


def _size(log: Path) -> int | None:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return None


def _rename(log: Path, name: Path) -> None:
    log.rename(name)


def _tidy(log: Path, max_files: int) -> None:
    plan = tidying(log.name, [file.name for file in log.parent.iterdir()], max_files)
    for name in plan.remove:
        log.with_name(name).unlink(missing_ok=True)
    for name in plan.compress:
        _compress(log.with_name(name))


def _compress(file: Path) -> None:
    packed = file.with_name(f"{file.name}{_PACKED}")
    unfinished = packed.with_name(f"{packed.name}{_UNFINISHED}")
    with file.open("rb") as source, gzip.open(unfinished, "wb") as target:
        shutil.copyfileobj(source, target)
    unfinished.rename(packed)
    file.unlink()

"""Rotates container logs by size and keeps a limited number of files, as the kubelet does.

The newest rotated file stays uncompressed for readers that have it open; older ones are compressed.
If the runtime cannot reopen a log, the file is moved back, so that nothing is lost.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from winpod.clock import Clock, utc_now
from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError
from winpod.kubelet.runtime_client import RuntimeClient

MAX_BYTES = 10 * 1024 * 1024
MAX_FILES = 5
_TIMESTAMP = "%Y%m%d-%H%M%S"
_COMPRESSED, _UNFINISHED = ".gz", ".tmp"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """The names of rotated files to remove and to compress."""

    remove: tuple[str, ...]
    compress: tuple[str, ...]


def plan_rotation(log: str, present: Collection[str], max_files: int) -> RotationPlan:
    """Plan the cleanup before a rotation; the log and its successor count as two files."""
    rotated = sorted(name for name in present if name.startswith(f"{log}."))
    unfinished = [name for name in rotated if name.endswith(_UNFINISHED)]
    packed = {name for name in rotated if name.endswith(_COMPRESSED)}
    duplicates = [name for name in rotated if f"{name}{_COMPRESSED}" in packed]
    kept = [name for name in rotated if name not in unfinished and name not in duplicates]
    excess = kept[: max(0, len(kept) - max(0, max_files - 2))]
    compress = [name for name in kept if name not in excess and name not in packed]
    return RotationPlan((*unfinished, *duplicates, *excess), tuple(compress))


class LogRotation:
    """Rotates the logs of all running containers."""

    def __init__(
        self,
        runtime: RuntimeClient,
        *,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
        clock: Clock = utc_now,
    ) -> None:
        self._runtime = runtime
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._clock = clock
        self._paths: dict[str, Path | None] = {}

    async def rotate_all(self) -> None:
        """Check all logs once."""
        running = api.ContainerFilter(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING))
        request = api.ListContainersRequest(filter=running)
        listed = (await self._runtime.call("ListContainers", request)).containers
        self._paths = {
            container.id: self._paths[container.id]
            for container in listed
            if container.id in self._paths
        }
        for container in listed:
            try:
                if path := await self._path(container.id):
                    await self.rotate_if_needed(container.id, path)
            except (WinpodError, OSError) as error:
                _log.warning("Failed to rotate log of container %s: %s", container.id, error)

    async def _path(self, container: str) -> Path | None:
        if container not in self._paths:
            request = api.ContainerStatusRequest(container_id=container)
            status = (await self._runtime.call("ContainerStatus", request)).status
            self._paths[container] = Path(status.log_path) if status.log_path else None
        return self._paths[container]

    async def rotate_if_needed(self, container: str, log: Path) -> None:
        size = _size(log)
        if size is None:
            await self._reopen(container)
        elif size > self._max_bytes:
            await asyncio.to_thread(_clean_up, log, self._max_files)
            await self._rotate(container, log)

    async def _rotate(self, container: str, log: Path) -> None:
        moved = log.with_name(f"{log.name}.{self._clock().strftime(_TIMESTAMP)}")
        _rename(log, moved)
        try:
            await self._reopen(container)
        except WinpodError:
            _rename(moved, log)
            raise

    async def _reopen(self, container: str) -> None:
        request = api.ReopenContainerLogRequest(container_id=container)
        await self._runtime.call("ReopenContainerLog", request)


def _size(log: Path) -> int | None:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return None


def _rename(log: Path, name: Path) -> None:
    log.rename(name)


def _clean_up(log: Path, max_files: int) -> None:
    plan = plan_rotation(log.name, [file.name for file in log.parent.iterdir()], max_files)
    for name in plan.remove:
        log.with_name(name).unlink(missing_ok=True)
    for name in plan.compress:
        _compress(log.with_name(name))


def _compress(file: Path) -> None:
    packed = file.with_name(f"{file.name}{_COMPRESSED}")
    unfinished = packed.with_name(f"{packed.name}{_UNFINISHED}")
    with file.open("rb") as source, gzip.open(unfinished, "wb") as target:
        shutil.copyfileobj(source, target)
    unfinished.rename(packed)
    file.unlink()

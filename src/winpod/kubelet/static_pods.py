"""Static pods from a manifest directory of the node, and their mirror pods in the API server.

A static pod runs as long as its file exists, regardless of the API server. Its mirror pod carries
its status; a mirror pod that was deleted is recreated, and one without a static pod is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from winpod.clock import utc_now
from winpod.errors import InvalidInput, Unavailable, WinpodError
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import OwnerReference
from winpod.k8s.pods import is_deleted, metadata_of, uid_of
from winpod.k8s.pods import is_static as is_static
from winpod.labels import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SEEN_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
)

_SCAN_SECONDS = 2.0
_RETRY_SECONDS = 10.0
_SUFFIXES = (".yaml", ".yml", ".json")
_log = logging.getLogger(__name__)


def is_mirror_pod(pod: v1.Pod) -> bool:
    return CONFIG_MIRROR_ANNOTATION in (metadata_of(pod).annotations or {})


def read_static_pod(text: str, file: str, node: str, seen_at: datetime) -> v1.Pod:
    """Parse a static pod.

    The node's name is appended to its name, and its UID is a hash of its content: a changed file
    is a new pod.
    """
    try:
        document = yaml.safe_load(text)
        pod = msgspec.convert(document, v1.Pod)
        fingerprint = _fingerprint([node, file, document])
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{file} is not a valid pod manifest: {error}.") from None
    if pod.kind != "Pod" or not pod.metadata or not pod.metadata.name or not pod.spec:
        raise InvalidInput(
            f"{file} is not a valid pod manifest.",
            "A static pod manifest contains one Pod with a name and a spec.",
        )
    metadata, spec = pod.metadata, pod.spec
    metadata.name = f"{metadata.name}-{node}"
    metadata.namespace = metadata.namespace or "default"
    metadata.uid = fingerprint[:32]
    metadata.annotations = {
        **(metadata.annotations or {}),
        CONFIG_SOURCE_ANNOTATION: "file",
        CONFIG_HASH_ANNOTATION: fingerprint[:32],
        CONFIG_SEEN_ANNOTATION: seen_at.isoformat().replace("+00:00", "Z"),
    }
    spec.nodeName = node
    spec.tolerations = [
        *(spec.tolerations or ()),
        v1.Toleration(operator="Exists", effect="NoExecute"),
    ]
    return pod


def _fingerprint(document: list[Any]) -> str:
    """Hash a document. YAML dates, which JSON cannot encode, are converted to strings."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def mirror_pod(pod: v1.Pod, node: v1.Node) -> v1.Pod:
    """Return the mirror of a static pod, owned by its node."""
    mirror = msgspec.convert(msgspec.to_builtins(pod), v1.Pod)
    metadata, owner = metadata_of(mirror), node.metadata
    metadata.uid = None
    annotations = metadata.annotations or {}
    metadata.annotations = {
        **annotations,
        CONFIG_MIRROR_ANNOTATION: annotations[CONFIG_HASH_ANNOTATION],
    }
    metadata.ownerReferences = [
        OwnerReference(
            apiVersion="v1",
            kind="Node",
            name=(owner and owner.name) or "",
            uid=(owner and owner.uid) or "",
            controller=True,
        )
    ]
    mirror.status = None
    return mirror


@dataclass(frozen=True, slots=True)
class _File:
    stamp: tuple[int, int, int]
    pod: v1.Pod | None


class StaticPods:
    """Scans the manifest directory; calls `on_change` with the previous and current pods."""

    def __init__(
        self,
        folder: Path,
        node: str,
        on_change: Callable[[dict[str, v1.Pod], dict[str, v1.Pod]], None],
    ) -> None:
        self._folder = folder
        self._node = node
        self._on_change = on_change
        self._files: dict[str, _File] = {}
        self.pods: dict[str, v1.Pod] = {}

    async def run(self) -> None:
        while True:
            self.scan()
            await asyncio.sleep(_SCAN_SECONDS)

    def scan(self) -> None:
        """Scan once. If the directory cannot be read, the current pods stay."""
        try:
            paths = self._paths()
        except OSError as error:
            _log.warning("Failed to read manifest directory %s: %s", self._folder, error.strerror)
            return
        files = {path.name: self._read(path) for path in paths}
        self._files = {name: file for name, file in files.items() if file}
        pods = {uid_of(file.pod): file.pod for file in self._files.values() if file.pod}
        if pods.keys() != self.pods.keys():
            before, self.pods = self.pods, pods
            self._on_change(before, pods)

    def _paths(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if _is_manifest(path))
        except FileNotFoundError:
            return []

    def _read(self, path: Path) -> _File | None:
        """Read a file; one that cannot be read has no pod until it changes."""
        try:
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            cached = self._files.get(path.name)
            if cached and cached.stamp == stamp:
                return cached
            text = path.read_text()
            return _File(stamp, read_static_pod(text, path.name, self._node, utc_now()))
        except InvalidInput as error:
            _log.warning("Failed to parse static pod manifest: %s", error)
            return _File(stamp, None)
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("Failed to read static pod manifest %s: %s", path, error)
            return None


def _is_manifest(path: Path) -> bool:
    return path.suffix in _SUFFIXES and not path.name.startswith(".")


class MirrorPods:
    """Reconciles mirror pods with the static pods."""

    def __init__(
        self,
        api: ApiClient,
        resend_status: Callable[[str], None],
    ) -> None:
        self._api = api
        self._resend_status = resend_status
        self._node: v1.Node | None = None
        self._mirrors: dict[tuple[str, str], v1.Pod] = {}
        self._statics: Mapping[str, v1.Pod] = {}
        self._is_synced = False
        self._failures: dict[tuple[str, str], str] = {}
        self._wake = asyncio.Event()

    def set_node(self, node: v1.Node) -> None:
        """Set the owner of the mirror pods, which are created once it is known."""
        if self._node is None:
            self._wake.set()
        self._node = node

    def set_static_pods(self, pods: Mapping[str, v1.Pod]) -> None:
        self._statics = pods
        self._wake.set()

    def on_list(self, mirrors: Iterable[v1.Pod]) -> None:
        self._mirrors = {_key(pod): pod for pod in mirrors}
        self._is_synced = True
        self._wake.set()

    def on_change(self, mirror: v1.Pod) -> None:
        self._mirrors[_key(mirror)] = mirror
        self._wake.set()

    def on_delete(self, mirror: v1.Pod) -> None:
        self._mirrors.pop(_key(mirror), None)
        self._wake.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS if self._failures else None):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._reconcile()
            except Unavailable:
                self._wake.set()
                await asyncio.sleep(_SCAN_SECONDS)

    async def _reconcile(self) -> None:
        """Delete outdated mirror pods and create missing ones, each independently."""
        node = self._node
        if not self._is_synced or node is None:
            return
        desired = {_key(pod): pod for pod in self._statics.values()}
        outdated = [
            mirror
            for key, mirror in self._mirrors.items()
            if key not in desired or is_deleted(mirror) or not _is_current(mirror, desired[key])
        ]
        before, self._failures = self._failures, {}
        for mirror in outdated:
            await self._try(self._delete(mirror), _key(mirror), before)
        for key, pod in desired.items():
            if key not in self._mirrors:
                await self._try(self._create(pod, node), key, before)

    async def _try(
        self,
        change: Coroutine[Any, Any, None],
        key: tuple[str, str],
        before: Mapping[tuple[str, str], str],
    ) -> None:
        """Make a change. If the API server rejects it, note that for a retry and log it once."""
        try:
            await change
        except Unavailable:
            raise
        except WinpodError as error:
            self._failures[key] = str(error)
            if before.get(key) != str(error):
                _log.warning("Failed to sync mirror pod %s: %s", "/".join(key), error)

    async def _create(self, pod: v1.Pod, node: v1.Node) -> None:
        metadata = metadata_of(pod)
        path = f"/api/v1/namespaces/{metadata.namespace}/pods"
        try:
            mirror = await self._api.create(path, mirror_pod(pod, node))
        except ApiError as error:
            if not error.is_conflict:
                raise
        else:
            self._mirrors[_key(mirror)] = mirror
            self._resend_status(uid_of(pod))

    async def _delete(self, mirror: v1.Pod) -> None:
        metadata = metadata_of(mirror)
        path = f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}"
        options: dict[str, Any] = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata.uid}}
        try:
            await self._api.delete(path, options)
        except ApiError as error:
            if not (error.is_not_found or error.is_conflict):
                raise
        self._mirrors.pop(_key(mirror), None)


def _key(pod: v1.Pod) -> tuple[str, str]:
    metadata = metadata_of(pod)
    return metadata.namespace or "", metadata.name or ""


def _is_current(mirror: v1.Pod, pod: v1.Pod) -> bool:
    shown, desired = (metadata_of(p).annotations or {} for p in (mirror, pod))
    return bool(shown.get(CONFIG_MIRROR_ANNOTATION) == desired.get(CONFIG_HASH_ANNOTATION))

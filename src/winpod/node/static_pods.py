"""Pods from manifests in a directory of the node, and the mirror pods that show them to others.

A static pod belongs to the node: whatever the API server says, it runs as long as its file is
there. Its mirror is a pod at the API server that has its status; one that was deleted is made
again, and one whose pod is gone is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import OwnerReference

from winpod.node.api import ApiServer, Refused
from winpod.node.pods import SOURCE, is_deleted, uid_of
from winpod.node.pods import is_static as is_static
from winpod.node.requests import metadata_of
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError

HASH = "kubernetes.io/config.hash"
SEEN = "kubernetes.io/config.seen"
MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that only shows what a manifest on the node says."""

_LOOK_SECONDS = 2.0
_ENDINGS = (".yaml", ".yml", ".json")
_log = logging.getLogger(__name__)


def is_mirror(pod: v1.Pod) -> bool:
    return MIRROR in (metadata_of(pod).annotations or {})


def read_static_pod(text: str, file: str, node: str, seen: datetime) -> v1.Pod:
    """Its name ends in the node's, and its uid is what it says: another text is another pod."""
    try:
        document = yaml.safe_load(text)
        pod = msgspec.convert(document, v1.Pod)
        told = _fingerprint([node, file, document])
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{file} is no pod: {error}.") from None
    if pod.kind != "Pod" or not pod.metadata or not pod.metadata.name or not pod.spec:
        raise InvalidInput(f"{file} is no pod.", "A manifest of a static pod is one Pod, named.")
    metadata, spec = pod.metadata, pod.spec
    metadata.name = f"{metadata.name}-{node}"
    metadata.namespace = metadata.namespace or "default"
    metadata.uid = told[:32]
    metadata.annotations = {
        **(metadata.annotations or {}),
        SOURCE: "file",
        HASH: told[:32],
        SEEN: seen.isoformat().replace("+00:00", "Z"),
    }
    spec.nodeName = node
    spec.tolerations = [
        *(spec.tolerations or ()),
        v1.Toleration(operator="Exists", effect="NoExecute"),
    ]
    return pod


def _fingerprint(document: list[Any]) -> str:
    """A date that is not in quotes is one to YAML, and has no form of its own in JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def mirror_of(pod: v1.Pod, node: v1.Node) -> v1.Pod:
    """What is shown of a static pod. It ends with its node."""
    mirror = msgspec.convert(msgspec.to_builtins(pod), v1.Pod)
    metadata, owner = metadata_of(mirror), node.metadata
    metadata.uid = None
    annotations = metadata.annotations or {}
    metadata.annotations = {**annotations, MIRROR: annotations[HASH]}
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
    """The directory, looked at again and again; `changed` hears of its pods, before and now."""

    def __init__(
        self,
        folder: Path,
        node: str,
        changed: Callable[[dict[str, v1.Pod], dict[str, v1.Pod]], None],
    ) -> None:
        self._folder = folder
        self._node = node
        self._changed = changed
        self._files: dict[str, _File] = {}
        self.pods: dict[str, v1.Pod] = {}

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """A directory that cannot be read has what it had."""
        try:
            paths = self._paths()
        except OSError as error:
            _log.warning("%s cannot be read: %s", self._folder, error.strerror)
            return
        files = {path.name: self._read(path) for path in paths}
        self._files = {name: file for name, file in files.items() if file}
        pods = {uid_of(file.pod): file.pod for file in self._files.values() if file.pod}
        if pods.keys() != self.pods.keys():
            before, self.pods = self.pods, pods
            self._changed(before, pods)

    def _paths(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if _is_manifest(path))
        except FileNotFoundError:
            return []

    def _read(self, path: Path) -> _File | None:
        """A file that cannot be read has no pod, until it can be."""
        try:
            found = path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            known = self._files.get(path.name)
            if known and known.stamp == stamp:
                return known
            text = path.read_text()
            return _File(stamp, read_static_pod(text, path.name, self._node, datetime.now(UTC)))
        except InvalidInput as error:
            _log.warning("%s", error)
            return _File(stamp, None)
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("%s cannot be read: %s", path, error)
            return None


def _is_manifest(path: Path) -> bool:
    return path.suffix in _ENDINGS and not path.name.startswith(".")


class Mirrors:
    """Mirror pods kept like the static pods they show."""

    def __init__(
        self,
        api: ApiServer,
        tell_again: Callable[[str], None],
    ) -> None:
        self._api = api
        self._tell_again = tell_again
        self._node: v1.Node | None = None
        self._shown: dict[tuple[str, str], v1.Pod] = {}
        self._statics: Mapping[str, v1.Pod] = {}
        self._is_known = False
        self._wake = asyncio.Event()

    def of_node(self, node: v1.Node) -> None:
        """Mirrors are made once there is a node that they can belong to."""
        if self._node is None:
            self._wake.set()
        self._node = node

    def statics(self, pods: Mapping[str, v1.Pod]) -> None:
        self._statics = pods
        self._wake.set()

    def listed(self, mirrors: Iterable[v1.Pod]) -> None:
        self._shown = {_key(pod): pod for pod in mirrors}
        self._is_known = True
        self._wake.set()

    def changed(self, mirror: v1.Pod) -> None:
        self._shown[_key(mirror)] = mirror
        self._wake.set()

    def deleted(self, mirror: v1.Pod) -> None:
        self._shown.pop(_key(mirror), None)
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._settle()
            except Unavailable:
                self._wake.set()
                await asyncio.sleep(_LOOK_SECONDS)
            except WinpodError as error:
                _log.warning("a mirror pod is not as it should be: %s", error)

    async def _settle(self) -> None:
        node = self._node
        if not self._is_known or node is None:
            return
        wanted = {_key(pod): pod for pod in self._statics.values()}
        for key, mirror in list(self._shown.items()):
            if key not in wanted or is_deleted(mirror) or not _shows(mirror, wanted[key]):
                await self._delete(mirror)
        for key, pod in wanted.items():
            if key not in self._shown:
                await self._create(pod, node)

    async def _create(self, pod: v1.Pod, node: v1.Node) -> None:
        metadata = metadata_of(pod)
        path = f"/api/v1/namespaces/{metadata.namespace}/pods"
        try:
            mirror = await self._api.create(path, mirror_of(pod, node))
        except Refused as error:
            if not error.is_conflict:
                raise
        else:
            self._shown[_key(mirror)] = mirror
            self._tell_again(uid_of(pod))

    async def _delete(self, mirror: v1.Pod) -> None:
        metadata = metadata_of(mirror)
        path = f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}"
        options: dict[str, Any] = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata.uid}}
        try:
            await self._api.delete(path, options)
        except Refused as error:
            if not (error.is_missing or error.is_conflict):
                raise
        self._shown.pop(_key(mirror), None)


def _key(pod: v1.Pod) -> tuple[str, str]:
    metadata = metadata_of(pod)
    return metadata.namespace or "", metadata.name or ""


def _shows(mirror: v1.Pod, pod: v1.Pod) -> bool:
    shown, wanted = (metadata_of(one).annotations or {} for one in (mirror, pod))
    return bool(shown.get(MIRROR) == wanted.get(HASH))

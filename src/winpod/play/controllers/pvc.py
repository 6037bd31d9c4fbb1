"""PersistentVolumeClaims, backed by directories of this machine.

A deleted claim is marked and stays while a pod uses it. Then its directory is renamed, the claim is
removed, and the content is deleted in the background. If the process is killed in between, the mark
or the renamed directory remains, and the next process continues there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from winpod.clock import format_timestamp, utc_now
from winpod.files import remove_tree
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, spec_of
from winpod.kubelet.volumes.block import BLOCK_MODE, create_disk_image, requested_disk_size
from winpod.play.apiserver.objects import Document, ObjectKey, key_of
from winpod.play.apiserver.store import ObjectStore, StoredObject
from winpod.play.pod_template import is_terminal, name_of

CLAIM, VOLUME = "PersistentVolumeClaim", "PersistentVolume"
_log = logging.getLogger(__name__)


class PvcController:
    """Binds and removes claims. Only root can list the directories; pods get them mounted."""

    def __init__(self, records: ObjectStore, root: Path) -> None:
        self._records = records
        self._volumes = root / "play/volumes"
        self._released = self._volumes / ".removed"
        if self._volumes.exists():
            self._volumes.chmod(0o700)

    def bind(self, key: ObjectKey) -> None:
        """Bind the claim to a new directory of this machine, or to a disk image in one."""
        stored = self._records.get(key)
        if stored is None or stored.document["spec"].get("volumeName"):
            return
        uid, spec = stored.document["metadata"]["uid"], stored.document["spec"]
        directory, name = self._create_directory(key), _volume_name(uid)
        source: Document = {"hostPath": {"path": str(directory), "type": "DirectoryOrCreate"}}
        if size := requested_disk_size(spec):
            source = {
                "local": {"path": str(create_disk_image(directory, size))},
                "volumeMode": BLOCK_MODE,
            }
        volume: Document = {
            "apiVersion": "v1",
            "kind": VOLUME,
            "metadata": {"name": name, "uid": str(uuid4())},
            "spec": {
                "capacity": (spec.get("resources") or {}).get("requests") or {},
                "accessModes": spec.get("accessModes") or [],
                "claimRef": {"namespace": key.namespace, "name": key.name, "uid": uid},
                **source,
            },
        }
        self._records.put(ObjectKey(VOLUME, "", name), StoredObject(volume))
        bound = {**stored.document, "spec": {**spec, "volumeName": name}}
        self._records.put(
            key, StoredObject({**bound, "status": {"phase": "Bound"}}, stored.applied)
        )

    def _directory(self, key: ObjectKey) -> Path:
        return self._volumes / f"{key.namespace}_{key.name}"

    def _create_directory(self, key: ObjectKey) -> Path:
        self._volumes.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = self._directory(key)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o777)
        return directory

    def delete(self, key: ObjectKey, stored: StoredObject) -> None:
        """Mark the claim for deletion; it is removed once no pod uses it."""
        now = format_timestamp(utc_now())
        metadata = {"deletionTimestamp": now, **stored.document["metadata"]}
        self._records.put(key, StoredObject({**stored.document, "metadata": metadata}))

    def recreate(self, key: ObjectKey, document: Document) -> bool:
        """If the claim is terminating, store the document for its successor and return True."""
        stored = self._records.get(key)
        if stored is None or not is_terminating(stored.document):
            return False
        self._records.put(key, StoredObject(stored.document, document))
        return True

    def terminating(self) -> Iterator[ObjectKey]:
        for document in self._records.list_kind(CLAIM):
            if is_terminating(document):
                yield key_of(document)

    def terminating_of(self, pod: v1.Pod) -> list[ObjectKey]:
        """List the terminating claims that a pod refers to."""
        own = set(claim_names(pod))
        return [key for key in self.terminating() if key in own]

    def remove(self, key: ObjectKey) -> None:
        """Remove a claim that no pod uses, and release its directory."""
        document = self._records.document(key) or {}
        directory = self._directory(key)
        if directory.exists():
            self._released.mkdir(exist_ok=True)
            directory.rename(self._released / str(uuid4()))
        volume = _volume_name(document["metadata"]["uid"])
        with self._records.transaction():
            self._records.remove(key)
            self._records.remove(ObjectKey(VOLUME, "", volume))

    def released_directories(self) -> set[Path]:
        """Return the directories of removed claims that are still to be deleted."""
        return set(self._released.iterdir()) if self._released.exists() else set()


def delete_directories(directories: Iterable[Path]) -> None:
    """Delete directories of removed claims. Failures are logged and retried later."""
    for directory in directories:
        try:
            remove_tree(directory)
        except OSError as error:
            _log.warning("Failed to delete the directory of a removed claim: %s", error)


def is_terminating(document: Document) -> bool:
    return "deletionTimestamp" in document["metadata"]


def pods_using(key: ObjectKey, pods: Iterable[v1.Pod]) -> list[str]:
    """List the pods that use a claim: bound to a node and not terminated."""
    return [
        name_of(pod)
        for pod in pods
        if spec_of(pod).nodeName and not is_terminal(pod) and key in claim_names(pod)
    ]


def claim_names(pod: v1.Pod) -> list[ObjectKey]:
    namespace, keys = metadata_of(pod).namespace or "", []
    for volume in spec_of(pod).volumes or ():
        if volume.persistentVolumeClaim:
            keys.append(ObjectKey(CLAIM, namespace, volume.persistentVolumeClaim.claimName))
        elif volume.ephemeral:
            keys.append(ObjectKey(CLAIM, namespace, f"{name_of(pod)}-{volume.name}"))
    return keys


def _volume_name(uid: str) -> str:
    return f"pvc-{uid}"

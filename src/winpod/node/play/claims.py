"""Claims, and the directories of this machine behind them.

A claim that is deleted is marked, and stays for as long as a pod has it. Then its directory is
moved aside, the claim is forgotten, and what was in it is removed in its own time. A process that
is killed in between leaves the mark, or what was moved aside, and the next one goes on there.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from lightkube.models import core_v1 as v1

from winpod.node.block_volumes import BLOCK, disk_size, make_disk
from winpod.node.play.objects import Document, Key, key_of
from winpod.node.play.records import Kept, Records
from winpod.node.play.templates import has_ended, name_of
from winpod.node.requests import metadata_of, spec_of

CLAIM, VOLUME = "PersistentVolumeClaim", "PersistentVolume"
_log = logging.getLogger(__name__)


class Claims:
    """Only root may look for their directories; pods get them mounted."""

    def __init__(self, records: Records, root: Path) -> None:
        self._records = records
        self._volumes = root / "play/volumes"
        self._aside = self._volumes / ".removed"
        if self._volumes.exists():
            self._volumes.chmod(0o700)

    def bind(self, key: Key) -> None:
        """A claim gets a directory of this machine, or a disk in one, which is there for as long
        as the claim is."""
        kept = self._records.get(key)
        if kept is None or kept.document["spec"].get("volumeName"):
            return
        uid, spec = kept.document["metadata"]["uid"], kept.document["spec"]
        place, name = self._made_place(key), _volume_of(uid)
        source: Document = {"hostPath": {"path": str(place), "type": "DirectoryOrCreate"}}
        if size := disk_size(spec):
            source = {"local": {"path": str(make_disk(place, size))}, "volumeMode": BLOCK}
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
        self._records.put(Key(VOLUME, "", name), Kept(volume))
        bound = {**kept.document, "spec": {**spec, "volumeName": name}}
        self._records.put(key, Kept({**bound, "status": {"phase": "Bound"}}, kept.applied))

    def _place(self, key: Key) -> Path:
        return self._volumes / f"{key.namespace}_{key.name}"

    def _made_place(self, key: Key) -> Path:
        self._volumes.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._place(key)
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
        return place

    def end(self, key: Key, kept: Kept) -> None:
        """It goes once no pod has it, and is not asked for any more."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {"deletionTimestamp": now, **kept.document["metadata"]}
        self._records.put(key, Kept({**kept.document, "metadata": metadata}))

    def ask_again(self, key: Key, document: Document) -> bool:
        """Whether it is one that is about to go, which is made anew then."""
        kept = self._records.get(key)
        if kept is None or not is_ending(kept.document):
            return False
        self._records.put(key, Kept(kept.document, document))
        return True

    def ending(self) -> Iterator[Key]:
        for document in self._records.of_kind(CLAIM):
            if is_ending(document):
                yield key_of(document)

    def ending_of(self, pod: v1.Pod) -> list[Key]:
        """Those of a pod that it has to wait for."""
        own = set(claims_of(pod))
        return [key for key in self.ending() if key in own]

    def forget(self, key: Key) -> None:
        """One that no pod has."""
        document = self._records.document(key) or {}
        place = self._place(key)
        if place.exists():
            self._aside.mkdir(exist_ok=True)
            place.rename(self._aside / str(uuid4()))
        own = _volume_of(document["metadata"]["uid"])
        with self._records.together():
            self._records.remove(key)
            self._records.remove(Key(VOLUME, "", own))

    def aside(self) -> set[Path]:
        """What claims had that are no more."""
        return set(self._aside.iterdir()) if self._aside.exists() else set()


def clear(places: Iterable[Path]) -> None:
    """That can take its time. What cannot be removed is in nobody's way, and tried again."""
    for place in places:
        try:
            shutil.rmtree(place)
        except OSError as error:
            _log.warning("what a claim had is not removed: %s", error)


def is_ending(document: Document) -> bool:
    return "deletionTimestamp" in document["metadata"]


def holders(key: Key, pods: Iterable[v1.Pod]) -> list[str]:
    """The pods that have a claim: those with a node that have not ended."""
    return [
        name_of(pod)
        for pod in pods
        if spec_of(pod).nodeName and not has_ended(pod) and key in claims_of(pod)
    ]


def claims_of(pod: v1.Pod) -> list[Key]:
    namespace, found = metadata_of(pod).namespace or "", []
    for volume in spec_of(pod).volumes or ():
        if volume.persistentVolumeClaim:
            found.append(Key(CLAIM, namespace, volume.persistentVolumeClaim.claimName))
        elif volume.ephemeral:
            found.append(Key(CLAIM, namespace, f"{name_of(pod)}-{volume.name}"))
    return found


def _volume_of(uid: str) -> str:
    return f"pvc-{uid}"

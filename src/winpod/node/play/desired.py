"""What files ask for, written down: made, changed, unchanged, or removed, in kubectl's words."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from lightkube.models import core_v1 as v1

from winpod.node.block_volumes import disk_size
from winpod.node.play.claims import CLAIM, Claims, holders
from winpod.node.play.objects import Document, Key, key_of
from winpod.node.play.pods import Pods
from winpod.node.play.records import Kept, Records
from winpod.node.play.services import complete
from winpod.node.pods import is_deleted
from winpod.windows.errors import InvalidInput

_WITH_STATUS = ("Job", "CronJob", CLAIM)
"""Whose status is written down, and stays when the object is changed."""


@dataclass(frozen=True, slots=True)
class Change:
    key: Key
    what: str

    def __str__(self) -> str:
        return f"{self.key} {self.what}"


class Desired:
    def __init__(self, records: Records, pods: Pods, claims: Claims) -> None:
        self._records = records
        self._pods = pods
        self._claims = claims

    def refuse(self, documents: Iterable[Document]) -> None:
        """What cannot be written, before anything is."""
        for document in documents:
            key = key_of(document)
            before = self._records.get(key)
            if key.kind == CLAIM:
                disk_size(document["spec"])
            if key.kind == "Pod" and before and _is_owned(before.document):
                raise InvalidInput(
                    f"{key} is there already, and belongs to a workload.", "Give it another name."
                )

    def write(self, document: Document) -> Change:
        key = key_of(document)
        before = self._records.get(key)
        if before and before.applied == document:
            return Change(key, "unchanged")
        if key.kind == "Pod":
            return self._write_pod(key, before, document)
        if key.kind == CLAIM and self._claims.ask_again(key, document):
            return Change(key, "replaced")
        self._records.put(key, Kept(self.made(document, before), document))
        if key.kind == CLAIM:
            self._claims.bind(key)
        return Change(key, "configured" if before else "created")

    def made(self, document: Document, before: Kept | None = None) -> Document:
        """The object with what a cluster fills in."""
        made = copy.deepcopy(document)
        old = before.document if before else {"metadata": {}, "spec": {}}
        made["metadata"] = {
            **made["metadata"],
            "uid": old["metadata"].get("uid") or str(uuid4()),
            "creationTimestamp": old["metadata"].get("creationTimestamp") or _now(),
            "generation": old["metadata"].get("generation", 0) + 1,
        }
        if made["kind"] == "Service":
            key = key_of(made)
            others = [d for d in self._records.of_kind("Service") if key_of(d) != key]
            complete(made, before.document if before else None, others)
        if made["kind"] == CLAIM and (volume := old["spec"].get("volumeName")):
            made["spec"]["volumeName"] = volume
        if made["kind"] in _WITH_STATUS and "status" in old:
            made["status"] = old["status"]
        return made

    def _write_pod(self, key: Key, before: Kept | None, document: Document) -> Change:
        """Only images, labels and annotations of a pod can be changed; with anything else it is
        ended, and made anew when it is gone."""
        if before is None:
            self._pods.add(self.made(document), document)
            return Change(key, "created")
        pod = self._pods.get(before.document["metadata"]["uid"])
        if pod and not is_deleted(pod) and _differs_in_images(before.applied, document):
            self._pods.change(pod, document)
            return Change(key, "configured")
        self._records.put(key, Kept(before.document, document))
        if pod:
            self._pods.end(pod)
        return Change(key, "replaced")

    def add_claim(self, document: Document) -> None:
        """One that a workload needs; where it is there already, it is the same one."""
        key = key_of(document)
        if self._records.get(key) is None:
            self._records.put(key, Kept(self.made(document)))
            self._claims.bind(key)
        else:
            self._claims.ask_again(key, document)

    def let_claims_go(self, pods: Iterable[v1.Pod]) -> None:
        """Those that are to go and that no pod has; what was asked for again is made anew."""
        there = list(pods)
        for key in [key for key in self._claims.ending() if not holders(key, there)]:
            kept = self._records.get(key)
            self._claims.forget(key)
            if kept and kept.applied is not None:
                self.write(kept.applied)

    def delete(self, key: Key) -> Change | None:
        kept = self._records.get(key)
        if kept is None:
            return None
        if key.kind == "Pod":
            self._records.put(key, Kept(kept.document))
            if pod := self._pods.get(kept.document["metadata"]["uid"]):
                self._pods.end(pod)
            return Change(key, "deleted")
        if key.kind == CLAIM:
            self._claims.end(key, kept)
        else:
            self._records.remove(key)
        return Change(key, "deleted")

    def everything(self, *, volumes: bool) -> list[Key]:
        """All that files have asked for, the last first; claims are kept unless asked for."""
        asked = [key for key in reversed(self._records.applied()) if key.kind != CLAIM]
        claims = [key_of(document) for document in self._records.of_kind(CLAIM)]
        return [*asked, *(claims if volumes else ())]


def _is_owned(document: Document) -> bool:
    return bool(document["metadata"].get("ownerReferences"))


def _differs_in_images(one: Document | None, other: Document) -> bool:
    """Whether nothing but what may be changed in a pod is different."""
    return one is not None and _fixed(one) == _fixed(other)


def _fixed(pod: Document) -> Document:
    spec: Document = copy.deepcopy(pod["spec"])
    for container in _containers(spec):
        container.pop("image", None)
    return spec


def _containers(spec: Document) -> Iterable[Document]:
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

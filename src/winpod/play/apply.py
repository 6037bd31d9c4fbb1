"""Apply and delete of manifests against the object store, reporting changes as kubectl does."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from winpod.clock import format_timestamp, utc_now
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import is_deleted
from winpod.kubelet.volumes.block import requested_disk_size
from winpod.play.apiserver.objects import Document, ObjectKey, key_of
from winpod.play.apiserver.pods import PodStore
from winpod.play.apiserver.store import ObjectStore, StoredObject
from winpod.play.controllers.pvc import CLAIM, PvcController, pods_using
from winpod.play.proxy.endpoints import allocate_service

_WITH_STATUS = ("Job", "CronJob", CLAIM)
"""Kinds whose status is stored and kept across updates of the object."""


@dataclass(frozen=True, slots=True)
class AppliedChange:
    key: ObjectKey
    what: str

    def __str__(self) -> str:
        return f"{self.key} {self.what}"


class Applier:
    def __init__(self, records: ObjectStore, pods: PodStore, claims: PvcController) -> None:
        self._records = records
        self._pods = pods
        self._claims = claims

    def validate(self, documents: Iterable[Document]) -> None:
        """Reject objects that cannot be stored, before anything is written."""
        for document in documents:
            key = key_of(document)
            before = self._records.get(key)
            if key.kind == CLAIM:
                requested_disk_size(document["spec"])
            if key.kind == "Pod" and before and _is_owned(before.document):
                raise InvalidInput(
                    f"{key} already exists and is owned by a workload.", "Use another name."
                )

    def apply(self, document: Document) -> AppliedChange:
        key = key_of(document)
        before = self._records.get(key)
        if before and before.applied == document:
            return AppliedChange(key, "unchanged")
        if key.kind == "Pod":
            return self._write_pod(key, before, document)
        if key.kind == CLAIM and self._claims.recreate(key, document):
            return AppliedChange(key, "replaced")
        self._records.put(key, StoredObject(self.with_defaults(document, before), document))
        if key.kind == CLAIM:
            self._claims.bind(key)
        return AppliedChange(key, "configured" if before else "created")

    def with_defaults(self, document: Document, before: StoredObject | None = None) -> Document:
        """Return the object with the fields that an API server fills in."""
        obj = copy.deepcopy(document)
        old = before.document if before else {"metadata": {}, "spec": {}}
        obj["metadata"] = {
            **obj["metadata"],
            "uid": old["metadata"].get("uid") or str(uuid4()),
            "creationTimestamp": old["metadata"].get("creationTimestamp") or _now(),
            "generation": old["metadata"].get("generation", 0) + 1,
        }
        if obj["kind"] == "Service":
            key = key_of(obj)
            others = [d for d in self._records.list_kind("Service") if key_of(d) != key]
            allocate_service(obj, before.document if before else None, others)
        if obj["kind"] == CLAIM and (volume := old["spec"].get("volumeName")):
            obj["spec"]["volumeName"] = volume
        if obj["kind"] in _WITH_STATUS and "status" in old:
            obj["status"] = old["status"]
        return obj

    def _write_pod(
        self, key: ObjectKey, before: StoredObject | None, document: Document
    ) -> AppliedChange:
        """Create, update or replace a pod.

        Only images, labels and annotations of a pod are mutable; for any other change the pod is
        deleted and recreated once it is gone.
        """
        if before is None:
            self._pods.add(self.with_defaults(document), document)
            return AppliedChange(key, "created")
        pod = self._pods.get(before.document["metadata"]["uid"])
        if (
            pod
            and not is_deleted(pod)
            and _differs_only_in_mutable_fields(before.applied, document)
        ):
            self._pods.change(pod, document)
            return AppliedChange(key, "configured")
        self._records.put(key, StoredObject(before.document, document))
        if pod:
            self._pods.delete(pod)
        return AppliedChange(key, "replaced")

    def add_claim(self, document: Document) -> None:
        """Create a claim that a workload needs, unless it exists already."""
        key = key_of(document)
        if self._records.get(key) is None:
            self._records.put(key, StoredObject(self.with_defaults(document)))
            self._claims.bind(key)
        else:
            self._claims.recreate(key, document)

    def release_claims(self, pods: Iterable[v1.Pod]) -> None:
        """Remove terminating claims that no pod uses; recreate those that were applied again."""
        existing = list(pods)
        for key in [key for key in self._claims.terminating() if not pods_using(key, existing)]:
            stored = self._records.get(key)
            self._claims.remove(key)
            if stored and stored.applied is not None:
                self.apply(stored.applied)

    def delete(self, key: ObjectKey) -> AppliedChange | None:
        stored = self._records.get(key)
        if stored is None:
            return None
        if key.kind == "Pod":
            self._records.put(key, StoredObject(stored.document))
            if pod := self._pods.get(stored.document["metadata"]["uid"]):
                self._pods.delete(pod)
            return AppliedChange(key, "deleted")
        if key.kind == CLAIM:
            self._claims.delete(key, stored)
        else:
            self._records.remove(key)
        return AppliedChange(key, "deleted")

    def applied_keys(self, *, volumes: bool) -> list[ObjectKey]:
        """List the applied objects, newest first; claims only with `volumes`."""
        keys = [key for key in reversed(self._records.applied()) if key.kind != CLAIM]
        claims = [key_of(document) for document in self._records.list_kind(CLAIM)]
        return [*keys, *(claims if volumes else ())]


def _is_owned(document: Document) -> bool:
    return bool(document["metadata"].get("ownerReferences"))


def _differs_only_in_mutable_fields(before: Document | None, after: Document) -> bool:
    """Report whether two pods differ only in mutable fields."""
    return before is not None and _immutable_spec(before) == _immutable_spec(after)


def _immutable_spec(pod: Document) -> Document:
    spec: Document = copy.deepcopy(pod["spec"])
    for container in _containers(spec):
        container.pop("image", None)
    return spec


def _containers(spec: Document) -> Iterable[Document]:
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]


def _now() -> str:
    return format_timestamp(utc_now())

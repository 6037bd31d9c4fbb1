"""The pods that there are, and where each of them is in its life: asked for, placed, told of, gone.

A pod is kept until its node has let go of it. One that a file asks for and that is gone is made
again, because it was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from lightkube.models import core_v1 as v1

from winpod.cri.labels import ACCELERATOR_ANNOTATION, DEFAULT_CONTAINER_ANNOTATION
from winpod.node.play.objects import Document, Key, key_of, template_of
from winpod.node.play.placing import Choice, merged
from winpod.node.play.pull_secrets import with_pull_secrets
from winpod.node.play.records import Kept, Records
from winpod.node.play.source import typed
from winpod.node.play.templates import owner_of
from winpod.node.pods import DEFAULT_GRACE, is_deleted, uid_of
from winpod.node.pulling import default_policy
from winpod.node.requests import metadata_of, spec_of
from winpod.windows.objects import RuntimeClass


class Pods:
    """`give` hands a pod to the engine of its node; False where that node is not there."""

    def __init__(
        self,
        records: Records,
        give: Callable[[v1.Pod], bool],
        changed: Callable[[], None],
    ) -> None:
        self._records = records
        self._give = give
        self._changed = changed
        self._pods: dict[str, v1.Pod] = {}
        self.choices = {uid: Choice.from_document(d) for uid, d in records.choices().items()}
        for document in records.of_kind("Pod"):
            pod = typed(v1.Pod, document)
            self._pods[uid_of(pod)] = pod

    def all(self) -> list[v1.Pod]:
        return list(self._pods.values())

    def get(self, uid: str) -> v1.Pod | None:
        return self._pods.get(uid)

    def of_owner(self, uid: str) -> list[v1.Pod]:
        return [p for p in self._pods.values() if (owner := owner_of(p)) and owner.uid == uid]

    def on(self, node: str) -> list[v1.Pod]:
        return [pod for pod in self._pods.values() if spec_of(pod).nodeName == node]

    def add(self, document: Document, applied: Document | None) -> None:
        classes = [RuntimeClass.from_object(d) for d in self._records.of_kind("RuntimeClass")]
        local = self._records.setting("local images")
        new = with_pull_secrets(typed(v1.Pod, document), self._records.document)
        pod = completed(new, {c.name: c for c in classes}, local)
        self._pods[uid_of(pod)] = pod
        self._write(pod, applied)
        self._changed()

    def change(self, pod: v1.Pod, document: Document) -> None:
        """Other images, labels, annotations."""
        new = typed(v1.Pod, document)
        metadata = metadata_of(pod)
        has = metadata.annotations or {}
        stays = {name: has[name] for name in (ACCELERATOR_ANNOTATION,) if name in has}
        metadata.labels = metadata_of(new).labels
        metadata.annotations = {**(metadata_of(new).annotations or {}), **stays}
        metadata.generation = (metadata.generation or 1) + 1
        images = {one.name: one.image for one in _containers(new)}
        for container in _containers(pod):
            container.image = images.get(container.name)
        self._write(pod, document)
        self._give(pod)
        self._changed()

    def place(self, pod: v1.Pod, choice: Choice) -> None:
        self.choices[uid_of(pod)] = choice
        self._records.put_choice(uid_of(pod), asdict(choice))
        if choice.node:
            spec_of(pod).nodeName = choice.node
            self._save(pod)
            self._give(pod)

    def tell(self, uid: str, status: v1.PodStatus) -> None:
        if pod := self._pods.get(uid):
            pod.status = status
            self._save(pod)
            self._changed()

    def annotate(self, uid: str, annotations: Mapping[str, str]) -> None:
        """What its node has to say of it."""
        if pod := self._pods.get(uid):
            metadata = metadata_of(pod)
            metadata.annotations = {**(metadata.annotations or {}), **annotations}
            self._save(pod)

    def end(self, pod: v1.Pod) -> None:
        if is_deleted(pod):
            return
        grace = spec_of(pod).terminationGracePeriodSeconds
        seconds = DEFAULT_GRACE if grace is None else grace
        metadata = metadata_of(pod)
        metadata.deletionTimestamp = datetime.now(UTC) + timedelta(seconds=seconds)
        metadata.deletionGracePeriodSeconds = seconds
        self._save(pod)
        if not self._give(pod):
            self.forget(uid_of(pod))

    def forget(self, uid: str) -> None:
        """It is gone from its node."""
        self.choices.pop(uid, None)
        self._records.remove_choice(uid)
        if pod := self._pods.pop(uid, None):
            kept = self._records.get(_key(pod))
            if kept and kept.applied is None and kept.document["metadata"]["uid"] == uid:
                self._records.remove(_key(pod))
        self._changed()

    def replaced(self) -> Iterable[Document]:
        """What files ask for of pods that are gone."""
        for key in self._records.applied():
            kept = self._records.get(key)
            if key.kind == "Pod" and kept and kept.document["metadata"]["uid"] not in self._pods:
                yield kept.applied or {}

    def _save(self, pod: v1.Pod) -> None:
        kept = self._records.get(_key(pod))
        if kept and kept.document["metadata"]["uid"] == uid_of(pod):
            self._write(pod, kept.applied)

    def _write(self, pod: v1.Pod, applied: Document | None) -> None:
        document = {"apiVersion": "v1", "kind": "Pod", **pod.to_dict()}
        self._records.put(key_of(document), Kept(document, applied))


def _key(pod: v1.Pod) -> Key:
    return Key("Pod", metadata_of(pod).namespace or "", metadata_of(pod).name or "")


def _containers(pod: v1.Pod) -> list[v1.Container]:
    spec = spec_of(pod)
    return [*(spec.initContainers or ()), *spec.containers]


def pod_in(document: Document) -> v1.Pod | None:
    """A pod as an object would make it, if it makes any."""
    template = template_of(document)
    if template is None:
        return None
    own = {"name": "x", "namespace": key_of(document).namespace}
    metadata = {**(template.get("metadata") or {}), **own}
    return typed(v1.Pod, {"metadata": metadata, "spec": template["spec"]})


def images_of(pod: v1.Pod) -> list[str]:
    return list(dict.fromkeys(one.image for one in _containers(pod) if one.image))


def completed(
    pod: v1.Pod, classes: Mapping[str, RuntimeClass], local: Iterable[str] = ()
) -> v1.Pod:
    """With what an API server fills in. Images that came from this machine are not pulled again."""
    spec = spec_of(pod)
    spec.restartPolicy = spec.restartPolicy or "Always"
    spec.dnsPolicy = spec.dnsPolicy or "ClusterFirst"
    spec.serviceAccountName = spec.serviceAccountName or "default"
    if spec.terminationGracePeriodSeconds is None:
        spec.terminationGracePeriodSeconds = DEFAULT_GRACE
    annotations = metadata_of(pod).annotations or {}
    main = {DEFAULT_CONTAINER_ANNOTATION: spec.containers[0].name}
    metadata_of(pod).annotations = {**main, **annotations}
    known = set(local)
    for container in _containers(pod):
        if not container.imagePullPolicy:
            is_here = container.image in known
            policy = "IfNotPresent" if is_here else default_policy(container.image or "")
            container.imagePullPolicy = policy
    pod.status = v1.PodStatus(phase="Pending")
    return merged(pod, classes)

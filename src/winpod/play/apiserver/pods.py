"""Pods of the control plane: stored state, binding, status and deletion.

A pod is kept until its kubelet has removed it. A pod of a manifest that is gone is created again,
because it was replaced. Pull secrets of the service account are added when the pod is created, as
the admission controller of a cluster does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import msgspec

from winpod.clock import utc_now
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import DEFAULT_GRACE, is_deleted, metadata_of, spec_of, uid_of
from winpod.kubelet.images.image_manager import default_pull_policy
from winpod.labels import ACCELERATOR_ANNOTATION, DEFAULT_CONTAINER_ANNOTATION
from winpod.placement import model
from winpod.placement.model import RuntimeClass
from winpod.placement.predicates import admit_with_runtime_class
from winpod.play.apiserver.objects import Document, ObjectKey, key_of, template_of
from winpod.play.apiserver.store import ObjectStore, StoredObject
from winpod.play.kubelet_objects import from_document
from winpod.play.pod_template import owner_of
from winpod.quantities import format_quantity

Find = Callable[[ObjectKey], Document | None]


def with_pull_secrets(pod: v1.Pod, find: Find) -> v1.Pod:
    spec = spec_of(pod)
    if not spec.imagePullSecrets:
        account = find(
            ObjectKey("ServiceAccount", _namespace(pod), spec.serviceAccountName or "default")
        )
        names = [reference.get("name") for reference in (account or {}).get("imagePullSecrets", ())]
        spec.imagePullSecrets = [v1.LocalObjectReference(name=name) for name in names] or None
    return pod


def pull_secrets(pod: v1.Pod, find: Find) -> list[Document]:
    """Return the existing pull secrets of a pod."""
    resolved = with_pull_secrets(pod, find)
    names = [reference.name or "" for reference in spec_of(resolved).imagePullSecrets or ()]
    secrets = (find(ObjectKey("Secret", _namespace(pod), name)) for name in names)
    return [secret for secret in secrets if secret]


def _namespace(pod: v1.Pod) -> str:
    return metadata_of(pod).namespace or "default"


class PodStore:
    """The pods.

    `give` passes a pod to the kubelet of its node; False if that node is not running.
    """

    def __init__(
        self,
        records: ObjectStore,
        give: Callable[[v1.Pod], bool],
        changed: Callable[[], None],
    ) -> None:
        self._records = records
        self._give = give
        self._changed = changed
        self._pods: dict[str, v1.Pod] = {}
        self.choices = {uid: Binding.from_document(d) for uid, d in records.bindings().items()}
        for document in records.list_kind("Pod"):
            pod = from_document(v1.Pod, document)
            self._pods[uid_of(pod)] = pod

    def all(self) -> list[v1.Pod]:
        return list(self._pods.values())

    def get(self, uid: str) -> v1.Pod | None:
        return self._pods.get(uid)

    def of_owner(self, uid: str) -> list[v1.Pod]:
        return [p for p in self._pods.values() if (owner := owner_of(p)) and owner.uid == uid]

    def on_node(self, node: str) -> list[v1.Pod]:
        return [pod for pod in self._pods.values() if spec_of(pod).nodeName == node]

    def add(self, document: Document, applied: Document | None) -> None:
        classes = [RuntimeClass.from_object(d) for d in self._records.list_kind("RuntimeClass")]
        local = self._records.setting("local images")
        new = with_pull_secrets(from_document(v1.Pod, document), self._records.document)
        pod = with_defaults(new, {c.name: c for c in classes}, local)
        self._pods[uid_of(pod)] = pod
        self._write(pod, applied)
        self._changed()

    def change(self, pod: v1.Pod, document: Document) -> None:
        """Update images, labels and annotations."""
        new = from_document(v1.Pod, document)
        metadata = metadata_of(pod)
        current = metadata.annotations or {}
        preserved = {name: current[name] for name in (ACCELERATOR_ANNOTATION,) if name in current}
        metadata.labels = metadata_of(new).labels
        metadata.annotations = {**(metadata_of(new).annotations or {}), **preserved}
        metadata.generation = (metadata.generation or 1) + 1
        images = {container.name: container.image for container in _containers(new)}
        for container in _containers(pod):
            container.image = images.get(container.name)
        self._write(pod, document)
        self._give(pod)
        self._changed()

    def bind(self, pod: v1.Pod, binding: Binding) -> None:
        self.choices[uid_of(pod)] = binding
        self._records.put_binding(uid_of(pod), asdict(binding))
        if binding.node:
            spec_of(pod).nodeName = binding.node
            self._save(pod)
            self._give(pod)

    def set_status(self, uid: str, status: v1.PodStatus) -> None:
        if pod := self._pods.get(uid):
            pod.status = status
            self._save(pod)
            self._changed()

    def annotate(self, uid: str, annotations: Mapping[str, str]) -> None:
        """Add annotations reported by the node."""
        if pod := self._pods.get(uid):
            metadata = metadata_of(pod)
            metadata.annotations = {**(metadata.annotations or {}), **annotations}
            self._save(pod)

    def delete(self, pod: v1.Pod) -> None:
        if is_deleted(pod):
            return
        grace = spec_of(pod).terminationGracePeriodSeconds
        seconds = DEFAULT_GRACE if grace is None else grace
        metadata = metadata_of(pod)
        metadata.deletionTimestamp = utc_now() + timedelta(seconds=seconds)
        metadata.deletionGracePeriodSeconds = seconds
        self._save(pod)
        if not self._give(pod):
            self.remove(uid_of(pod))

    def remove(self, uid: str) -> None:
        """Remove a pod that its node has deleted."""
        self.choices.pop(uid, None)
        self._records.remove_binding(uid)
        if pod := self._pods.pop(uid, None):
            stored = self._records.get(_key(pod))
            if stored and stored.applied is None and stored.document["metadata"]["uid"] == uid:
                self._records.remove(_key(pod))
        self._changed()

    def pods_to_recreate(self) -> Iterable[Document]:
        """Yield the manifests of applied pods that no longer exist."""
        for key in self._records.applied():
            stored = self._records.get(key)
            if (
                key.kind == "Pod"
                and stored
                and stored.document["metadata"]["uid"] not in self._pods
            ):
                yield stored.applied or {}

    def _save(self, pod: v1.Pod) -> None:
        stored = self._records.get(_key(pod))
        if stored and stored.document["metadata"]["uid"] == uid_of(pod):
            self._write(pod, stored.applied)

    def _write(self, pod: v1.Pod, applied: Document | None) -> None:
        document = {"apiVersion": "v1", "kind": "Pod", **pod.to_dict()}
        self._records.put(key_of(document), StoredObject(document, applied))


def _key(pod: v1.Pod) -> ObjectKey:
    return ObjectKey("Pod", metadata_of(pod).namespace or "", metadata_of(pod).name or "")


def _containers(pod: v1.Pod) -> list[v1.Container]:
    spec = spec_of(pod)
    return [*(spec.initContainers or ()), *spec.containers]


def pod_template_of(document: Document) -> v1.Pod | None:
    """Return a pod as the object's controller would create it, if it creates any."""
    template = template_of(document)
    if template is None:
        return None
    own = {"name": "x", "namespace": key_of(document).namespace}
    metadata = {**(template.get("metadata") or {}), **own}
    return from_document(v1.Pod, {"metadata": metadata, "spec": template["spec"]})


def images_of(pod: v1.Pod) -> list[str]:
    return list(dict.fromkeys(container.image for container in _containers(pod) if container.image))


def with_defaults(
    pod: v1.Pod, classes: Mapping[str, RuntimeClass], local: Iterable[str] = ()
) -> v1.Pod:
    """Fill in the defaults of an API server. Images loaded locally are not pulled again."""
    spec = spec_of(pod)
    spec.restartPolicy = spec.restartPolicy or "Always"
    spec.dnsPolicy = spec.dnsPolicy or "ClusterFirst"
    spec.serviceAccountName = spec.serviceAccountName or "default"
    if spec.terminationGracePeriodSeconds is None:
        spec.terminationGracePeriodSeconds = DEFAULT_GRACE
    annotations = metadata_of(pod).annotations or {}
    main = {DEFAULT_CONTAINER_ANNOTATION: spec.containers[0].name}
    metadata_of(pod).annotations = {**main, **annotations}
    local_images = set(local)
    for container in _containers(pod):
        if not container.imagePullPolicy:
            is_local = container.image in local_images
            policy = "IfNotPresent" if is_local else default_pull_policy(container.image or "")
            container.imagePullPolicy = policy
    pod.status = v1.PodStatus(phase="Pending")
    return apply_runtime_class(pod, classes)


@dataclass(frozen=True, slots=True)
class Binding:
    """The scheduling result of a pod.

    `node` is empty if no node fits; then `lines` hold the reasons and `advice` what to do.
    `unknown` holds errors of image lookups.
    """

    node: str
    handler: str = ""
    why: str = ""
    lines: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Binding:
        return msgspec.convert(document, cls)


def to_placement_pod(pod: v1.Pod) -> model.Pod:
    return model.Pod.from_template(pod.to_dict())


def apply_runtime_class(pod: v1.Pod, classes: Mapping[str, RuntimeClass]) -> v1.Pod:
    """Apply selector, tolerations and overhead of the RuntimeClass, as admission does."""
    admitted, _ = admit_with_runtime_class(to_placement_pod(pod), classes)
    spec = spec_of(pod)
    runtime_class = classes.get(spec.runtimeClassName or "")
    if runtime_class is None:
        return pod
    spec.nodeSelector = dict(admitted.pod.node_selector) or None
    spec.tolerations = [
        *(spec.tolerations or ()),
        *(
            v1.Toleration(
                key=t.key or None,
                operator=t.operator,
                value=t.value or None,
                effect=t.effect or None,
            )
            for t in runtime_class.tolerations
        ),
    ] or None
    if runtime_class.overhead:
        spec.overhead = {
            name: format_quantity(name, amount) for name, amount in runtime_class.overhead
        }
    return pod

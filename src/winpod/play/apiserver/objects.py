"""Object kinds that `winpod play` accepts, and validation of manifests.

Objects are stored in the API's own form. As with kubectl, unknown fields are errors, and so are
values of the wrong type or values that the API server rejects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from winpod.field_reader import Field, FieldPath, InvalidField
from winpod.k8s.manifests import InvalidManifest, ObjectOrigin, read_objects
from winpod.k8s.models import apps_v1, batch_v1, node_v1
from winpod.k8s.models import core_v1 as v1
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.play.apiserver.validation import check_values

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind; `short` are its kubectl short names, `template` is the path of its pod template."""

    name: str
    group: str
    model: Any
    short: tuple[str, ...] = ()
    template: FieldPath | None = None
    namespaced: bool = True

    @property
    def display_name(self) -> str:
        return f"{self.name.lower()}.{self.group}" if self.group else self.name.lower()

    @property
    def kubectl_names(self) -> tuple[str, ...]:
        plain = self.name.lower()
        plural = f"{plain}es" if plain.endswith("s") else f"{plain}s"
        return (plain, plural, *self.short, self.display_name)


_TEMPLATE: FieldPath = ("spec", "template")

KINDS = (
    ResourceKind("Namespace", "", v1.Namespace, ("ns",), namespaced=False),
    ResourceKind("RuntimeClass", "node.k8s.io", node_v1.RuntimeClass, namespaced=False),
    ResourceKind("Node", "", v1.Node, ("no",), namespaced=False),
    ResourceKind("ServiceAccount", "", v1.ServiceAccount, ("sa",)),
    ResourceKind("ConfigMap", "", v1.ConfigMap, ("cm",)),
    ResourceKind("Secret", "", v1.Secret),
    ResourceKind("PersistentVolume", "", v1.PersistentVolume, ("pv",), namespaced=False),
    ResourceKind("PersistentVolumeClaim", "", v1.PersistentVolumeClaim, ("pvc",)),
    ResourceKind("Service", "", v1.Service, ("svc",)),
    ResourceKind("Pod", "", v1.Pod, ("po",), ()),
    ResourceKind("Deployment", "apps", apps_v1.Deployment, ("deploy",), _TEMPLATE),
    ResourceKind("ReplicaSet", "apps", apps_v1.ReplicaSet, ("rs",), _TEMPLATE),
    ResourceKind("StatefulSet", "apps", apps_v1.StatefulSet, ("sts",), _TEMPLATE),
    ResourceKind("DaemonSet", "apps", apps_v1.DaemonSet, ("ds",), _TEMPLATE),
    ResourceKind("Job", "batch", batch_v1.Job, (), _TEMPLATE),
    ResourceKind(
        "CronJob", "batch", batch_v1.CronJob, ("cj",), ("spec", "jobTemplate", *_TEMPLATE)
    ),
)
"""In creation order: referenced kinds come before those that refer to them."""

BY_NAME = {kind.name: kind for kind in KINDS}
_BY_TYPE = {(kind.group, kind.name): kind for kind in KINDS}
_BY_KUBECTL_NAME = {word: kind for kind in KINDS for word in kind.kubectl_names}


def find_kind(word: str) -> ResourceKind | None:
    """Return the kind for `deploy`, `deployments`, `deployment.apps` and the like."""
    return _BY_KUBECTL_NAME.get(word.lower())


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{BY_NAME[self.kind].display_name}/{self.name}"


def key_of(document: Mapping[str, Any]) -> ObjectKey:
    metadata = document["metadata"]
    return ObjectKey(document["kind"], metadata.get("namespace", ""), metadata["name"])


def template_of(document: Document) -> Document | None:
    """Return the pod template of an object, if it has one; a pod is its own template."""
    path = BY_NAME[document["kind"]].template
    if path is None:
        return None
    for part in path:
        document = document[str(part)]
    return document


def read_manifest_files(sources: Iterable[str], namespace: str = "default") -> list[Document]:
    """Read and validate manifest files; return the objects in creation order."""
    objects: dict[ObjectKey, Document] = {}
    for origin, obj in read_objects(sources):
        try:
            document = validate_object(obj, namespace)
        except InvalidField as error:
            raise InvalidManifest(origin.file, origin.line(error.path), str(error)) from error
        _refuse_duplicate(objects, origin, document)
        objects[key_of(document)] = document
    return in_apply_order(objects.values())


def in_apply_order(documents: Iterable[Document]) -> list[Document]:
    order = {kind.name: number for number, kind in enumerate(KINDS)}
    return sorted(documents, key=lambda document: order[document["kind"]])


def _refuse_duplicate(
    objects: Mapping[ObjectKey, Document], origin: ObjectOrigin, document: Document
) -> None:
    if (key := key_of(document)) in objects:
        raise InvalidManifest(origin.file, origin.line(), f"{key} is defined twice.")


def validate_object(obj: Any, namespace: str) -> Document:
    """Return the object as the API server would store it; raise InvalidField if it is invalid."""
    at = Field(obj)
    kind = _kind(at)
    metadata = at.get("metadata")
    name = metadata.get("name").required_text()
    if not _NAME.fullmatch(name):
        raise InvalidField(
            metadata.get("name").path, f'is "{name}", which is not a lowercase DNS name'
        )
    document: Document = _plain(obj)
    if kind.name == "Node":
        Node.from_object(document)
        return document
    document.pop("status", None)
    if kind.namespaced:
        stated = metadata.get("namespace").text()
        document["metadata"] = {**document["metadata"], "namespace": stated or namespace}
    else:
        document["metadata"].pop("namespace", None)
    _check_types(kind, document)
    check_values(kind.name, kind.template, document)
    if kind.name == "RuntimeClass":
        RuntimeClass.from_object(document)
    if kind.template is not None:
        _check_template(kind, document)
    return document


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _kind(at: Field) -> ResourceKind:
    name, version = at.get("kind").text(), at.get("apiVersion").text()
    if not name:
        raise InvalidField((), 'is not a Kubernetes object: it has no "kind"')
    group, _, _ = version.rpartition("/")
    kind = _BY_TYPE.get((group, name))
    if kind is not None and version.endswith("v1"):
        return kind
    if known := BY_NAME.get(name):
        right = f"{known.group}/v1" if known.group else "v1"
        raise InvalidField(
            ("apiVersion",), f'is "{version}", and the apiVersion of a {name} is {right}'
        )
    raise InvalidField(
        ("kind",),
        f"is {name}, which needs a cluster; play supports {', '.join(kind.name for kind in KINDS)}",
    )


def _plain(obj: Any, key: str = "") -> Any:
    """Copy the object with quantities as text and without nulls, as the API server stores it."""
    if isinstance(obj, dict):
        return {str(k): _plain(v, str(k)) for k, v in obj.items() if v is not None} | (
            {k: str(v) for k, v in obj.items() if isinstance(v, int | float)}
            if key in _QUANTITY_MAPS
            else {}
        )
    if isinstance(obj, list):
        return [_plain(item, key) for item in obj]
    return obj


_QUANTITY_MAPS = ("limits", "requests", "podFixed", "overhead", "capacity", "allocatable")


def _check_types(kind: ResourceKind, document: Document) -> None:
    try:
        typed = kind.model.from_dict(document).to_dict()
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at ")
        raise InvalidField(
            _path(where), f"is invalid: {problem[:1].lower()}{problem[1:]}"
        ) from None
    for path in _unknown_fields(document, typed, ()):
        raise InvalidField(path, "is not a field of this kind")


_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")


def _path(text: str) -> FieldPath:
    return tuple(name or int(index) for name, index in _STEP.findall(text))


def _unknown_fields(given: Any, read: Any, path: FieldPath) -> Iterator[FieldPath]:
    """Yield the paths of fields that the typed model dropped."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key not in read:
                yield (*path, key)
            else:
                yield from _unknown_fields(value, read[key], (*path, key))
    elif isinstance(given, list) and isinstance(read, list):
        for index, pair in enumerate(zip(given, read, strict=False)):
            yield from _unknown_fields(*pair, (*path, index))


def _check_template(kind: ResourceKind, document: Document) -> None:
    path = kind.template or ()
    template = Field(document)
    for part in path:
        template = template.get(str(part))
    Pod.from_template(template.value, path, every_node=kind.name == "DaemonSet")
    policy = template.get("spec", "restartPolicy")
    if kind.name in ("Job", "CronJob"):
        policy.one_of("Never", "OnFailure")
        if not policy.text():
            raise InvalidField(policy.path, "is required for jobs: Never or OnFailure")
    elif kind.name != "Pod" and policy.text() not in ("", "Always"):
        raise InvalidField(
            policy.path, f"is {policy.text()}, and a {kind.name} supports only Always"
        )
    _check_selector(kind, document, template)


def _check_selector(kind: ResourceKind, document: Document, template: Field) -> None:
    if kind.group != "apps":
        return
    labels = dict(template.get("metadata", "labels").text_map())
    selector = Field(document).get("spec", "selector", "matchLabels")
    for key, value in selector.text_map():
        if labels.get(key) != value:
            raise InvalidField(
                selector.path, f"selects {key}={value}, which is not a label of the template"
            )

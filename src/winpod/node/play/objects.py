"""The objects that `winpod play` takes: which kinds there are, and what a manifest says, checked.

An object is kept as the API's own form. A field that nobody knows is a mistake, as it is for
kubectl, and so is a value of another type, or one that an API server refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from lightkube.models import apps_v1, batch_v1, node_v1
from lightkube.models import core_v1 as v1

from winpod.node.manifests import BadManifest, Origin, read_objects
from winpod.node.play.values import check_values
from winpod.windows.objects import Node, Pod, RuntimeClass
from winpod.windows.reading import At, InvalidField, Path

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """`short` are the names that kubectl knows it by; `template` is where its pods are written."""

    name: str
    group: str
    model: Any
    short: tuple[str, ...] = ()
    template: Path | None = None
    namespaced: bool = True

    @property
    def shown(self) -> str:
        return f"{self.name.lower()}.{self.group}" if self.group else self.name.lower()

    @property
    def words(self) -> tuple[str, ...]:
        plain = self.name.lower()
        plural = f"{plain}es" if plain.endswith("s") else f"{plain}s"
        return (plain, plural, *self.short, self.shown)


_TEMPLATE: Path = ("spec", "template")

KINDS = (
    Kind("Namespace", "", v1.Namespace, ("ns",), namespaced=False),
    Kind("RuntimeClass", "node.k8s.io", node_v1.RuntimeClass, namespaced=False),
    Kind("Node", "", v1.Node, ("no",), namespaced=False),
    Kind("ServiceAccount", "", v1.ServiceAccount, ("sa",)),
    Kind("ConfigMap", "", v1.ConfigMap, ("cm",)),
    Kind("Secret", "", v1.Secret),
    Kind("PersistentVolume", "", v1.PersistentVolume, ("pv",), namespaced=False),
    Kind("PersistentVolumeClaim", "", v1.PersistentVolumeClaim, ("pvc",)),
    Kind("Service", "", v1.Service, ("svc",)),
    Kind("Pod", "", v1.Pod, ("po",), ()),
    Kind("Deployment", "apps", apps_v1.Deployment, ("deploy",), _TEMPLATE),
    Kind("ReplicaSet", "apps", apps_v1.ReplicaSet, ("rs",), _TEMPLATE),
    Kind("StatefulSet", "apps", apps_v1.StatefulSet, ("sts",), _TEMPLATE),
    Kind("DaemonSet", "apps", apps_v1.DaemonSet, ("ds",), _TEMPLATE),
    Kind("Job", "batch", batch_v1.Job, (), _TEMPLATE),
    Kind("CronJob", "batch", batch_v1.CronJob, ("cj",), ("spec", "jobTemplate", *_TEMPLATE)),
)
"""In the order in which they are made, so that what is referred to is there before."""

BY_NAME = {kind.name: kind for kind in KINDS}
_BY_TYPE = {(kind.group, kind.name): kind for kind in KINDS}
_BY_WORD = {word: kind for kind in KINDS for word in kind.words}


def kind_of_word(word: str) -> Kind | None:
    """The kind that a person means: `deploy`, `deployments`, `deployment.apps`."""
    return _BY_WORD.get(word.lower())


@dataclass(frozen=True, slots=True, order=True)
class Key:
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{BY_NAME[self.kind].shown}/{self.name}"


def key_of(document: Mapping[str, Any]) -> Key:
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", ""), metadata["name"])


def template_of(document: Document) -> Document | None:
    """The pod that an object makes, if it makes any; a pod is its own."""
    path = BY_NAME[document["kind"]].template
    if path is None:
        return None
    for part in path:
        document = document[str(part)]
    return document


def read_files(sources: Iterable[str], namespace: str = "default") -> list[Document]:
    """The objects of manifest files, in the order to make them, or the first mistake in them."""
    found: dict[Key, Document] = {}
    for origin, obj in read_objects(sources):
        try:
            document = check(obj, namespace)
        except InvalidField as error:
            raise BadManifest(origin.file, origin.line(error.path), str(error)) from error
        _refuse_twice(found, origin, document)
        found[key_of(document)] = document
    return in_order(found.values())


def in_order(documents: Iterable[Document]) -> list[Document]:
    order = {kind.name: number for number, kind in enumerate(KINDS)}
    return sorted(documents, key=lambda document: order[document["kind"]])


def _refuse_twice(found: Mapping[Key, Document], origin: Origin, document: Document) -> None:
    if (key := key_of(document)) in found:
        raise BadManifest(origin.file, origin.line(), f"{key} is written twice.")


def check(obj: Any, namespace: str) -> Document:
    """The object as the API server would keep it; what is wrong with it is an InvalidField."""
    at = At(obj)
    kind = _kind(at)
    metadata = at.get("metadata")
    name = metadata.get("name").required_text()
    if not _NAME.fullmatch(name):
        raise InvalidField(
            metadata.get("name").path, f'is "{name}", which is no lowercase DNS name'
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


def _kind(at: At) -> Kind:
    name, version = at.get("kind").text(), at.get("apiVersion").text()
    if not name:
        raise InvalidField((), 'is not a Kubernetes object: it has no "kind"')
    group, _, _ = version.rpartition("/")
    kind = _BY_TYPE.get((group, name))
    if kind is not None and version.endswith("v1"):
        return kind
    if known := BY_NAME.get(name):
        right = f"{known.group}/v1" if known.group else "v1"
        raise InvalidField(("apiVersion",), f'is "{version}", and a {name} is of {right}')
    raise InvalidField(
        ("kind",),
        f"is {name}, which needs a cluster; play takes {', '.join(kind.name for kind in KINDS)}",
    )


def _plain(obj: Any, key: str = "") -> Any:
    """A copy, with amounts as text and null left out, as the API server has them."""
    if isinstance(obj, dict):
        return {str(k): _plain(v, str(k)) for k, v in obj.items() if v is not None} | (
            {k: str(v) for k, v in obj.items() if isinstance(v, int | float)}
            if key in _AMOUNTS
            else {}
        )
    if isinstance(obj, list):
        return [_plain(item, key) for item in obj]
    return obj


_AMOUNTS = ("limits", "requests", "podFixed", "overhead", "capacity", "allocatable")


def _check_types(kind: Kind, document: Document) -> None:
    try:
        typed = kind.model.from_dict(document).to_dict()
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at ")
        raise InvalidField(_path(where), f"is wrong: {problem[:1].lower()}{problem[1:]}") from None
    for path in _unread(document, typed, ()):
        raise InvalidField(path, "is not a field of this kind")


_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")


def _path(text: str) -> Path:
    return tuple(name or int(index) for name, index in _STEP.findall(text))


def _unread(given: Any, read: Any, path: Path) -> Iterator[Path]:
    """Where something was given that did not survive being read."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key not in read:
                yield (*path, key)
            else:
                yield from _unread(value, read[key], (*path, key))
    elif isinstance(given, list) and isinstance(read, list):
        for index, pair in enumerate(zip(given, read, strict=False)):
            yield from _unread(*pair, (*path, index))


def _check_template(kind: Kind, document: Document) -> None:
    path = kind.template or ()
    template = At(document)
    for part in path:
        template = template.get(str(part))
    Pod.from_template(template.value, path, every_node=kind.name == "DaemonSet")
    policy = template.get("spec", "restartPolicy")
    if kind.name in ("Job", "CronJob"):
        policy.one_of("Never", "OnFailure")
        if not policy.text():
            raise InvalidField(policy.path, "is required here: Never or OnFailure")
    elif kind.name != "Pod" and policy.text() not in ("", "Always"):
        raise InvalidField(policy.path, f"is {policy.text()}, and a {kind.name} has only Always")
    _check_selector(kind, document, template)


def _check_selector(kind: Kind, document: Document, template: At) -> None:
    if kind.group != "apps":
        return
    labels = dict(template.get("metadata", "labels").pairs())
    wanted = At(document).get("spec", "selector", "matchLabels")
    for key, value in wanted.pairs():
        if labels.get(key) != value:
            raise InvalidField(wanted.path, f"selects {key}={value}, which the template has not")

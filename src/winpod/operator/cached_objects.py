"""Nodes, RuntimeClasses and pods as the operator caches them: slim and hashable.

Only the fields that a predicate reads are decoded. Pods of one workload share the decoded template,
so twenty thousand pods take little more memory than their names.

Pods over the limits in `SIZE_LIMITS`, which are far above what real pods need, are not evaluated.
Otherwise a user could keep the operator busy for minutes with a pod that selects nodes by thousands
of labels, while other pods are admitted unchecked.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from winpod.errors import InvalidInput
from winpod.field_reader import Field, TextPairs
from winpod.k8s.objects import (
    NodeObject,
    OwnedObjectMeta,
    PodSpec,
    PodStatus,
    RuntimeClassObject,
    SlimStruct,
)
from winpod.labels import (
    ARCH_LABEL,
    ARCHITECTURE_ANNOTATION,
    FILLED_LABELS_ANNOTATION,
    MANAGED_BY_LABEL,
    MANAGED_BY_VALUE,
    OS_ANNOTATION,
    OS_LABEL,
    OS_VERSION_ANNOTATION,
    RETIRING_ANNOTATION,
)
from winpod.placement.model import Container, Node, Pod, RuntimeClass
from winpod.placement.predicates import TERMINAL_PHASES

SIZE_LIMITS: Mapping[str, int] = {
    "containers": 100,
    "requested resources": 50,
    "labels in its nodeSelector": 100,
    "values in its node affinity": 1000,
    "tolerations": 200,
    "pull secrets": 50,
}
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def exceeded_size_limit(template: Mapping[str, Any]) -> str:
    """Return a message about the exceeded limit; empty if the pod is within all limits."""
    try:
        for (name, limit), items in zip(
            SIZE_LIMITS.items(), _limited_parts(Field(template).get("spec")), strict=True
        ):
            if len(list(islice(items, limit + 1))) > limit:
                return f"it has more than {limit} {name}; such pods are not checked."
    except InvalidInput:
        return ""  # the API server rejects it
    return ""


def _limited_parts(spec: Field) -> Iterator[Iterable[object]]:
    """Yield the limited items in the order of `SIZE_LIMITS`."""
    containers = [container for name in _CONTAINERS for container in _members(spec, name)]
    yield containers
    yield frozenset(_resources((*containers, spec.value)))
    yield _members(spec, "nodeSelector")
    yield _leaf_values(spec.get(*_AFFINITY).value)
    yield _members(spec, "tolerations")
    yield _members(spec, "imagePullSecrets")


def _members(field: Field, *steps: str) -> Collection[Any]:
    value = field.get(*steps).value
    return value if isinstance(value, dict | list) else ()


def _resources(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        for name in ("requests", "limits"):
            yield from map(str, _members(Field(part), "resources", name))


def _leaf_values(value: object) -> Iterator[object]:
    pending = [value]
    while pending:
        match pending.pop():
            case dict(members):
                pending.extend(members.values())
            case list(items):
                pending.extend(items)
            case leaf:
                yield leaf


_MAX_TEMPLATES = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedNode:
    """A node; `filled_in` are the labels set by the operator instead of the kubelet."""

    node: Node
    uid: str = ""
    is_ready: bool = True
    filled_in: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CachedRuntimeClass:
    """A RuntimeClass; `retiring` is the message for pods that still use it, empty if in service."""

    runtime_class: RuntimeClass
    is_managed: bool = False
    retiring: str = ""
    uid: str = ""
    version: str = ""
    annotations: TextPairs = ()

    @property
    def name(self) -> str:
        return self.runtime_class.name


@dataclass(frozen=True, slots=True)
class CachedPod:
    """A pod; `template` is the pod as placement reads it, unbound, `node` where it is bound."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    is_deleting: bool
    owner: tuple[str, str]
    template: Pod

    @property
    def runtime_class(self) -> str:
        return self.template.runtime_class

    @property
    def is_terminal(self) -> bool:
        return self.phase in TERMINAL_PHASES


class _PlatformAnnotations(
    SlimStruct,
    rename={
        "os": OS_ANNOTATION,
        "architecture": ARCHITECTURE_ANNOTATION,
        "os_version": OS_VERSION_ANNOTATION,
        "kubernetes_os": OS_LABEL,
        "kubernetes_arch": ARCH_LABEL,
    },
):
    """The annotations of a pod that decide which image manifest it gets."""

    os: str = ""
    architecture: str = ""
    os_version: str = ""
    kubernetes_os: str = ""
    kubernetes_arch: str = ""


class _PackedMeta(OwnedObjectMeta):
    annotations: _PlatformAnnotations | None = None


@lru_cache(maxsize=_MAX_TEMPLATES)
def _shared(template: bytes) -> bytes:
    """Return the cached instance of equal templates."""
    return template


class PackedPod(SlimStruct):
    """A pod as listed. The spec is encoded when decoded, since lists have thousands of pods."""

    metadata: _PackedMeta
    spec: PodSpec | None = None
    status: PodStatus = msgspec.field(default_factory=PodStatus)
    node: str = ""
    template: bytes = b""

    def __post_init__(self) -> None:
        if self.spec:
            self.node, self.spec.node_name = self.spec.node_name, ""
            metadata = {"annotations": self.metadata.annotations}
            self.template = _shared(msgspec.json.encode({"metadata": metadata, "spec": self.spec}))
            self.spec = None


def to_cached_node(obj: NodeObject) -> CachedNode:
    return CachedNode(
        Node.from_object(obj.to_dict()),
        obj.metadata.uid,
        obj.is_ready,
        frozenset(obj.metadata.annotations.get(FILLED_LABELS_ANNOTATION, "").split(",")) - {""},
    )


def to_cached_class(obj: RuntimeClassObject) -> CachedRuntimeClass:
    annotations = obj.metadata.annotations
    return CachedRuntimeClass(
        RuntimeClass.from_object(obj.to_dict()),
        obj.metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY_VALUE,
        annotations.get(RETIRING_ANNOTATION, ""),
        obj.metadata.uid,
        obj.metadata.resource_version,
        tuple(sorted(annotations.items())),
    )


class TemplateCache:
    """LRU cache of decoded pod templates, shared by pods with equal templates."""

    def __init__(self) -> None:
        self._templates: dict[bytes, Pod] = {}

    def to_cached_pod(self, obj: PackedPod) -> CachedPod:
        metadata = obj.metadata
        owner = metadata.controller
        return CachedPod(
            sys.intern(metadata.namespace),
            metadata.name,
            metadata.uid,
            sys.intern(obj.node),
            sys.intern(obj.status.phase),
            bool(metadata.deletion_timestamp),
            (sys.intern(owner.kind), sys.intern(owner.name)) if owner else ("", ""),
            self._template(obj),
        )

    def _template(self, obj: PackedPod) -> Pod:
        template = self._templates.pop(obj.template, None) or _read_template(obj)
        self._templates[obj.template] = template
        if len(self._templates) > _MAX_TEMPLATES:
            del self._templates[next(iter(self._templates))]
        return template


def _read_template(obj: PackedPod) -> Pod:
    """Decode a template, dropping invalid parts: the pod exists and still uses its class."""
    name = f"{obj.metadata.namespace}/{obj.metadata.name}"
    template = msgspec.json.decode(obj.template)
    runtime_class = template["spec"].get("runtimeClassName") or ""
    if excess := exceeded_size_limit(template):
        _log.warning("Skipping oversized pod %s: %s", name, excess)
        return Pod((), runtime_class=runtime_class)
    try:
        return Pod.from_template(template)
    except InvalidInput as error:
        _log.info("Ignoring annotations of pod %s: %s", name, error)
    try:
        return Pod.from_template(template | {"metadata": {}})
    except InvalidInput as error:
        _log.warning("Failed to decode pod %s: %s", name, error)
    containers = tuple(
        Container(c.get("name", ""), c.get("image", ""), ())
        for c in template["spec"].get("containers", ())
    )
    return Pod(containers, runtime_class=runtime_class)

"""Nodes, classes and pods of a cluster as the operator keeps them: slim, and hashable.

Of an object only the fields are decoded that a rule reads. Pods of one workload share what their
template says, so twenty thousand pods take little more room than their names.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.cluster.limits import too_much
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Container, Node, Pod, RuntimeClass
from winpod.windows.reading import Pairs
from winpod.windows.scheduling import ENDED_PHASES

MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "winpod"
RETIRING = "winpod.dev/retiring"
FILLED = "winpod.dev/filled-labels"
"""The labels of a node that the operator wrote because no kubelet did."""
_REMEMBERED = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """`node` has what is taken on it; `filled` are the labels that are not its kubelet's."""

    node: Node
    uid: str = ""
    is_ready: bool = True
    filled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SeenClass:
    """`retiring` is the sentence for people who still want it, empty where it is not."""

    runtime_class: RuntimeClass
    is_ours: bool = False
    retiring: str = ""
    uid: str = ""
    version: str = ""
    annotations: Pairs = ()

    @property
    def name(self) -> str:
        return self.runtime_class.name


@dataclass(frozen=True, slots=True)
class SeenPod:
    """`template` is the pod as placement reads it, for any node; `node` is where it is bound."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    is_leaving: bool
    owner: tuple[str, str]
    template: Pod

    @property
    def runtime_class(self) -> str:
        return self.template.runtime_class

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED_PHASES


class _Owner(DictMixin):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Narrowing(
    DictMixin,
    rename={
        "os": "winpod.dev/os",
        "architecture": "winpod.dev/architecture",
        "os_version": "winpod.dev/os-version",
        "kubernetes_os": "kubernetes.io/os",
        "kubernetes_arch": "kubernetes.io/arch",
    },
):
    """The annotations of a pod that decide which image it gets."""

    os: str = ""
    architecture: str = ""
    os_version: str = ""
    kubernetes_os: str = ""
    kubernetes_arch: str = ""


class _PodMetadata(DictMixin, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] | None = None
    annotations: _Narrowing | None = None


class _Container(DictMixin, rename="camel"):
    name: str = ""
    image: str = ""
    restart_policy: str | None = None
    resources: Any = None
    security_context: Any = None


class _PodSpec(DictMixin, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    os: Any = None
    node_selector: Any = None
    node_name: str = ""
    affinity: Any = None
    tolerations: Any = None
    runtime_class_name: str | None = None
    overhead: Any = None
    resources: Any = None
    security_context: Any = None
    image_pull_secrets: Any = None


class PodStatus(DictMixin):
    phase: str = ""


@lru_cache(maxsize=_REMEMBERED)
def _shared(template: bytes) -> bytes:
    """The one that is kept of those that are equal."""
    return template


class PodObject(DictMixin):
    """Its spec is packed as soon as it is read, since a list has thousands of them."""

    metadata: _PodMetadata
    spec: _PodSpec | None = None
    status: PodStatus = msgspec.field(default_factory=PodStatus)
    node: str = ""
    template: bytes = b""

    def __post_init__(self) -> None:
        if self.spec:
            self.node, self.spec.node_name = self.spec.node_name, ""
            metadata = {"annotations": self.metadata.annotations}
            self.template = _shared(msgspec.json.encode({"metadata": metadata, "spec": self.spec}))
            self.spec = None


class _Metadata(DictMixin, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Condition(DictMixin):
    type: str = ""
    status: str = ""


class _NodeStatus(DictMixin, rename="camel"):
    allocatable: Any = None
    capacity: Any = None
    node_info: Any = None
    runtime_handlers: Any = None
    conditions: list[Condition] | None = None


class _NodeSpec(DictMixin):
    taints: Any = None
    unschedulable: bool | None = None


class NodeObject(DictMixin):
    metadata: _Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class ClassObject(DictMixin):
    metadata: _Metadata
    handler: str = ""
    scheduling: Any = None
    overhead: Any = None


def see_node(obj: NodeObject) -> SeenNode:
    annotations = obj.metadata.annotations or {}
    conditions = obj.status.conditions or ()
    return SeenNode(
        Node.from_object(obj.to_dict()),
        obj.metadata.uid,
        any(c.type == "Ready" and c.status == "True" for c in conditions),
        frozenset(annotations.get(FILLED, "").split(",")) - {""},
    )


def see_class(obj: ClassObject) -> SeenClass:
    annotations = obj.metadata.annotations or {}
    return SeenClass(
        RuntimeClass.from_object(obj.to_dict()),
        (obj.metadata.labels or {}).get(MANAGED_BY) == OURS,
        annotations.get(RETIRING, ""),
        obj.metadata.uid,
        obj.metadata.resource_version,
        tuple(sorted(annotations.items())),
    )


class Templates:
    """What pods say, kept once for all pods that say the same; the least used are forgotten."""

    def __init__(self) -> None:
        self._read: dict[bytes, Pod] = {}

    def see_pod(self, obj: PodObject) -> SeenPod:
        metadata = obj.metadata
        owners = metadata.owner_references or ()
        owner = next((o for o in owners if o.controller), None)
        return SeenPod(
            sys.intern(metadata.namespace),
            metadata.name,
            metadata.uid,
            sys.intern(obj.node),
            sys.intern(obj.status.phase),
            metadata.deletion_timestamp is not None,
            (sys.intern(owner.kind), sys.intern(owner.name)) if owner else ("", ""),
            self._template(obj),
        )

    def _template(self, obj: PodObject) -> Pod:
        template = self._read.pop(obj.template, None) or _read_template(obj)
        self._read[obj.template] = template
        if len(self._read) > _REMEMBERED:
            del self._read[next(iter(self._read))]
        return template


def _read_template(obj: PodObject) -> Pod:
    """Without what the author got wrong: the pod is there all the same, and uses its class."""
    where = f"{obj.metadata.namespace}/{obj.metadata.name}"
    told = msgspec.json.decode(obj.template)
    used = told["spec"].get("runtimeClassName") or ""
    if excess := too_much(told):
        _log.warning("pod %s is not looked at: %s", where, excess)
        return Pod((), runtime_class=used)
    try:
        return Pod.from_template(told)
    except InvalidInput as error:
        _log.info("an annotation of pod %s is not heeded: %s", where, error)
    try:
        return Pod.from_template(told | {"metadata": {}})
    except InvalidInput as error:
        _log.warning("pod %s cannot be read: %s", where, error)
    named = ((c.get("name", ""), c.get("image", "")) for c in told["spec"].get("containers", ()))
    containers = tuple(Container(name, image, ()) for name, image in named)
    return Pod(containers, runtime_class=used)

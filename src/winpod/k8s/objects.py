"""Slim models of API objects: only the fields that winpod reads are decoded.

Lists have thousands of objects, so that a field more costs memory. Attributes have Python names,
unlike those of the complete models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec


class ApiStruct(msgspec.Struct, omit_defaults=True):
    """Base of everything that is sent to or read from an API server."""

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        return msgspec.convert(document, cls)

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class SlimStruct(ApiStruct, rename="camel"):
    """Base of slim models."""


class OwnerReference(SlimStruct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class ObjectIdentity(SlimStruct):
    """Metadata of a list item."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str = ""


class OwnedObjectMeta(ObjectIdentity):
    owner_references: list[OwnerReference] = msgspec.field(default_factory=list)

    @property
    def controller(self) -> OwnerReference | None:
        return next((owner for owner in self.owner_references if owner.controller), None)


class ObjectMeta(ObjectIdentity):
    """Metadata that can be written: owner references are absent, since only parts are decoded."""

    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    finalizers: list[str] = msgspec.field(default_factory=list)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class ConditionStatus(SlimStruct):
    type: str
    status: str


class Condition(ConditionStatus):
    reason: str
    message: str
    last_transition_time: str


def is_ready(conditions: list[ConditionStatus]) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


class Address(SlimStruct):
    type: str = ""
    address: str = ""


class NodeSpec(SlimStruct):
    taints: Any = None
    unschedulable: bool = False
    pod_cidr: str = msgspec.field(default="", name="podCIDR")


class NodeInfo(SlimStruct):
    architecture: str = ""
    container_runtime_version: str = ""
    kernel_version: str = ""
    operating_system: str = ""


class NodeStatus(SlimStruct):
    allocatable: Any = None
    capacity: Any = None
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)
    runtime_handlers: Any = None
    conditions: list[ConditionStatus] = msgspec.field(default_factory=list)
    addresses: list[Address] = msgspec.field(default_factory=list)


class NodeObject(SlimStruct):
    metadata: ObjectMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def is_ready(self) -> bool:
        return is_ready(self.status.conditions)


class RuntimeClassObject(SlimStruct):
    metadata: ObjectMeta
    handler: str = ""
    scheduling: Any = None
    overhead: Any = None


class Container(SlimStruct):
    name: str = ""
    image: str = ""
    restart_policy: str | None = None
    resources: Any = None
    security_context: Any = None


class Toleration(SlimStruct):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSpec(SlimStruct):
    """The fields that decide where a pod runs."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    os: Any = None
    node_selector: Any = None
    node_name: str = ""
    affinity: Any = None
    tolerations: list[Toleration] | None = None
    runtime_class_name: str | None = None
    overhead: Any = None
    resources: Any = None
    security_context: Any = None
    image_pull_secrets: Any = None


class PodStatus(SlimStruct):
    phase: str = ""


class PodMeta(OwnedObjectMeta):
    creation_timestamp: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class PodObject(SlimStruct):
    metadata: PodMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

"""The custom resource WindowsUpgrade.

Its status is all that an operator needs to continue after another one died: what is needed to undo
a step is saved before it starts. The finalizer keeps the resource until that is no longer needed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from winpod.k8s import crd as schema
from winpod.k8s.crd import API_VERSION, CustomResource
from winpod.k8s.objects import Condition, SlimStruct
from winpod.labels import UPGRADE_FINALIZER
from winpod.operator.upgrade.spec import OldNodePolicy, UpgradeStrategy

KIND, PLURAL = "WindowsUpgrade", "windowsupgrades"
UPGRADES = f"/apis/{API_VERSION}/{PLURAL}"


class StepRecord(SlimStruct):
    """A step; `before` is what is needed to undo it, saved before it starts."""

    do: str
    target: str = ""
    state: str = "Pending"
    message: str = ""
    started_at: str = ""
    finished_at: str = ""
    before: dict[str, Any] = msgspec.field(default_factory=dict)
    after: dict[str, Any] = msgspec.field(default_factory=dict)


class WorkloadRecord(SlimStruct):
    kind: str
    namespace: str
    name: str
    pods: int = 0
    fate: str = ""
    change: str = ""
    stays: bool = False
    reasons: list[str] = msgspec.field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class NodeRecord(SlimStruct):
    name: str
    role: str
    state: str


class UpgradeStatus(SlimStruct):
    """`ready` is the number of ready pods of each workload before it was changed."""

    phase: str = ""
    message: str = ""
    failure: str = ""
    observed_generation: int = 0
    started_at: str = ""
    finished_at: str = ""
    notes: list[str] = msgspec.field(default_factory=list)
    conditions: list[Condition] = msgspec.field(default_factory=list)
    steps: list[StepRecord] = msgspec.field(default_factory=list)
    nodes: list[NodeRecord] = msgspec.field(default_factory=list)
    workloads: list[WorkloadRecord] = msgspec.field(default_factory=list)
    ready: dict[str, int] = msgspec.field(default_factory=dict)


class WindowsUpgrade(CustomResource):
    spec: dict[str, Any]
    status: UpgradeStatus = msgspec.field(default_factory=UpgradeStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def is_to_be_undone(self) -> bool:
        return bool(self.spec.get("undo"))

    @property
    def has_finalizer(self) -> bool:
        """Whether deletion waits until the upgrade is completed or undone."""
        return UPGRADE_FINALIZER in self.metadata.finalizers


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "default": False, "description": description}


_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SPEC = {
    "type": "object",
    "required": ["from", "to"],
    "properties": {
        "from": schema.string_schema("Windows of the old nodes: 2019, or 10.0.17763."),
        "to": schema.string_schema("Windows of the new nodes; must be newer."),
        "way": schema.string_schema(
            "A new class beside the old one; the same class with a handler that keeps the old "
            "kernel; or the same classes with another node selector.",
            enum=[str(way) for way in UpgradeStrategy],
            default=str(UpgradeStrategy.NEW_CLASS),
        ),
        "patchWorkloads": _flag("Patch workloads that use an old class or select old nodes."),
        "leaveBehind": _flag("Continue if workloads cannot move, and leave them where they are."),
        "oldNodes": schema.string_schema(
            "What to do with the old nodes at the end; they stay cordoned.",
            enum=[str(choice) for choice in OldNodePolicy],
            default=str(OldNodePolicy.KEEP),
        ),
        "patienceSeconds": {
            "type": "integer",
            "minimum": 1,
            "default": 1800,
            "description": "Timeout of one step, after which everything is undone.",
        },
        "undo": _flag("Undo the upgrade as far as possible."),
    },
    "x-kubernetes-validations": [
        {
            "rule": "self.from == oldSelf.from && self.to == oldSelf.to && self.way == oldSelf.way",
            "message": "from, to and way are immutable: undo the upgrade and create another",
        }
    ],
}
_STATUS = {
    "type": "object",
    "properties": {
        **schema.string_fields("phase", "message", "failure", "startedAt", "finishedAt"),
        "observedGeneration": schema.NUMBER,
        "notes": schema.TEXTS,
        "conditions": schema.CONDITIONS,
        "steps": schema.object_list_schema(
            ["do"],
            **schema.string_fields("do", "target", "state", "message", "startedAt", "finishedAt"),
            before=_ANY,
            after=_ANY,
        ),
        "nodes": schema.object_list_schema(
            ["name"], **schema.string_fields("name", "role", "state")
        ),
        "workloads": schema.object_list_schema(
            ["kind", "namespace", "name"],
            **schema.string_fields("kind", "namespace", "name", "fate", "change"),
            pods=schema.NUMBER,
            stays=schema.FLAG,
            reasons=schema.TEXTS,
        ),
        "ready": {"type": "object", "additionalProperties": schema.NUMBER},
    },
}

CRD = schema.custom_resource_definition(
    KIND,
    "Cluster",
    plural=PLURAL,
    short="wu",
    columns={
        "From": ".spec.from",
        "To": ".spec.to",
        "Way": ".spec.way",
        "Phase": ".status.phase",
        "Message": ".status.message",
    },
    spec=_SPEC,
    status=_STATUS,
)

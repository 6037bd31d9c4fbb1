"""The custom resource of an upgrade: what was asked, and how far it has come.

Its status is all that an operator needs to go on after another one died: each step is written down
with what undoing it takes before it is taken. The finalizer keeps it until that was used, or is no
longer needed.
"""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.cluster import resource_schema as schema
from winpod.cluster.custom_resources import API_VERSION, GROUP, Condition, CustomResource
from winpod.cluster.upgrade.asked import OldNodes, Way

KIND, PLURAL = "WindowsUpgrade", "windowsupgrades"
UPGRADES = f"/apis/{API_VERSION}/{PLURAL}"
FINALIZER = f"{GROUP}/undo"


class StepRecord(DictMixin, rename="camel", omit_defaults=True):
    """`before` is what undoing it takes, written down before anything is done."""

    do: str
    target: str = ""
    state: str = "Pending"
    message: str = ""
    started_at: str = ""
    finished_at: str = ""
    before: dict[str, Any] = msgspec.field(default_factory=dict)
    after: dict[str, Any] = msgspec.field(default_factory=dict)


class WorkloadRecord(DictMixin, rename="camel", omit_defaults=True):
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


class NodeRecord(DictMixin):
    name: str
    role: str
    state: str


class Status(DictMixin, rename="camel", omit_defaults=True):
    """`ready` is how many pods of a workload were ready before it was touched."""

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
    status: Status = msgspec.field(default_factory=Status)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def is_to_be_undone(self) -> bool:
        return bool(self.spec.get("undo"))

    @property
    def is_held(self) -> bool:
        """It cannot go before what it did was undone, or is to stay."""
        return FINALIZER in self.metadata.finalizers


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "default": False, "description": description}


_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SPEC = {
    "type": "object",
    "required": ["from", "to"],
    "properties": {
        "from": schema.text("The Windows of the old nodes: 2019, or 10.0.17763."),
        "to": schema.text("The Windows of the new nodes, which must be newer."),
        "way": schema.text(
            "A new class beside the old; the same class, with a handler that keeps the old kernel; "
            "or the old classes, with another node selector.",
            enum=[str(way) for way in Way],
            default=str(Way.NEW_CLASS),
        ),
        "patchWorkloads": _flag("Change workloads that name an old class or select old nodes."),
        "leaveBehind": _flag("Go on where workloads cannot move, and leave them where they are."),
        "oldNodes": schema.text(
            "What becomes of the old nodes in the end; they stay cordoned.",
            enum=[str(choice) for choice in OldNodes],
            default=str(OldNodes.KEEP),
        ),
        "patienceSeconds": {
            "type": "integer",
            "minimum": 1,
            "default": 1800,
            "description": "How long one step may take before everything is undone.",
        },
        "undo": _flag("Take back what was done, as far as it can be."),
    },
    "x-kubernetes-validations": [
        {
            "rule": "self.from == oldSelf.from && self.to == oldSelf.to && self.way == oldSelf.way",
            "message": "from, to and way cannot change: undo the upgrade and make another",
        }
    ],
}
_STATUS = {
    "type": "object",
    "properties": {
        **schema.text_fields("phase", "message", "failure", "startedAt", "finishedAt"),
        "observedGeneration": schema.NUMBER,
        "notes": schema.TEXTS,
        "conditions": schema.CONDITIONS,
        "steps": schema.objects(
            ["do"],
            **schema.text_fields("do", "target", "state", "message", "startedAt", "finishedAt"),
            before=_ANY,
            after=_ANY,
        ),
        "nodes": schema.objects(["name"], **schema.text_fields("name", "role", "state")),
        "workloads": schema.objects(
            ["kind", "namespace", "name"],
            **schema.text_fields("kind", "namespace", "name", "fate", "change"),
            pods=schema.NUMBER,
            stays=schema.FLAG,
            reasons=schema.TEXTS,
        ),
        "ready": {"type": "object", "additionalProperties": schema.NUMBER},
    },
}

CRD = schema.definition(
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

"""The custom resource of an instance: where it is, and how far it is on its way to be a node.

The operator makes one for each instance that people ask for. Its status and the instance itself are
all that an operator needs to go on after another one died.
"""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.core.dictmixin import DictMixin

GROUP, VERSION, KIND, PLURAL = "winpod.dev", "v1alpha1", "WindowsInstance", "windowsinstances"
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = f"{GROUP}/instance"
STOP_MANAGING = f"{GROUP}/forget"
"""An annotation: let the instance go as it is, where it cannot be reached any more."""


def instances_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"


class Condition(DictMixin, rename="camel"):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


class Spec(DictMixin, rename="camel", omit_defaults=True):
    address: str
    username: str
    port: int = 22
    machine: str = ""


class Status(DictMixin, rename="camel", omit_defaults=True):
    """`changing_since`: it was a node, and has its turn since; `is_cordoned`: by us, for that.

    `tokens` are the public halves of those that it may join with. `host_key` is pinned, and
    `login_key` is the public key that it was reached with last.
    """

    phase: str = ""
    message: str = ""
    failure: str = ""
    node: str = ""
    node_uid: str = ""
    version: str = ""
    build: str = ""
    runtime: str = ""
    addresses: list[str] = msgspec.field(default_factory=list)
    host_key: str = ""
    login_key: str = ""
    tokens: list[str] = msgspec.field(default_factory=list)
    changing_since: str = ""
    is_cordoned: bool = False
    conditions: list[Condition] = msgspec.field(default_factory=list)

    @property
    def is_changing(self) -> bool:
        return bool(self.changing_since)


class Metadata(DictMixin, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    finalizers: list[str] = msgspec.field(default_factory=list)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class WindowsInstance(DictMixin, rename="camel", omit_defaults=False):
    metadata: Metadata
    spec: Spec
    status: Status = msgspec.field(default_factory=Status)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_leaving(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @property
    def is_forgotten(self) -> bool:
        return STOP_MANAGING in self.metadata.annotations


_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_SPEC = {
    "type": "object",
    "required": ["address", "username"],
    "properties": {
        "address": {**_TEXT, "description": "Where SSH is answered: an IPv4 address or a name."},
        "username": {**_TEXT, "description": "A user of the instance who administers it."},
        "port": {**_NUMBER, "default": 22, "minimum": 1, "maximum": 65535},
        "machine": {**_TEXT, "description": "The Machine that it is, if it is one."},
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("phase", "message", "failure", "node", "version", "build"), _TEXT),
        **dict.fromkeys(("runtime", "nodeUid", "hostKey", "loginKey", "changingSince"), _TEXT),
        **dict.fromkeys(("addresses", "tokens"), _TEXTS),
        "isCordoned": _FLAG,
        "conditions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "status"],
                "properties": dict.fromkeys(
                    ("type", "status", "reason", "message", "lastTransitionTime"), _TEXT
                ),
            },
        },
    },
}


def _column(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "string", "jsonPath": path, **more}


CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": KIND,
            "listKind": f"{KIND}List",
            "plural": PLURAL,
            "singular": KIND.lower(),
            "shortNames": ["wi"],
        },
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    _column("Address", ".spec.address"),
                    _column("Node", ".status.node"),
                    _column("Version", ".status.version"),
                    _column("Runtime", ".status.runtime"),
                    _column("Phase", ".status.phase"),
                    _column("Message", ".status.message"),
                    {**_column("Age", ".metadata.creationTimestamp"), "type": "date"},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {"spec": _SPEC, "status": _STATUS},
                    }
                },
            }
        ],
    },
}

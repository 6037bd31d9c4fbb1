"""The custom resource of an instance: where it is, and how far it is on its way to be a node.

The operator makes one for each instance that people ask for. Its status and the instance itself are
all that an operator needs to go on after another one died.
"""

from __future__ import annotations

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.cluster import resource_schema as schema
from winpod.cluster.custom_resources import API_VERSION, GROUP, Condition, CustomResource

KIND, PLURAL = "WindowsInstance", "windowsinstances"
FINALIZER = f"{GROUP}/instance"
STOP_MANAGING = f"{GROUP}/forget"
"""An annotation: let the instance go as it is, where it cannot be reached any more."""


def instances_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"


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

    @property
    def was_ready(self) -> bool:
        """Whether it has been a ready node: from then on it needs no token to join with."""
        return bool(self.node_uid) and not self.tokens


class WindowsInstance(CustomResource):
    spec: Spec
    status: Status = msgspec.field(default_factory=Status)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def is_forgotten(self) -> bool:
        return STOP_MANAGING in self.metadata.annotations


_SPEC = {
    "type": "object",
    "required": ["address", "username"],
    "properties": {
        "address": schema.text("Where SSH is answered: an IPv4 address or a name."),
        "username": schema.text("A user of the instance who administers it."),
        "port": {**schema.NUMBER, "default": 22, "minimum": 1, "maximum": 65535},
        "machine": schema.text("The Machine that it is, if it is one."),
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        **schema.text_fields("phase", "message", "failure", "node", "version", "build"),
        **schema.text_fields("runtime", "nodeUid", "hostKey", "loginKey", "changingSince"),
        **dict.fromkeys(("addresses", "tokens"), schema.TEXTS),
        "isCordoned": schema.FLAG,
        "conditions": schema.CONDITIONS,
    },
}

CRD = schema.definition(
    KIND,
    "Namespaced",
    plural=PLURAL,
    short="wi",
    columns={
        "Address": ".spec.address",
        "Node": ".status.node",
        "Version": ".status.version",
        "Runtime": ".status.runtime",
        "Phase": ".status.phase",
        "Message": ".status.message",
    },
    spec=_SPEC,
    status=_STATUS,
)

"""The WindowsInstance custom resource: address of an instance, and its progress to a node.

The operator creates one for each instance of the inventory. Its status and the instance itself are
all that a new operator needs to continue.
"""

from __future__ import annotations

import msgspec

from winpod.k8s import crd as schema
from winpod.k8s.crd import API_VERSION, CustomResource
from winpod.k8s.objects import Condition, SlimStruct
from winpod.labels import STOP_MANAGING_ANNOTATION

KIND, PLURAL = "WindowsInstance", "windowsinstances"


def instances_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"


class InstanceSpec(SlimStruct):
    address: str
    username: str
    port: int = 22
    machine: str = ""


class InstanceStatus(SlimStruct):
    """`changing_since` is when an update of a node started; `is_cordoned` is a cordon by winpod for
    it.

    `tokens` are the public halves of its bootstrap tokens. `host_key` is the pinned host key,
    `login_key` the public key of the last login.
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
        """Whether it has been a ready node; it needs no bootstrap token from then on."""
        return bool(self.node_uid) and not self.tokens


class WindowsInstance(CustomResource):
    spec: InstanceSpec
    status: InstanceStatus = msgspec.field(default_factory=InstanceStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def is_unmanaged(self) -> bool:
        return STOP_MANAGING_ANNOTATION in self.metadata.annotations


_SPEC = {
    "type": "object",
    "required": ["address", "username"],
    "properties": {
        "address": schema.string_schema("SSH address: an IPv4 address or a DNS name."),
        "username": schema.string_schema("An administrator account of the instance."),
        "port": {**schema.NUMBER, "default": 22, "minimum": 1, "maximum": 65535},
        "machine": schema.string_schema("The name of its Machine, if it has one."),
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        **schema.string_fields("phase", "message", "failure", "node", "version", "build"),
        **schema.string_fields("runtime", "nodeUid", "hostKey", "loginKey", "changingSince"),
        **dict.fromkeys(("addresses", "tokens"), schema.TEXTS),
        "isCordoned": schema.FLAG,
        "conditions": schema.CONDITIONS,
    },
}

CRD = schema.custom_resource_definition(
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

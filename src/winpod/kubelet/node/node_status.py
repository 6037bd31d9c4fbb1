"""Builds the Node object as a kubelet on Windows does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from winpod import __version__
from winpod.clock import truncate_to_seconds
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.cri.handler_status import HYPERVISOR_INFO, reported_accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.runtime_client import unready_conditions
from winpod.labels import (
    HYPERV_CAPABILITY_LABEL,
    HYPERVISOR_LABEL,
    OSVERSION_LABEL,
    WINDOWS_TAINT_KEY,
)
from winpod.placement.model import Taint
from winpod.windows.builds import Build

WINDOWS_TAINT = Taint(WINDOWS_TAINT_KEY, "windows", "NoSchedule")
EMULATED = "HypervisorEmulated"
KUBELET_VERSION = "v1.36.0"
"""Version of the emulated kubelet; clients derive the supported features from it."""

_MAX_IMAGES = 50
_MAX_NAMES_PER_IMAGE = 5
_FIRST_REVISION = 1
_KUBELET_FIELDS = (
    "addresses",
    "capacity",
    "allocatable",
    "daemonEndpoints",
    "images",
    "nodeInfo",
    "runtimeHandlers",
)
_PRESSURES = {
    "MemoryPressure": ("Memory", "memory available"),
    "DiskPressure": ("Disk", "disk space"),
    "PIDPressure": ("PID", "PID available"),
}
_EMULATION = {
    Accelerator.EMULATION.value: (
        "NoHardwareVirtualization",
        "hypervisor-isolated pods run under CPU emulation, which is many times slower",
    ),
    Accelerator.KVM.value: (
        "HardwareVirtualization",
        "hypervisor-isolated pods run with hardware virtualization (KVM)",
    ),
    "": ("NoHypervisor", "no hypervisor isolation handler can start"),
}


@dataclass(frozen=True, slots=True)
class RuntimeFindings:
    """What the node observes: the runtime's responses, and its own pressure conditions.

    `accelerator` is what runs hypervisor-isolated pods, empty if no such handler can start.
    """

    runtime_version: str = ""
    unready_conditions: tuple[str, ...] = ()
    handlers: tuple[v1.NodeRuntimeHandler, ...] = ()
    images: tuple[v1.ContainerImage, ...] = ()
    pressures: frozenset[str] = frozenset()
    accelerator: str = ""

    @property
    def labels(self) -> dict[str, str | None]:
        """The labels that follow from the findings; None for a label to remove."""
        accelerator: dict[str, str | None] = {HYPERVISOR_LABEL: self.accelerator or None}
        has_hypervisor_handler = _has_hypervisor_handler(
            handler.name or "" for handler in self.handlers
        )
        return (
            accelerator
            if has_hypervisor_handler
            else {**accelerator, HYPERV_CAPABILITY_LABEL: None}
        )


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Machine identifiers, and the port of the kubelet API."""

    id: str = ""
    uuid: str = ""
    boot: str = ""
    port: int = 10250


def osversion_labels(build: Build, handlers: Iterable[str]) -> dict[str, str]:
    """Return the additional labels that document 000 proposes for Windows nodes."""
    labels = {OSVERSION_LABEL: str(build.base)}
    if _has_hypervisor_handler(handlers):
        labels[HYPERV_CAPABILITY_LABEL] = "hyperv"
    return labels


def _has_hypervisor_handler(handlers: Iterable[str]) -> bool:
    return any("hypervisor" in handler for handler in handlers)


def kernel_version(build: Build) -> str:
    revision = _FIRST_REVISION if build.revision is None else build.revision
    return f"{build.base}.{revision}"


def new_node(node_config: NodeConfig, findings: RuntimeFindings, status: v1.NodeStatus) -> v1.Node:
    """Return the Node to register.

    Taints are set here, because a node may not change its own taints later.
    """
    labels = node_config.all_labels | {name: text for name, text in findings.labels.items() if text}
    taints = [
        v1.Taint(key=t.key, value=t.value or None, effect=t.effect) for t in node_config.taints
    ]
    return v1.Node(
        metadata=ObjectMeta(name=node_config.name, labels=labels),
        spec=v1.NodeSpec(taints=taints or None),
        status=status,
    )


def node_labels(node: v1.Node | None) -> Mapping[str, str]:
    return (node and node.metadata and node.metadata.labels) or {}


def label_changes(node: v1.Node, desired: Mapping[str, str | None]) -> dict[str, str | None]:
    current = node_labels(node)
    return {name: text for name, text in desired.items() if current.get(name) != text}


def node_status(
    node_config: NodeConfig,
    machine: MachineInfo,
    findings: RuntimeFindings,
    before: v1.NodeStatus | None,
    now: datetime,
) -> v1.NodeStatus:
    """Return the node's status; unchanged conditions keep their transition time."""
    addresses = [v1.NodeAddress(type="Hostname", address=node_config.name)]
    if node_config.internal_ip:
        addresses.insert(0, v1.NodeAddress(type="InternalIP", address=node_config.internal_ip))
    return v1.NodeStatus(
        addresses=addresses,
        capacity=_amounts(node_config.capacity()),
        allocatable=_amounts(node_config.allocatable()),
        conditions=_conditions(findings, (before and before.conditions) or [], now),
        daemonEndpoints=v1.NodeDaemonEndpoints(
            kubeletEndpoint=v1.DaemonEndpoint(Port=machine.port)
        ),
        images=list(findings.images) or None,
        nodeInfo=v1.NodeSystemInfo(
            architecture="amd64",
            bootID=machine.boot,
            containerRuntimeVersion=findings.runtime_version,
            kernelVersion=kernel_version(node_config.build),
            kubeProxyVersion="",
            kubeletVersion=f"{KUBELET_VERSION}+winpod.{__version__}",
            machineID=machine.id or node_config.name,
            operatingSystem="windows",
            osImage=node_config.build.product_name,
            systemUUID=machine.uuid,
        ),
        runtimeHandlers=list(findings.handlers) or None,
    )


def has_changed(new: v1.NodeStatus, old: v1.NodeStatus | None) -> bool:
    """Whether the statuses differ in more than heartbeat times."""
    return old is None or _without_heartbeats(new) != _without_heartbeats(old)


def runtime_findings(
    version: api.VersionResponse,
    status: api.StatusResponse,
    images: Iterable[api.Image],
    pressures: frozenset[str],
) -> RuntimeFindings:
    return RuntimeFindings(
        f"{version.runtime_name}://{version.runtime_version}",
        tuple(unready_conditions(status.status.conditions)),
        tuple(_handler(handler) for handler in status.runtime_handlers),
        tuple(_images(images)),
        pressures,
        reported_accelerator(status.info, HYPERVISOR_INFO),
    )


def _handler(handler: api.RuntimeHandler) -> v1.NodeRuntimeHandler:
    features = handler.features
    return v1.NodeRuntimeHandler(
        name=handler.name,
        features=v1.NodeRuntimeHandlerFeatures(
            recursiveReadOnlyMounts=features.recursive_read_only_mounts,
            userNamespaces=features.user_namespaces,
        ),
    )


def _images(images: Iterable[api.Image]) -> list[v1.ContainerImage]:
    """Return the largest images, which matter most to the scheduler."""
    largest = sorted(images, key=lambda image: (-image.size, image.id))[:_MAX_IMAGES]
    return [
        v1.ContainerImage(
            names=[*image.repo_digests, *image.repo_tags][:_MAX_NAMES_PER_IMAGE],
            sizeBytes=image.size,
        )
        for image in largest
    ]


def _amounts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {name: _quantity(name, amount) for name, amount in amounts.items()}


def _quantity(name: str, amount: Decimal) -> str:
    """Format an amount exactly, in the kubelet's units."""
    if name == "cpu" and amount != int(amount):
        return f"{int(amount * 1000)}m"
    if name == "memory" and amount % 1024 == 0:
        return f"{int(amount) // 1024}Ki"
    return str(int(amount))


def _conditions(
    findings: RuntimeFindings, before: Sequence[v1.NodeCondition], now: datetime
) -> list[v1.NodeCondition]:
    now = truncate_to_seconds(now)
    conditions = [
        _pressure(condition_type, condition_type in findings.pressures)
        for condition_type in _PRESSURES
    ]
    conditions.append(_ready(findings))
    previous = {condition.type: condition for condition in before}
    if findings.accelerator or EMULATED in previous:
        conditions.append(_emulated(findings))
    for condition in conditions:
        old = previous.get(condition.type)
        stays = old is not None and old.status == condition.status and old.lastTransitionTime
        condition.lastHeartbeatTime = now
        condition.lastTransitionTime = old.lastTransitionTime if old and stays else now
    return conditions


def _pressure(condition_type: str, holds: bool) -> v1.NodeCondition:
    resource, description = _PRESSURES[condition_type]
    reason = f"KubeletHas{'Insufficient' if holds else 'Sufficient'}{resource}"
    message = f"kubelet has {'insufficient' if holds else 'sufficient'} {description}"
    if condition_type == "DiskPressure":
        reason = "KubeletHasDiskPressure" if holds else "KubeletHasNoDiskPressure"
        message = f"kubelet has {'' if holds else 'no '}disk pressure"
    return v1.NodeCondition(type=condition_type, status=str(holds), reason=reason, message=message)


def _ready(findings: RuntimeFindings) -> v1.NodeCondition:
    if not findings.unready_conditions:
        return v1.NodeCondition(
            type="Ready",
            status="True",
            reason="KubeletReady",
            message="kubelet is posting ready status",
        )
    message = (
        findings.unready_conditions[0]
        if len(findings.unready_conditions) == 1
        else f"[{', '.join(findings.unready_conditions)}]"
    )
    return v1.NodeCondition(type="Ready", status="False", reason="KubeletNotReady", message=message)


def _emulated(findings: RuntimeFindings) -> v1.NodeCondition:
    """Return the condition, for nodes that have, or had, hypervisor isolation."""
    reason, message = _EMULATION.get(findings.accelerator, _EMULATION[""])
    status = str(findings.accelerator == Accelerator.EMULATION)
    return v1.NodeCondition(type=EMULATED, status=status, reason=reason, message=message)


def _without_heartbeats(status: v1.NodeStatus) -> dict[str, object]:
    fields: dict[str, object] = status.to_dict()
    plain = {name: fields.get(name) for name in _KUBELET_FIELDS}
    conditions = {c.type: (c.status, c.reason, c.message) for c in status.conditions or ()}
    plain["conditions"] = {
        condition_type: conditions.get(condition_type)
        for condition_type in (*_PRESSURES, "Ready", EMULATED)
    }
    return plain

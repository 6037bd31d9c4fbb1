"""The Node object as a kubelet on Windows writes it: pure, from the facts and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod import __version__
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.cri.guests import HYPERVISOR_INFO, told_accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.node.facts import NodeFacts
from winpod.node.pods import whole_seconds
from winpod.node.readiness import troubles
from winpod.windows.builds import Build
from winpod.windows.objects import OSVERSION_LABEL, Taint

WINDOWS_TAINT = Taint("os", "windows", "NoSchedule")
ISOLATION_LABEL = "capability.microsoft.com/isolation"
HYPERVISOR_LABEL = "winpod.dev/hypervisor"
"""What runs the guests of a node that can have some, so that pods may choose: kvm, emulation."""
EMULATED = "HypervisorEmulated"
KUBELET_VERSION = "v1.36.0"
"""Of the kubelet whose part is played, by which clients know what they may ask for."""

_MOST_IMAGES = 50
_MOST_NAMES = 5
_FIRST_REVISION = 1
_OURS = (
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
        "pods of hypervisor handlers run in an emulated processor, many times slower",
    ),
    Accelerator.KVM.value: (
        "HardwareVirtualization",
        "pods of hypervisor handlers run on the processor itself, by KVM",
    ),
    "": ("NoHypervisor", "no handler of hypervisor isolation can start"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What a node finds of itself: its runtime's answers, and which pressures there are.

    `accelerator` is what runs the guests of hypervisor handlers, empty where none can start.
    """

    runtime_version: str = ""
    troubles: tuple[str, ...] = ()
    handlers: tuple[v1.NodeRuntimeHandler, ...] = ()
    images: tuple[v1.ContainerImage, ...] = ()
    pressures: frozenset[str] = frozenset()
    accelerator: str = ""

    @property
    def labels(self) -> dict[str, str | None]:
        """Those that follow what is found; None is one that the node shall not have."""
        accelerator: dict[str, str | None] = {HYPERVISOR_LABEL: self.accelerator or None}
        has_guests = _has_guests(handler.name or "" for handler in self.handlers)
        return accelerator if has_guests else {**accelerator, ISOLATION_LABEL: None}


@dataclass(frozen=True, slots=True)
class Machine:
    """What tells machines apart, and where the node's own API listens."""

    id: str = ""
    uuid: str = ""
    boot: str = ""
    port: int = 10250


def document_labels(build: Build, handlers: Iterable[str]) -> dict[str, str]:
    """The further labels that document 000 proposes for Windows nodes."""
    labels = {OSVERSION_LABEL: str(build.base)}
    if _has_guests(handlers):
        labels[ISOLATION_LABEL] = "hyperv"
    return labels


def _has_guests(handlers: Iterable[str]) -> bool:
    return any("hypervisor" in handler for handler in handlers)


def kernel_version(build: Build) -> str:
    revision = _FIRST_REVISION if build.revision is None else build.revision
    return f"{build.base}.{revision}"


def new_node(facts: NodeFacts, found: Found, status: v1.NodeStatus) -> v1.Node:
    """As it is registered. Taints can be told only now: a node may not change its own later."""
    labels = facts.all_labels | {name: text for name, text in found.labels.items() if text}
    taints = [v1.Taint(key=t.key, value=t.value or None, effect=t.effect) for t in facts.taints]
    return v1.Node(
        metadata=ObjectMeta(name=facts.name, labels=labels),
        spec=v1.NodeSpec(taints=taints or None),
        status=status,
    )


def labels_of(node: v1.Node | None) -> Mapping[str, str]:
    return (node and node.metadata and node.metadata.labels) or {}


def wrong_labels(node: v1.Node, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    has = labels_of(node)
    return {name: text for name, text in wanted.items() if has.get(name) != text}


def node_status(
    facts: NodeFacts, machine: Machine, found: Found, before: v1.NodeStatus | None, now: datetime
) -> v1.NodeStatus:
    """What the node says of itself now; conditions that stay keep the time they began."""
    addresses = [v1.NodeAddress(type="Hostname", address=facts.name)]
    if facts.internal_ip:
        addresses.insert(0, v1.NodeAddress(type="InternalIP", address=facts.internal_ip))
    return v1.NodeStatus(
        addresses=addresses,
        capacity=_amounts(facts.capacity()),
        allocatable=_amounts(facts.allocatable()),
        conditions=_conditions(found, (before and before.conditions) or [], now),
        daemonEndpoints=v1.NodeDaemonEndpoints(
            kubeletEndpoint=v1.DaemonEndpoint(Port=machine.port)
        ),
        images=list(found.images) or None,
        nodeInfo=v1.NodeSystemInfo(
            architecture="amd64",
            bootID=machine.boot,
            containerRuntimeVersion=found.runtime_version,
            kernelVersion=kernel_version(facts.build),
            kubeProxyVersion="",
            kubeletVersion=f"{KUBELET_VERSION}+winpod.{__version__}",
            machineID=machine.id or facts.name,
            operatingSystem="windows",
            osImage=facts.build.product_name,
            systemUUID=machine.uuid,
        ),
        runtimeHandlers=list(found.handlers) or None,
    )


def is_news(new: v1.NodeStatus, old: v1.NodeStatus | None) -> bool:
    """Whether more than the time of the last heartbeat differs."""
    return old is None or _without_heartbeats(new) != _without_heartbeats(old)


def found_of(
    version: api.VersionResponse,
    status: api.StatusResponse,
    images: Iterable[api.Image],
    pressures: frozenset[str],
) -> Found:
    return Found(
        f"{version.runtime_name}://{version.runtime_version}",
        tuple(troubles(status.status.conditions)),
        tuple(_handler(handler) for handler in status.runtime_handlers),
        tuple(_images(images)),
        pressures,
        told_accelerator(status.info, HYPERVISOR_INFO),
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
    """The largest, since those are worth most to a scheduler."""
    largest = sorted(images, key=lambda image: (-image.size, image.id))[:_MOST_IMAGES]
    return [
        v1.ContainerImage(
            names=[*image.repo_digests, *image.repo_tags][:_MOST_NAMES], sizeBytes=image.size
        )
        for image in largest
    ]


def _amounts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {name: _quantity(name, amount) for name, amount in amounts.items()}


def _quantity(name: str, amount: Decimal) -> str:
    """Exact, in the units that a kubelet uses."""
    if name == "cpu" and amount != int(amount):
        return f"{int(amount * 1000)}m"
    if name == "memory" and amount % 1024 == 0:
        return f"{int(amount) // 1024}Ki"
    return str(int(amount))


def _conditions(
    found: Found, before: Sequence[v1.NodeCondition], now: datetime
) -> list[v1.NodeCondition]:
    now = whole_seconds(now)
    told = [_pressure(kind, kind in found.pressures) for kind in _PRESSURES]
    told.append(_ready(found))
    known = {condition.type: condition for condition in before}
    if found.accelerator or EMULATED in known:
        told.append(_emulated(found))
    for condition in told:
        same = known.get(condition.type)
        stays = same is not None and same.status == condition.status and same.lastTransitionTime
        condition.lastHeartbeatTime = now
        condition.lastTransitionTime = same.lastTransitionTime if same and stays else now
    return told


def _pressure(kind: str, holds: bool) -> v1.NodeCondition:
    word, what = _PRESSURES[kind]
    reason = f"KubeletHas{'Insufficient' if holds else 'Sufficient'}{word}"
    message = f"kubelet has {'insufficient' if holds else 'sufficient'} {what}"
    if kind == "DiskPressure":
        reason = "KubeletHasDiskPressure" if holds else "KubeletHasNoDiskPressure"
        message = f"kubelet has {'' if holds else 'no '}disk pressure"
    return v1.NodeCondition(type=kind, status=str(holds), reason=reason, message=message)


def _ready(found: Found) -> v1.NodeCondition:
    if not found.troubles:
        return v1.NodeCondition(
            type="Ready",
            status="True",
            reason="KubeletReady",
            message="kubelet is posting ready status",
        )
    said = found.troubles[0] if len(found.troubles) == 1 else f"[{', '.join(found.troubles)}]"
    return v1.NodeCondition(type="Ready", status="False", reason="KubeletNotReady", message=said)


def _emulated(found: Found) -> v1.NodeCondition:
    """Told by a node that has guests, or had some."""
    reason, message = _EMULATION.get(found.accelerator, _EMULATION[""])
    status = str(found.accelerator == Accelerator.EMULATION)
    return v1.NodeCondition(type=EMULATED, status=status, reason=reason, message=message)


def _without_heartbeats(status: v1.NodeStatus) -> dict[str, object]:
    told_of: dict[str, object] = status.to_dict()
    plain = {name: told_of.get(name) for name in _OURS}
    told = {c.type: (c.status, c.reason, c.message) for c in status.conditions or ()}
    plain["conditions"] = {kind: told.get(kind) for kind in (*_PRESSURES, "Ready", EMULATED)}
    return plain

"""The Node that an instance is: whether it is that one, cordoned, emptied, and removed.

Pods are evicted, never deleted, so that disruption budgets hold. Pods of DaemonSets and of the
node's own files stay: they would come back at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from lightkube.core.dictmixin import DictMixin
from lightkube.models import coordination_v1 as coordination

from winpod.cluster.evicting import evict
from winpod.instances.cluster.objects import Address, Metadata
from winpod.instances.rules.next_deed import NodeNow
from winpod.node.api import ApiServer, Refused
from winpod.windows.scheduling import ENDED_PHASES

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_OVERLAY_SUBNET = "k8s.ovn.org/hybrid-overlay-node-subnet"
_CORDON = "node.kubernetes.io/unschedulable"
_MIRROR = "kubernetes.io/config.mirror"


class _NodeSpec(DictMixin):
    unschedulable: bool = False
    subnet: str = msgspec.field(default="", name="podCIDR")


class _Condition(DictMixin):
    type: str = ""
    status: str = ""


class _Info(DictMixin, rename="camel"):
    container_runtime_version: str = ""


class _NodeStatus(DictMixin, rename="camel"):
    conditions: list[_Condition] = msgspec.field(default_factory=list)
    addresses: list[Address] = msgspec.field(default_factory=list)
    node_info: _Info = msgspec.field(default_factory=_Info)


class NodeObject(DictMixin):
    metadata: Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _PodStatus(DictMixin):
    phase: str = ""


class _Toleration(DictMixin):
    key: str = ""
    operator: str = ""
    effect: str = ""


class _PodSpec(DictMixin):
    tolerations: list[_Toleration] = msgspec.field(default_factory=list)


class PodObject(DictMixin):
    metadata: Metadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that has to go elsewhere; `is_going` once it was told to."""

    namespace: str
    name: str
    uid: str
    is_going: bool


def node_now(
    found: NodeObject, addresses: Collection[str], *, is_own: bool, is_stale: bool = False
) -> NodeNow:
    """`addresses` are the instance's: a node of its name that is elsewhere is another machine.

    One that `is_own` is known to be it, wherever it says to be. What is stale, nobody has said
    since the kubelet was changed.
    """
    metadata, status = found.metadata, found.status
    told = [one.address for one in status.addresses]
    stranger = ""
    if metadata.labels.get("kubernetes.io/os", "windows") != "windows":
        stranger = f"there is a node {metadata.name} already, and it is not a Windows node"
    elif not is_own and told and set(told).isdisjoint(addresses):
        where = ", ".join(told)
        stranger = f"there is a node {metadata.name} already, and it is another machine, at {where}"
    return NodeNow(
        metadata.name,
        is_ready(found) and not is_stale,
        found.spec.unschedulable,
        status.node_info.container_runtime_version,
        stranger,
    )


def is_ready(node: NodeObject) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


def is_at(node: NodeObject, addresses: Collection[str]) -> bool:
    """Whether the node says that it is at one of these."""
    return not {one.address for one in node.status.addresses}.isdisjoint(addresses)


def subnet_of(node: NodeObject | None) -> str:
    """The range of its pods, once the cluster has given it one; a hybrid overlay's goes first."""
    if node is None:
        return ""
    return node.metadata.annotations.get(_OVERLAY_SUBNET) or node.spec.subnet


def to_leave(
    pods: Collection[PodObject], *, is_ready: bool, since: str = ""
) -> tuple[Leaving, ...]:
    """Who came `since` then through a cordon that it tolerates would come back at once.

    Of a node that is not ready, who was told to go can end only with the node.
    """
    found = (
        Leaving(
            pod.metadata.namespace,
            pod.metadata.name,
            pod.metadata.uid,
            bool(pod.metadata.deletion_timestamp),
        )
        for pod in pods
        if pod.status.phase not in ENDED_PHASES
        and _MIRROR not in pod.metadata.annotations
        and not (since and pod.metadata.creation_timestamp > since and _tolerates_cordon(pod))
        and all(owner.kind != "DaemonSet" for owner in pod.metadata.owner_references)
    )
    return tuple(one for one in found if is_ready or not one.is_going)


def _tolerates_cordon(pod: PodObject) -> bool:
    return any(
        one.key in ("", _CORDON) and one.effect in ("", "NoSchedule")
        for one in pod.spec.tolerations
    )


class Nodes:
    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def get(self, name: str) -> NodeObject | None:
        return await self._api.get(NodeObject, f"{NODES}/{name}") if name else None

    async def windows(self) -> Sequence[NodeObject]:
        selector = {"labelSelector": "kubernetes.io/os=windows"}
        return (await self._api.list(NodeObject, NODES, selector)).items

    async def beat(self, name: str) -> str:
        """When its kubelet gave its last sign of life, by its own clock; another says it lives."""
        lease = await self._api.get(coordination.Lease, f"{LEASES}/{name}")
        return str(lease.spec.renewTime) if lease and lease.spec else ""

    async def set_cordoned(self, name: str, *, is_cordoned: bool) -> None:
        await self._patch(name, {"spec": {"unschedulable": is_cordoned}})

    async def delete(self, name: str) -> None:
        try:
            await self._api.delete(f"{NODES}/{name}", {})
        except Refused as error:
            if not error.is_missing:
                raise

    async def pods_to_leave(self, node: NodeNow, since: str = "") -> tuple[Leaving, ...]:
        selector = {"fieldSelector": f"spec.nodeName={node.name}"}
        listed = await self._api.list(PodObject, "/api/v1/pods", selector)
        return to_leave(listed.items, is_ready=node.is_ready, since=since)

    async def evict(self, pod: Leaving) -> str:
        """Why not now, or nothing."""
        if pod.is_going:
            return ""
        why = await evict(self._api, pod.namespace, pod.name, pod.uid)
        return f"pod {pod.namespace}/{pod.name}: {why}" if why else ""

    async def _patch(self, name: str, body: dict[str, Any]) -> None:
        try:
            await self._api.patch(NodeObject, f"{NODES}/{name}", body)
        except Refused as error:
            if not error.is_missing:
                raise

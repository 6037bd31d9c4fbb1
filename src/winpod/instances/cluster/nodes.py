"""The Node of an instance: ownership, cordon, drain and deletion.

Pods are evicted, never deleted, so that disruption budgets hold. DaemonSet pods and static pods
stay, because they would come back at once. Errors of the API server are reported with the instance
and the attempted action.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from winpod.instances.planner.next_action import ObservedNode
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.drain import evict_pod
from winpod.k8s.models import coordination_v1 as coordination
from winpod.k8s.objects import NodeObject, PodObject
from winpod.labels import CONFIG_MIRROR_ANNOTATION, OS_LABEL, UNSCHEDULABLE_TAINT
from winpod.placement.predicates import TERMINAL_PHASES

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_OVERLAY_SUBNET = "k8s.ovn.org/hybrid-overlay-node-subnet"


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """A pod to evict; `is_deleting` once its deletion was requested."""

    namespace: str
    name: str
    uid: str
    is_deleting: bool


def observe_node(
    node: NodeObject, addresses: Collection[str], *, is_own: bool, is_stale: bool = False
) -> ObservedNode:
    """Return the observed Node.

    `addresses` are the instance's: a Node of its name at other addresses is another machine, unless
    it `is_own`. A stale Node has not reported since its kubelet was changed, and counts as not
    ready.
    """
    metadata, status = node.metadata, node.status
    node_addresses = [address.address for address in status.addresses]
    mismatch = ""
    if metadata.labels.get(OS_LABEL, "windows") != "windows":
        mismatch = f"the node {metadata.name} already exists, and is not a Windows node"
    elif not is_own and node_addresses and set(node_addresses).isdisjoint(addresses):
        listed = ", ".join(node_addresses)
        mismatch = f"the node {metadata.name} already exists, and is another machine, at {listed}"
    return ObservedNode(
        metadata.name,
        node.is_ready and not is_stale,
        node.spec.unschedulable,
        status.node_info.container_runtime_version,
        mismatch,
    )


def is_at(node: NodeObject, addresses: Collection[str]) -> bool:
    """Whether the node reports one of these addresses."""
    return not {address.address for address in node.status.addresses}.isdisjoint(addresses)


def subnet_of(node: NodeObject | None) -> str:
    """Return the pod CIDR once the cluster has assigned it; that of a hybrid overlay takes
    precedence.
    """
    if node is None:
        return ""
    return node.metadata.annotations.get(_OVERLAY_SUBNET) or node.spec.pod_cidr


def select_evictions(
    pods: Collection[PodObject], *, is_ready: bool, since: str = ""
) -> tuple[EvictedPod, ...]:
    """Return the pods to evict.

    Skip pods created after `since`, the cordon, that tolerate it; evicting them is futile. On a
    node that is not ready, pods already being deleted cannot terminate and are skipped.
    """
    candidates = (
        EvictedPod(
            pod.metadata.namespace,
            pod.metadata.name,
            pod.metadata.uid,
            bool(pod.metadata.deletion_timestamp),
        )
        for pod in pods
        if pod.status.phase not in TERMINAL_PHASES
        and CONFIG_MIRROR_ANNOTATION not in pod.metadata.annotations
        and not (since and pod.metadata.creation_timestamp > since and _tolerates_cordon(pod))
        and all(owner.kind != "DaemonSet" for owner in pod.metadata.owner_references)
    )
    return tuple(candidate for candidate in candidates if is_ready or not candidate.is_deleting)


def _tolerates_cordon(pod: PodObject) -> bool:
    return any(
        toleration.key in ("", UNSCHEDULABLE_TAINT) and toleration.effect in ("", "NoSchedule")
        for toleration in pod.spec.tolerations or ()
    )


class NodeClient:
    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, name: str) -> NodeObject | None:
        return await self._api.get(NodeObject, f"{NODES}/{name}") if name else None

    async def windows(self) -> Sequence[NodeObject]:
        selector = {"labelSelector": f"{OS_LABEL}=windows"}
        return (await self._api.list(NodeObject, NODES, selector)).items

    async def heartbeat(self, name: str) -> str:
        """Return the renew time of the kubelet's lease, by its own clock; a change shows that it
        runs.
        """
        lease = await self._api.get(coordination.Lease, f"{LEASES}/{name}")
        return str(lease.spec.renewTime) if lease and lease.spec else ""

    async def set_cordoned(self, name: str, *, is_cordoned: bool) -> None:
        await self._patch(name, {"spec": {"unschedulable": is_cordoned}})

    async def delete(self, name: str) -> None:
        try:
            await self._api.delete(f"{NODES}/{name}", {})
        except ApiError as error:
            if not error.is_not_found:
                raise

    async def pods_to_evict(self, node: ObservedNode, since: str = "") -> tuple[EvictedPod, ...]:
        selector = {"fieldSelector": f"spec.nodeName={node.name}"}
        listed = await self._api.list(PodObject, "/api/v1/pods", selector)
        return select_evictions(listed.items, is_ready=node.is_ready, since=since)

    async def evict(self, pod: EvictedPod) -> str:
        """Evict a pod; return why it is refused now, or an empty text."""
        if pod.is_deleting:
            return ""
        why = await evict_pod(self._api, pod.namespace, pod.name, pod.uid)
        return f"pod {pod.namespace}/{pod.name}: {why}" if why else ""

    async def _patch(self, name: str, body: dict[str, Any]) -> None:
        try:
            await self._api.patch(NodeObject, f"{NODES}/{name}", body)
        except ApiError as error:
            if not error.is_not_found:
                raise


_ADVICE = (
    "Check that the account has the permissions of the operator's chart, and that no admission "
    "webhook denies the request."
)


@contextmanager
def api_error_context(instance: str, action: str) -> Iterator[None]:
    """Add the instance and the action to API errors; an inner context takes precedence."""
    try:
        yield
    except ApiError as error:
        if not error.has_context:
            error.has_context = True
            error.message = (
                f"{instance}: could not {action}: expected the API server to allow it, found that "
                f"{error.message}"
            )
        error.hint = error.hint or _ADVICE
        raise

"""Maps pods to the workloads that own them, each with its template and pods. Pure.

A pod is assigned to the object that the user wrote: a Deployment, not its ReplicaSet. A Job is a
workload of its own, since a change of its CronJob does not affect it. Mirror pods have no workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from winpod.errors import InvalidInput
from winpod.k8s.objects import ConditionStatus, OwnedObjectMeta, PodStatus, SlimStruct, is_ready
from winpod.operator.cached_objects import CachedPod, PackedPod, TemplateCache
from winpod.operator.upgrade.moves import DAEMON, UpgradeWorkload, WorkloadPod
from winpod.placement.model import Pod
from winpod.placement.predicates import TERMINAL_PHASES

WORKLOADS = {
    "ReplicationController": "/api/v1",
    "Deployment": "/apis/apps/v1",
    "StatefulSet": "/apis/apps/v1",
    "DaemonSet": "/apis/apps/v1",
    "ReplicaSet": "/apis/apps/v1",
    "Job": "/apis/batch/v1",
    "CronJob": "/apis/batch/v1",
}
_REPLICATED = ("ReplicationController", "Deployment", "StatefulSet", "ReplicaSet")
_NO_CONTROLLER = ("", "")


class _ReadyStatus(PodStatus):
    conditions: list[ConditionStatus] = msgspec.field(default_factory=list)


class ListedPod(PackedPod):
    status: _ReadyStatus = msgspec.field(default_factory=_ReadyStatus)

    @property
    def is_ready(self) -> bool:
        return is_ready(self.status.conditions)


class _JobTemplate(SlimStruct):
    spec: dict[str, Any]


class _Spec(SlimStruct):
    replicas: int | None = None
    template: dict[str, Any] | None = None
    job_template: _JobTemplate | None = None


class OwnerObject(SlimStruct):
    metadata: OwnedObjectMeta
    spec: _Spec

    @property
    def template(self) -> dict[str, Any]:
        job = self.spec.job_template
        return (job.spec["template"] if job else self.spec.template) or {}

    @property
    def controller(self) -> tuple[str, str]:
        """Kind and name of the object's own controller."""
        owner = self.metadata.controller
        return (owner.kind, owner.name) if owner else _NO_CONTROLLER


Key = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class OwnedWorkload:
    """A workload whose images are not resolved yet, and the service account of its pods."""

    workload: UpgradeWorkload
    account: str = "default"


@dataclass(frozen=True, slots=True)
class LivePod:
    """A non-terminal pod."""

    pod: CachedPod
    is_ready: bool


def live_pods(pods: Iterable[ListedPod]) -> list[LivePod]:
    templates = TemplateCache()
    return [
        LivePod(templates.to_cached_pod(pod), pod.is_ready)
        for pod in pods
        if pod.status.phase not in TERMINAL_PHASES
    ]


def workloads_of(pods: Iterable[LivePod], owners: Mapping[Key, OwnerObject]) -> list[OwnedWorkload]:
    pods_by_owner: dict[Key, list[LivePod]] = {}
    for live in pods:
        if live.pod.owner[0] != "Node":
            pods_by_owner.setdefault(_workload_key(live.pod, owners), []).append(live)
    workloads = (
        _owned_workload(key, owners.get(key), pods_by_owner.get(key, ()))
        for key in {**owners, **pods_by_owner}
    )
    return [workload for workload in workloads if workload]


def _workload_key(pod: CachedPod, owners: Mapping[Key, OwnerObject]) -> Key:
    kind, name = pod.owner
    if not kind:
        return ("Pod", pod.namespace, pod.name)
    key = (kind, pod.namespace, name)
    owner = owners.get(key)
    if kind == "ReplicaSet" and owner and owner.controller != _NO_CONTROLLER:
        kind, name = owner.controller
        return (kind, pod.namespace, name)
    return key


def _owned_workload(
    key: Key, owner: OwnerObject | None, pods: Sequence[LivePod]
) -> OwnedWorkload | None:
    """Return the workload; None if it is not the user's, a Job without pods, or malformed."""
    kind, namespace, name = key
    is_intermediate = (
        kind == "ReplicaSet" and owner is not None and owner.controller != _NO_CONTROLLER
    )
    if (is_intermediate or kind == "Job") and not pods:
        return None
    template = owner.template if owner else {}
    try:
        pod = (
            Pod.from_template(template, every_node=kind == DAEMON)
            if owner
            else replace(pods[0].pod.template, overhead=())
        )
    except InvalidInput:
        return None
    account = template.get("spec", {}).get("serviceAccountName") or "default"
    return OwnedWorkload(
        UpgradeWorkload(
            kind,
            namespace,
            name,
            pod,
            tuple(map(_workload_pod, pods)),
            _replicas(kind, owner),
        ),
        account,
    )


def _replicas(kind: str, owner: OwnerObject | None) -> int | None:
    if owner is None or kind not in _REPLICATED:
        return None
    return 1 if owner.spec.replicas is None else owner.spec.replicas


def _workload_pod(live: LivePod) -> WorkloadPod:
    pod = live.pod
    return WorkloadPod(
        pod.name,
        pod.uid,
        pod.node,
        live.is_ready,
        pod.is_deleting,
        pod.runtime_class,
        pod.template.node_selector,
    )

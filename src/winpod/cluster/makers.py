"""Who makes which pods: Deployments and the like, each with its template and its pods. Pure.

A pod is put to what its author wrote: to a Deployment, not to its ReplicaSet. A Job is its own,
since a CronJob does not change those that it has made; pods that only a node knows are nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.cluster.seen import Condition, PodObject, PodStatus, SeenPod, Templates
from winpod.cluster.upgrade.moves import DAEMON, Workload, WorkloadPod
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Pod
from winpod.windows.scheduling import ENDED_PHASES

WORKLOADS = {
    "ReplicationController": "/api/v1",
    "Deployment": "/apis/apps/v1",
    "StatefulSet": "/apis/apps/v1",
    "DaemonSet": "/apis/apps/v1",
    "ReplicaSet": "/apis/apps/v1",
    "Job": "/apis/batch/v1",
    "CronJob": "/apis/batch/v1",
}
_COUNTED = ("ReplicationController", "Deployment", "StatefulSet", "ReplicaSet")
_NOBODY = ("", "")


class _ReadyStatus(PodStatus):
    conditions: list[Condition] | None = None


class ListedPod(PodObject):
    status: _ReadyStatus = msgspec.field(default_factory=_ReadyStatus)

    @property
    def is_ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


class _Owner(DictMixin):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(DictMixin, rename="camel"):
    name: str = ""
    namespace: str = ""
    owner_references: list[_Owner] | None = None


class _JobTemplate(DictMixin):
    spec: dict[str, Any]


class _Spec(DictMixin, rename="camel"):
    replicas: int | None = None
    template: dict[str, Any] | None = None
    job_template: _JobTemplate | None = None


class Maker(DictMixin):
    metadata: _Metadata
    spec: _Spec

    @property
    def template(self) -> dict[str, Any]:
        job = self.spec.job_template
        return (job.spec["template"] if job else self.spec.template) or {}

    @property
    def controller(self) -> tuple[str, str]:
        """Kind and name of who made it in turn."""
        owners = self.metadata.owner_references or ()
        return next(((o.kind, o.name) for o in owners if o.controller), _NOBODY)


Key = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class Made:
    """A workload whose images are not known yet, and the service account that it pulls as."""

    workload: Workload
    account: str = "default"


@dataclass(frozen=True, slots=True)
class Living:
    """A pod that has not ended."""

    seen: SeenPod
    is_ready: bool


def see_living(pods: Iterable[ListedPod]) -> list[Living]:
    templates = Templates()
    return [
        Living(templates.see_pod(pod), pod.is_ready)
        for pod in pods
        if pod.status.phase not in ENDED_PHASES
    ]


def workloads_of(pods: Iterable[Living], makers: Mapping[Key, Maker]) -> list[Made]:
    made: dict[Key, list[Living]] = {}
    for pod in pods:
        if pod.seen.owner[0] != "Node":
            made.setdefault(_author(pod.seen, makers), []).append(pod)
    found = (_made(key, makers.get(key), made.get(key, ())) for key in {**makers, **made})
    return [one for one in found if one]


def _author(seen: SeenPod, makers: Mapping[Key, Maker]) -> Key:
    kind, name = seen.owner
    if not kind:
        return ("Pod", seen.namespace, seen.name)
    key = (kind, seen.namespace, name)
    maker = makers.get(key)
    if kind == "ReplicaSet" and maker and maker.controller != _NOBODY:
        above, name = maker.controller
        return (above, seen.namespace, name)
    return key


def _made(key: Key, maker: Maker | None, pods: Sequence[Living]) -> Made | None:
    """None for what was made by another, for a Job that has no pods, and for bad templates."""
    kind, namespace, name = key
    is_part = kind == "ReplicaSet" and maker is not None and maker.controller != _NOBODY
    if (is_part or kind == "Job") and not pods:
        return None
    template = maker.template if maker else {}
    try:
        pod = (
            Pod.from_template(template, every_node=kind == DAEMON)
            if maker
            else replace(pods[0].seen.template, overhead=())
        )
    except InvalidInput:
        return None
    account = template.get("spec", {}).get("serviceAccountName") or "default"
    return Made(
        Workload(
            kind,
            namespace,
            name,
            pod,
            tuple(_workload_pod(one) for one in pods),
            _replicas(kind, maker),
        ),
        account,
    )


def _replicas(kind: str, maker: Maker | None) -> int | None:
    if maker is None or kind not in _COUNTED:
        return None
    return 1 if maker.spec.replicas is None else maker.spec.replicas


def _workload_pod(pod: Living) -> WorkloadPod:
    seen = pod.seen
    return WorkloadPod(
        seen.name,
        seen.uid,
        seen.node,
        pod.is_ready,
        seen.is_leaving,
        seen.runtime_class,
        seen.template.node_selector,
    )

"""Deployment and ReplicaSet controllers: replica count, rolling update and recreate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from winpod.k8s.models import apps_v1
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import is_deleted
from winpod.play.pod_template import (
    HASH_LABEL,
    ControllerActions,
    earliest,
    is_active,
    is_available,
    is_ready,
    is_terminal,
    label,
    name_of,
    pod_from_template,
    ready_since,
    resolve_int_or_percent,
    template_hash,
    unique_name,
)


def reconcile_deployment(
    deployment: apps_v1.Deployment, pods: Sequence[v1.Pod], taken: Iterable[str], now: datetime
) -> ControllerActions:
    spec = deployment.spec
    if spec is None:
        return ControllerActions()
    replicas = 1 if spec.replicas is None else spec.replicas
    hash_ = template_hash(spec.template)
    alive = [pod for pod in pods if is_active(pod)]
    new = [pod for pod in alive if label(pod, HASH_LABEL) == hash_]
    old = [pod for pod in alive if label(pod, HASH_LABEL) != hash_]
    finished = tuple(pod for pod in pods if is_terminal(pod) and not is_deleted(pod))
    seconds = spec.minReadySeconds or 0
    if spec.paused:
        create_count, surplus = (
            (0, []) if old else (replicas - len(new), pods_to_scale_down(new, replicas))
        )
    elif spec.strategy and spec.strategy.type == "Recreate":
        terminating = any(is_deleted(pod) and label(pod, HASH_LABEL) != hash_ for pod in pods)
        create_count = 0 if old or terminating else replicas - len(new)
        surplus = old or pods_to_scale_down(new, replicas)
    else:
        rolling = (spec.strategy and spec.strategy.rollingUpdate) or None
        max_surge = resolve_int_or_percent(
            rolling.maxSurge if rolling else None, "25%", replicas, up=True
        )
        max_unavailable = resolve_int_or_percent(
            rolling.maxUnavailable if rolling else None, "25%", replicas, up=False
        )
        if not max_surge and not max_unavailable:
            max_unavailable = 1
        create_count = min(replicas - len(new), replicas + max_surge - len(alive))
        surplus = pods_to_scale_down(new, replicas) + pods_to_replace(
            old, new, replicas - max_unavailable, seconds, now
        )
    base = f"{deployment.metadata.name if deployment.metadata else ''}-{hash_}"
    names = set(taken)
    created = []
    for _ in range(max(create_count, 0)):
        name = unique_name(base, names)
        names.add(name)
        created.append(pod_from_template(deployment, spec.template, name, {HASH_LABEL: hash_}))
    available = [pod for pod in alive if is_available(pod, seconds, now)]
    return ControllerActions(
        create=tuple(created),
        delete=(*finished, *surplus),
        status={
            "replicas": len(alive),
            "updatedReplicas": len(new),
            "readyReplicas": sum(map(is_ready, alive)),
            "availableReplicas": len(available),
            "wanted": replicas,
        },
        requeue_at=_when_available(alive, seconds, now),
    )


def reconcile_replicaset(
    replica_set: apps_v1.ReplicaSet, pods: Sequence[v1.Pod], taken: Iterable[str]
) -> ControllerActions:
    spec = replica_set.spec
    if spec is None or spec.template is None:
        return ControllerActions()
    replicas = 1 if spec.replicas is None else spec.replicas
    alive = [pod for pod in pods if is_active(pod)]
    finished = tuple(pod for pod in pods if is_terminal(pod) and not is_deleted(pod))
    base = (replica_set.metadata.name if replica_set.metadata else "") or ""
    names, created = set(taken), []
    for _ in range(replicas - len(alive)):
        name = unique_name(base, names)
        names.add(name)
        created.append(pod_from_template(replica_set, spec.template, name))
    ready = sum(map(is_ready, alive))
    return ControllerActions(
        create=tuple(created),
        delete=(*finished, *pods_to_scale_down(alive, replicas)),
        status={"replicas": len(alive), "readyReplicas": ready, "wanted": replicas},
    )


def pods_to_scale_down(pods: Sequence[v1.Pod], replicas: int) -> list[v1.Pod]:
    """Return the surplus pods, those that are not ready first."""
    return sorted(pods, key=lambda pod: (is_ready(pod), name_of(pod)))[
        : max(len(pods) - max(replicas, 0), 0)
    ]


def pods_to_replace(
    old: Sequence[v1.Pod], new: Sequence[v1.Pod], min_available: int, seconds: int, now: datetime
) -> list[v1.Pod]:
    """Return the pods of older templates to delete.

    All that are not ready go; of the others as many as leave `min_available` pods.
    """
    unready = [pod for pod in old if not is_ready(pod)]
    ready = [pod for pod in old if is_ready(pod)]
    available = len(ready) + sum(is_available(pod, seconds, now) for pod in new)
    spare = max(available - min_available, 0)
    return unready + sorted(ready, key=name_of)[:spare]


def _when_available(pods: Iterable[v1.Pod], seconds: int, now: datetime) -> datetime | None:
    if not seconds:
        return None
    times = (since + timedelta(seconds=seconds) for pod in pods if (since := ready_since(pod)))
    return earliest(*(time for time in times if time > now))

"""Deployments and ReplicaSets: so many pods of a template, and the way from one template to the
next without going below what is to be available."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from lightkube.models import apps_v1
from lightkube.models import core_v1 as v1

from winpod.node.play.templates import (
    HASH_LABEL,
    Steps,
    free_name,
    has_ended,
    is_active,
    is_available,
    is_ready,
    label,
    name_of,
    pod_from,
    ready_since,
    share_of,
    soonest,
    template_hash,
)
from winpod.node.pods import is_deleted


def next_for_deployment(
    deployment: apps_v1.Deployment, pods: Sequence[v1.Pod], taken: Iterable[str], now: datetime
) -> Steps:
    spec = deployment.spec
    if spec is None:
        return Steps()
    wanted = 1 if spec.replicas is None else spec.replicas
    hash_ = template_hash(spec.template)
    alive = [pod for pod in pods if is_active(pod)]
    new = [pod for pod in alive if label(pod, HASH_LABEL) == hash_]
    old = [pod for pod in alive if label(pod, HASH_LABEL) != hash_]
    ended = tuple(pod for pod in pods if has_ended(pod) and not is_deleted(pod))
    seconds = spec.minReadySeconds or 0
    if spec.paused:
        room, removed = (0, []) if old else (wanted - len(new), surplus(new, wanted))
    elif spec.strategy and spec.strategy.type == "Recreate":
        leaving = any(is_deleted(pod) and label(pod, HASH_LABEL) != hash_ for pod in pods)
        room = 0 if old or leaving else wanted - len(new)
        removed = old or surplus(new, wanted)
    else:
        rolling = (spec.strategy and spec.strategy.rollingUpdate) or None
        surge = share_of(rolling.maxSurge if rolling else None, "25%", wanted, up=True)
        missing = share_of(rolling.maxUnavailable if rolling else None, "25%", wanted, up=False)
        if not surge and not missing:
            missing = 1
        room = min(wanted - len(new), wanted + surge - len(alive))
        removed = surplus(new, wanted) + replaceable(old, new, wanted - missing, seconds, now)
    base = f"{deployment.metadata.name if deployment.metadata else ''}-{hash_}"
    names = set(taken)
    created = []
    for _ in range(max(room, 0)):
        name = free_name(base, names)
        names.add(name)
        created.append(pod_from(deployment, spec.template, name, {HASH_LABEL: hash_}))
    available = [pod for pod in alive if is_available(pod, seconds, now)]
    return Steps(
        create=tuple(created),
        delete=(*ended, *removed),
        status={
            "replicas": len(alive),
            "updatedReplicas": len(new),
            "readyReplicas": sum(map(is_ready, alive)),
            "availableReplicas": len(available),
            "wanted": wanted,
        },
        again_at=_when_available(alive, seconds, now),
    )


def next_for_replica_set(
    replica_set: apps_v1.ReplicaSet, pods: Sequence[v1.Pod], taken: Iterable[str]
) -> Steps:
    spec = replica_set.spec
    if spec is None or spec.template is None:
        return Steps()
    wanted = 1 if spec.replicas is None else spec.replicas
    alive = [pod for pod in pods if is_active(pod)]
    ended = tuple(pod for pod in pods if has_ended(pod) and not is_deleted(pod))
    base = (replica_set.metadata.name if replica_set.metadata else "") or ""
    names, created = set(taken), []
    for _ in range(wanted - len(alive)):
        name = free_name(base, names)
        names.add(name)
        created.append(pod_from(replica_set, spec.template, name))
    ready = sum(map(is_ready, alive))
    return Steps(
        create=tuple(created),
        delete=(*ended, *surplus(alive, wanted)),
        status={"replicas": len(alive), "readyReplicas": ready, "wanted": wanted},
    )


def surplus(pods: Sequence[v1.Pod], wanted: int) -> list[v1.Pod]:
    """Those that are too many, the least useful first."""
    return sorted(pods, key=lambda pod: (is_ready(pod), name_of(pod)))[
        : max(len(pods) - max(wanted, 0), 0)
    ]


def replaceable(
    old: Sequence[v1.Pod], new: Sequence[v1.Pod], least: int, seconds: int, now: datetime
) -> list[v1.Pod]:
    """Pods of older templates that can go: all that serve nobody, and of the others so many that
    enough is left."""
    idle = [pod for pod in old if not is_ready(pod)]
    serving = [pod for pod in old if is_ready(pod)]
    there = len(serving) + sum(is_available(pod, seconds, now) for pod in new)
    spare = max(there - least, 0)
    return idle + sorted(serving, key=name_of)[:spare]


def _when_available(pods: Iterable[v1.Pod], seconds: int, now: datetime) -> datetime | None:
    if not seconds:
        return None
    times = (since + timedelta(seconds=seconds) for pod in pods if (since := ready_since(pod)))
    return soonest(*(time for time in times if time > now))

"""The controller of each kind of workload, by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lightkube.models import apps_v1, batch_v1
from lightkube.models import core_v1 as v1

from winpod.node.play.cron import next_for_cron_job
from winpod.node.play.deployments import next_for_deployment, next_for_replica_set
from winpod.node.play.jobs import next_for_job
from winpod.node.play.objects import Document
from winpod.node.play.source import typed
from winpod.node.play.stateful import next_for_daemon_set, next_for_stateful_set
from winpod.node.play.templates import Steps

KINDS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "CronJob", "Job")


@dataclass(frozen=True, slots=True)
class Around:
    """What a controller looks at beside its object and the object's pods.

    `nodes` are those that a DaemonSet runs on; `jobs` and `statuses` are a CronJob's. `status` is
    what was written down of the object itself.
    """

    now: datetime
    taken: Sequence[str] = ()
    nodes: Sequence[str] = ()
    jobs: Sequence[Document] = ()
    statuses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)


def next_for(document: Document, pods: Sequence[v1.Pod], around: Around) -> Steps:
    match document["kind"]:
        case "Deployment":
            deployment = typed(apps_v1.Deployment, document)
            return next_for_deployment(deployment, pods, around.taken, around.now)
        case "ReplicaSet":
            return next_for_replica_set(typed(apps_v1.ReplicaSet, document), pods, around.taken)
        case "StatefulSet":
            return next_for_stateful_set(typed(apps_v1.StatefulSet, document), pods)
        case "DaemonSet":
            daemons = typed(apps_v1.DaemonSet, document)
            return next_for_daemon_set(daemons, pods, around.nodes, around.taken)
        case "Job":
            job = typed(batch_v1.Job, _without_status(document))
            return next_for_job(job, pods, around.taken, around.now, around.status)
        case _:
            last = around.status.get("lastScheduleTime")
            created = last or document["metadata"]["creationTimestamp"]
            return next_for_cron_job(
                typed(batch_v1.CronJob, _without_status(document)),
                [typed(batch_v1.Job, _without_status(job)) for job in around.jobs],
                around.statuses,
                datetime.fromisoformat(created.replace("Z", "+00:00")),
                around.now,
            )


def _without_status(document: Document) -> Document:
    return {key: value for key, value in document.items() if key != "status"}

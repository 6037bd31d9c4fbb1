"""Controller manager: runs the controller of every workload and carries out its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from winpod.clock import utc_now
from winpod.errors import InvalidInput
from winpod.k8s.models import apps_v1, batch_v1
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import is_deleted
from winpod.play.apiserver.objects import Document, ObjectKey, key_of
from winpod.play.apiserver.pods import PodStore
from winpod.play.apiserver.store import EventStore, ObjectStore, StoredObject
from winpod.play.apply import Applier
from winpod.play.controllers.cronjob import reconcile_cronjob
from winpod.play.controllers.daemonset import reconcile_daemonset
from winpod.play.controllers.deployment import reconcile_deployment, reconcile_replicaset
from winpod.play.controllers.job import is_job_finished, reconcile_job
from winpod.play.controllers.statefulset import reconcile_statefulset
from winpod.play.kubelet_objects import from_document
from winpod.play.pod_template import ControllerActions, earliest, name_of, owner_of
from winpod.play.scheduler import Scheduler

KINDS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "CronJob", "Job")


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """Inputs of a controller besides its object and the object's pods.

    `nodes` are those a DaemonSet runs on; `jobs` and `statuses` belong to a CronJob. `status` is
    the stored status of the object itself.
    """

    now: datetime
    taken: Sequence[str] = ()
    nodes: Sequence[str] = ()
    jobs: Sequence[Document] = ()
    statuses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)


def reconcile(
    document: Document, pods: Sequence[v1.Pod], context: ControllerContext
) -> ControllerActions:
    match document["kind"]:
        case "Deployment":
            deployment = from_document(apps_v1.Deployment, document)
            return reconcile_deployment(deployment, pods, context.taken, context.now)
        case "ReplicaSet":
            return reconcile_replicaset(
                from_document(apps_v1.ReplicaSet, document), pods, context.taken
            )
        case "StatefulSet":
            return reconcile_statefulset(from_document(apps_v1.StatefulSet, document), pods)
        case "DaemonSet":
            daemons = from_document(apps_v1.DaemonSet, document)
            return reconcile_daemonset(daemons, pods, context.nodes, context.taken)
        case "Job":
            job = from_document(batch_v1.Job, _without_status(document))
            return reconcile_job(job, pods, context.taken, context.now, context.status)
        case _:
            last_schedule = context.status.get("lastScheduleTime")
            created = last_schedule or document["metadata"]["creationTimestamp"]
            return reconcile_cronjob(
                from_document(batch_v1.CronJob, _without_status(document)),
                [from_document(batch_v1.Job, _without_status(job)) for job in context.jobs],
                context.statuses,
                datetime.fromisoformat(created.replace("Z", "+00:00")),
                context.now,
            )


def _without_status(document: Document) -> Document:
    return {key: value for key, value in document.items() if key != "status"}


class ControllerManager:
    """Runs all controllers.

    `statuses` holds the last status of each workload; `again_at` is the earliest requeue time.
    Status that cannot be derived from pods is stored: the last schedule time of a CronJob, and the
    result of a finished Job.
    """

    def __init__(
        self,
        records: ObjectStore,
        desired: Applier,
        pods: PodStore,
        scheduler: Scheduler,
        events: EventStore,
        changed: Callable[[], None],
    ) -> None:
        self._records = records
        self._desired = desired
        self._pods = pods
        self._scheduler = scheduler
        self._events = events
        self._changed = changed
        self.statuses: dict[ObjectKey, dict[str, Any]] = {}
        self.again_at: datetime | None = None

    async def run_controllers(self) -> None:
        self.again_at = None
        self._delete_orphans()
        for kind in KINDS:
            for document in self._records.list_kind(kind):
                await self._reconcile(document)

    def _delete_orphans(self) -> None:
        """Delete pods and jobs whose owner no longer exists."""
        owners = self._records.uids()
        for document in self._records.list_kind("Job"):
            references = document["metadata"].get("ownerReferences") or ()
            if any(reference["uid"] not in owners for reference in references):
                self._records.remove(key_of(document))
        owners = self._records.uids()
        for pod in self._pods.all():
            owner = owner_of(pod)
            if owner and owner.uid not in owners:
                self._pods.delete(pod)

    async def _reconcile(self, document: Document) -> None:
        key, uid = key_of(document), document["metadata"]["uid"]
        jobs = [job for job in self._records.list_kind("Job") if _is_owned(job, uid)]
        context = ControllerContext(
            now=utc_now(),
            taken=[name_of(pod) for pod in self._pods.all()],
            nodes=await self._scheduler.daemon_nodes(document) if key.kind == "DaemonSet" else (),
            jobs=jobs,
            statuses={key_of(job).name: job.get("status") or {} for job in jobs},
            status=document.get("status") or {},
        )
        try:
            actions = reconcile(document, self._pods.of_owner(uid), context)
        except InvalidInput as error:
            self._events.record(key, "Warning", "Invalid", str(error))
            return
        self._execute(key, document, actions)

    def _execute(self, key: ObjectKey, document: Document, actions: ControllerActions) -> None:
        status = dict(actions.status or {})
        self.statuses[key] = status
        is_persistent = key.kind == "CronJob" or (key.kind == "Job" and is_job_finished(status))
        if is_persistent and document.get("status") != status:
            stored = self._records.get(key)
            updated = {**document, "status": status}
            self._records.put(key, StoredObject(updated, stored.applied if stored else None))
            self._record_job_end(key, status)
        self.again_at = earliest(self.again_at, actions.requeue_at)
        for claim in actions.claims:
            self._desired.add_claim(claim.to_dict())
        for name in actions.remove_jobs:
            self._records.remove(ObjectKey("Job", key.namespace, name))
            self._changed()
        for job in actions.jobs:
            new_job = self._desired.with_defaults(job.to_dict())
            self._records.put(key_of(new_job), StoredObject(new_job))
            self._events.record(key, "Normal", "SuccessfulCreate", f"Created job {name_of(job)}")
        for pod in actions.delete:
            if not is_deleted(pod):
                text = f"Deleted pod: {name_of(pod)}"
                self._events.record(key, "Normal", "SuccessfulDelete", text)
                self._pods.delete(pod)
        for pod in actions.create:
            text = f"Created pod: {name_of(pod)}"
            self._events.record(key, "Normal", "SuccessfulCreate", text)
            self._pods.add(self._desired.with_defaults(pod.to_dict()), None)

    def _record_job_end(self, key: ObjectKey, status: Mapping[str, Any]) -> None:
        """Record the event of a finished job, and trigger a sync for its CronJob."""
        if key.kind != "Job":
            return
        self._changed()
        if status["condition"] == "Failed":
            self._events.record(key, "Warning", status["reason"], status["message"])
        else:
            self._events.record(key, "Normal", "Completed", "Job completed")


def _is_owned(document: Document, uid: str) -> bool:
    return any(r["uid"] == uid for r in document["metadata"].get("ownerReferences") or ())

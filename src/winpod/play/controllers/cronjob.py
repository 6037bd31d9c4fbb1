"""CronJob controller: starts due jobs, and removes finished ones beyond the history limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from winpod.k8s.models import batch_v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.play.controllers.job import is_job_finished
from winpod.play.cron_schedule import (
    Schedule,
    parse_schedule,
    parse_time_zone,
)
from winpod.play.pod_template import ControllerActions, reference_to


def reconcile_cronjob(
    owner: batch_v1.CronJob,
    jobs: Sequence[batch_v1.Job],
    statuses: Mapping[str, Mapping[str, Any]],
    last: datetime,
    now: datetime,
) -> ControllerActions:
    """Return the job that is due and the old jobs to remove.

    `last` is the last schedule time, or the creation time; `statuses` are those of the jobs, by
    name.
    """
    spec = owner.spec
    if spec is None or owner.metadata is None:
        return ControllerActions()
    zone = parse_time_zone(spec.timeZone)
    schedule = parse_schedule(spec.schedule)
    due = _latest_due(schedule, last.astimezone(zone), now)
    active = [job for job in jobs if not _condition(job, statuses)]
    removed = _jobs_over_limit(spec, jobs, statuses)
    next_time = schedule.after(now.astimezone(zone))
    status: dict[str, Any] = {"active": len(active), "lastScheduleTime": last.isoformat()}
    if due is None or spec.suspend:
        return ControllerActions(remove_jobs=removed, status=status, requeue_at=next_time)
    status["lastScheduleTime"] = due.astimezone(UTC).isoformat()
    deadline = spec.startingDeadlineSeconds
    if (deadline is not None and now > due + timedelta(seconds=deadline)) or (
        active and spec.concurrencyPolicy == "Forbid"
    ):
        return ControllerActions(remove_jobs=removed, status=status, requeue_at=next_time)
    if spec.concurrencyPolicy == "Replace":
        removed += tuple(job.metadata.name or "" for job in active if job.metadata)
    minutes = int(due.timestamp()) // 60
    metadata = spec.jobTemplate.metadata or ObjectMeta()
    job = batch_v1.Job(
        apiVersion="batch/v1",
        kind="Job",
        metadata=ObjectMeta(
            name=f"{owner.metadata.name}-{minutes}",
            namespace=owner.metadata.namespace,
            labels=metadata.labels,
            annotations=metadata.annotations,
            ownerReferences=[reference_to(owner)],
        ),
        spec=spec.jobTemplate.spec,
    )
    return ControllerActions(jobs=(job,), remove_jobs=removed, status=status, requeue_at=next_time)


def _latest_due(schedule: Schedule, last: datetime, now: datetime) -> datetime | None:
    """Return the latest missed time; earlier ones are skipped."""
    due, moment = None, schedule.after(last)
    while moment is not None and moment <= now:
        due, moment = moment, schedule.after(moment)
    return due


def _condition(job: batch_v1.Job, statuses: Mapping[str, Mapping[str, Any]]) -> str:
    name = (job.metadata.name if job.metadata else "") or ""
    status = statuses.get(name, {})
    return str(status["condition"]) if is_job_finished(status) else ""


def _jobs_over_limit(
    spec: batch_v1.CronJobSpec,
    jobs: Sequence[batch_v1.Job],
    statuses: Mapping[str, Mapping[str, Any]],
) -> tuple[str, ...]:
    removed: list[str] = []
    for condition, limit, default in (
        ("Complete", spec.successfulJobsHistoryLimit, 3),
        ("Failed", spec.failedJobsHistoryLimit, 1),
    ):
        limit_or_default = default if limit is None else limit
        finished = [job for job in jobs if job.metadata and _condition(job, statuses) == condition]
        names = [job.metadata.name or "" for job in finished if job.metadata]
        names.sort(key=lambda name: int(name.rpartition("-")[2]))
        removed += names[: max(len(names) - limit_or_default, 0)]
    return tuple(removed)

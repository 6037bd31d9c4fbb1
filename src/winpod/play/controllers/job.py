"""Job controller: completions, parallelism, backoff and deadlines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from winpod.concurrency import exponential_delay
from winpod.k8s.models import batch_v1
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of
from winpod.play.pod_template import (
    ControllerActions,
    earliest,
    is_active,
    is_ready,
    phase,
    pod_from_template,
    unique_name,
)

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
FINISHED = ("Complete", "Failed")
NAME_LABEL = "batch.kubernetes.io/job-name"
_INITIAL_BACKOFF, _MAX_BACKOFF = 10, 600
_DEFAULT_BACKOFF_LIMIT = 6


def is_job_finished(status: Mapping[str, Any]) -> bool:
    return status.get("condition") in FINISHED


def reconcile_job(
    job: batch_v1.Job,
    pods: Sequence[v1.Pod],
    taken: Iterable[str],
    now: datetime,
    before: Mapping[str, Any],
) -> ControllerActions:
    """Create and delete pods of a job.

    `before` is the stored status: a finished job stays finished, regardless of its pods.
    """
    spec = job.spec
    if spec is None or job.metadata is None:
        return ControllerActions()
    active = [pod for pod in pods if is_active(pod)]
    if is_job_finished(before):
        return ControllerActions(delete=tuple(active), status=before)
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    succeeded = [pod for pod in pods if phase(pod) == "Succeeded"]
    failed = [pod for pod in pods if phase(pod) == "Failed"]
    completions = _completions(spec, succeeded)
    status = {
        "active": len(active),
        "ready": sum(map(is_ready, active)),
        "succeeded": completions,
        "failed": len(failed),
        "wanted": spec.completions if spec.completions is not None else 1,
    }
    started_at = min((t for pod in pods if (t := _created(pod))), default=None)
    if reason := _failure(spec, pods, failed, started_at, now):
        return ControllerActions(
            delete=tuple(active), status=_finished_status(status, "Failed") | reason
        )
    if _is_complete(spec, completions, succeeded, active):
        return ControllerActions(delete=tuple(active), status=_finished_status(status, "Complete"))
    if spec.suspend:
        return ControllerActions(delete=tuple(active), status={**status, "condition": "Suspended"})
    retry_at = _retry_time(failed)
    deadline = _deadline(spec, started_at)
    if retry_at and now < retry_at:
        return ControllerActions(status=status, requeue_at=earliest(retry_at, deadline))
    desired = parallelism
    if spec.completions is not None:
        desired = min(parallelism, spec.completions - completions)
    elif succeeded:
        desired = 0
    created = _create(job, spec, pods, desired - len(active), set(taken))
    return ControllerActions(create=tuple(created), status=status, requeue_at=deadline)


def _finished_status(status: Mapping[str, Any], condition: str) -> dict[str, Any]:
    """Return the final status; pods that still run are deleted with the job."""
    return {**status, "active": 0, "ready": 0, "condition": condition}


def _create(
    job: batch_v1.Job,
    spec: batch_v1.JobSpec,
    pods: Sequence[v1.Pod],
    count: int,
    names: set[str],
) -> Iterable[v1.Pod]:
    base = (job.metadata.name if job.metadata else "") or ""
    labels = {NAME_LABEL: base, "job-name": base}
    free = _free_indexes(spec, pods)
    for _ in range(count):
        index = next(free, None) if spec.completionMode == "Indexed" else None
        prefix = base if index is None else f"{base}-{index}"
        name = unique_name(prefix, names)
        names.add(name)
        if index is None:
            yield pod_from_template(job, spec.template, name, labels)
            continue
        pod = pod_from_template(
            job,
            spec.template,
            name,
            {**labels, INDEX_ANNOTATION: str(index)},
            {INDEX_ANNOTATION: str(index)},
        )
        for container in pod.spec.containers if pod.spec else ():
            variable = v1.EnvVar(name="JOB_COMPLETION_INDEX", value=str(index))
            container.env = [*(container.env or ()), variable]
        if pod.spec:
            pod.spec.hostname = prefix
        yield pod


def _index(pod: v1.Pod) -> int | None:
    text = (metadata_of(pod).annotations or {}).get(INDEX_ANNOTATION)
    return int(text) if text else None


def _free_indexes(spec: batch_v1.JobSpec, pods: Sequence[v1.Pod]) -> Iterator[int]:
    busy = {_index(pod) for pod in pods if is_active(pod) or phase(pod) == "Succeeded"}
    return iter([n for n in range(spec.completions or 0) if n not in busy])


def _completions(spec: batch_v1.JobSpec, succeeded: Sequence[v1.Pod]) -> int:
    if spec.completionMode == "Indexed":
        return len({_index(pod) for pod in succeeded})
    return len(succeeded)


def _is_complete(
    spec: batch_v1.JobSpec, completions: int, succeeded: Sequence[v1.Pod], active: Sequence[v1.Pod]
) -> bool:
    if spec.completions is not None:
        return completions >= spec.completions
    if spec.parallelism in (None, 1):
        return bool(succeeded)
    return bool(succeeded) and not active


def _failure(
    spec: batch_v1.JobSpec,
    pods: Sequence[v1.Pod],
    failed: Sequence[v1.Pod],
    started_at: datetime | None,
    now: datetime,
) -> dict[str, str]:
    limit = _DEFAULT_BACKOFF_LIMIT if spec.backoffLimit is None else spec.backoffLimit
    restarts = sum(_restarts(pod) for pod in pods if is_active(pod))
    if len(failed) + restarts > limit:
        return {
            "reason": "BackoffLimitExceeded",
            "message": "Job has reached the specified backoff limit",
        }
    deadline = _deadline(spec, started_at)
    if deadline and now >= deadline:
        return {
            "reason": "DeadlineExceeded",
            "message": "Job was active longer than specified deadline",
        }
    return {}


def _deadline(spec: batch_v1.JobSpec, started_at: datetime | None) -> datetime | None:
    seconds = spec.activeDeadlineSeconds
    return started_at + timedelta(seconds=seconds) if started_at and seconds else None


def _restarts(pod: v1.Pod) -> int:
    """Return the restarts of a pod whose containers the kubelet restarts."""
    if not pod.spec or pod.spec.restartPolicy != "OnFailure":
        return 0
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return sum(status.restartCount for status in statuses)


def _retry_time(failed: Sequence[v1.Pod]) -> datetime | None:
    """Return when to retry: 10 seconds after a failure, doubled with each further one."""
    ends = [end for pod in failed if (end := _finished_at(pod))]
    if not ends:
        return None
    wait = exponential_delay(len(failed) - 1, _INITIAL_BACKOFF, _MAX_BACKOFF)
    return max(ends) + timedelta(seconds=wait)


def _finished_at(pod: v1.Pod) -> datetime | None:
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    ends = [
        status.state.terminated.finishedAt
        for status in statuses
        if status.state and status.state.terminated and status.state.terminated.finishedAt
    ]
    return max(ends, default=None)


def _created(pod: v1.Pod) -> datetime | None:
    return metadata_of(pod).creationTimestamp

"""Jobs: pods that are to end well, so many, so many at once, with so many failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from lightkube.models import batch_v1
from lightkube.models import core_v1 as v1

from winpod.node.play.templates import (
    Steps,
    free_name,
    is_active,
    is_ready,
    phase,
    pod_from,
    soonest,
)
from winpod.node.requests import metadata_of

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
FINISHED = ("Complete", "Failed")
NAME_LABEL = "batch.kubernetes.io/job-name"
_FIRST_WAIT, _LONGEST_WAIT = 10, 600
_FAILURES = 6


def is_finished(status: Mapping[str, Any]) -> bool:
    return status.get("condition") in FINISHED


def next_for_job(
    job: batch_v1.Job,
    pods: Sequence[v1.Pod],
    taken: Iterable[str],
    now: datetime,
    before: Mapping[str, Any],
) -> Steps:
    """`before` is the status that was written down: a job that has finished does not begin again,
    whatever became of its pods."""
    spec = job.spec
    if spec is None or job.metadata is None:
        return Steps()
    active = [pod for pod in pods if is_active(pod)]
    if is_finished(before):
        return Steps(delete=tuple(active), status=before)
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    good = [pod for pod in pods if phase(pod) == "Succeeded"]
    bad = [pod for pod in pods if phase(pod) == "Failed"]
    done = _done(spec, good)
    status = {
        "active": len(active),
        "ready": sum(map(is_ready, active)),
        "succeeded": done,
        "failed": len(bad),
        "wanted": spec.completions if spec.completions is not None else 1,
    }
    begun = min((t for pod in pods if (t := _created(pod))), default=None)
    if reason := _failure(spec, pods, bad, begun, now):
        return Steps(delete=tuple(active), status=_ended(status, "Failed") | reason)
    if _is_complete(spec, done, good, active):
        return Steps(delete=tuple(active), status=_ended(status, "Complete"))
    if spec.suspend:
        return Steps(delete=tuple(active), status={**status, "condition": "Suspended"})
    ready_at = _ready_after(bad)
    deadline = _deadline(spec, begun)
    if ready_at and now < ready_at:
        return Steps(status=status, again_at=soonest(ready_at, deadline))
    wanted = parallelism
    if spec.completions is not None:
        wanted = min(parallelism, spec.completions - done)
    elif good:
        wanted = 0
    created = _create(job, spec, pods, wanted - len(active), set(taken))
    return Steps(create=tuple(created), status=status, again_at=deadline)


def _ended(status: Mapping[str, Any], condition: str) -> dict[str, Any]:
    """Pods that still run are ended with the job."""
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
        name = free_name(prefix, names)
        names.add(name)
        if index is None:
            yield pod_from(job, spec.template, name, labels)
            continue
        pod = pod_from(
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


def _done(spec: batch_v1.JobSpec, good: Sequence[v1.Pod]) -> int:
    if spec.completionMode == "Indexed":
        return len({_index(pod) for pod in good})
    return len(good)


def _is_complete(
    spec: batch_v1.JobSpec, done: int, good: Sequence[v1.Pod], active: Sequence[v1.Pod]
) -> bool:
    if spec.completions is not None:
        return done >= spec.completions
    if spec.parallelism in (None, 1):
        return bool(good)
    return bool(good) and not active


def _failure(
    spec: batch_v1.JobSpec,
    pods: Sequence[v1.Pod],
    bad: Sequence[v1.Pod],
    begun: datetime | None,
    now: datetime,
) -> dict[str, str]:
    limit = _FAILURES if spec.backoffLimit is None else spec.backoffLimit
    restarts = sum(_restarts(pod) for pod in pods if is_active(pod))
    if len(bad) + restarts > limit:
        return {
            "reason": "BackoffLimitExceeded",
            "message": "Job has reached the specified backoff limit",
        }
    deadline = _deadline(spec, begun)
    if deadline and now >= deadline:
        return {
            "reason": "DeadlineExceeded",
            "message": "Job was active longer than specified deadline",
        }
    return {}


def _deadline(spec: batch_v1.JobSpec, begun: datetime | None) -> datetime | None:
    seconds = spec.activeDeadlineSeconds
    return begun + timedelta(seconds=seconds) if begun and seconds else None


def _restarts(pod: v1.Pod) -> int:
    """Of a pod that starts its containers again by itself."""
    if not pod.spec or pod.spec.restartPolicy != "OnFailure":
        return 0
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return sum(status.restartCount for status in statuses)


def _ready_after(bad: Sequence[v1.Pod]) -> datetime | None:
    """When the next may be tried: 10 seconds after a failure, then twice as long each time."""
    ends = [end for pod in bad if (end := _ended_at(pod))]
    if not ends:
        return None
    wait = min(_FIRST_WAIT * 2 ** min(len(bad) - 1, 10), _LONGEST_WAIT)
    return max(ends) + timedelta(seconds=wait)


def _ended_at(pod: v1.Pod) -> datetime | None:
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    ends = [
        status.state.terminated.finishedAt
        for status in statuses
        if status.state and status.state.terminated and status.state.terminated.finishedAt
    ]
    return max(ends, default=None)


def _created(pod: v1.Pod) -> datetime | None:
    return metadata_of(pod).creationTimestamp

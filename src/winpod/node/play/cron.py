"""CronJobs: when the next job is due, and which of the old ones are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lightkube.models import batch_v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.play.jobs import is_finished
from winpod.node.play.templates import Steps, reference_to
from winpod.windows.errors import InvalidInput

_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    name: number
    for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)  # noqa: SIM905
}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: tuple[tuple[int, int, Mapping[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 7, _DAYS),
)
_FARTHEST_DAYS = 366 * 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """The five fields. A day has to be one of the month's and one of the week's, except that one of
    both is enough where both are limited."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def after(self, moment: datetime) -> datetime | None:
        """The first time after this one, in the moment's own time zone."""
        here = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = here.replace(hour=0, minute=0)
        for _ in range(_FARTHEST_DAYS):
            if self._has_day(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        time = day.replace(hour=hour, minute=minute)
                        if time >= here:
                            return time
            day += timedelta(days=1)
        return None

    def _has_day(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        of_month = day.day in self.days
        of_week = (day.weekday() + 1) % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return of_month and of_week
        return of_month or of_week


def parse_schedule(text: str) -> Schedule:
    words = _NAMED.get(text.strip().lower(), text).split()
    if len(words) != len(_FIELDS):
        raise InvalidInput(f'"{text}" is not a schedule.', 'Write five fields: "*/5 * * * *".')
    values = [_field(word, *limits, text) for word, limits in zip(words, _FIELDS, strict=True)]
    weekdays = frozenset(day % 7 for day in values[4])
    return Schedule(
        values[0],
        values[1],
        values[2],
        values[3],
        weekdays,
        words[2] in ("*", "?"),
        words[4] in ("*", "?"),
    )


def _field(word: str, least: int, most: int, names: Mapping[str, int], text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in word.lower().split(","):
        span, _, step = part.partition("/")
        try:
            if span in ("*", "?"):
                first, last = least, most
            else:
                begin, dash, end = span.partition("-")
                first = names[begin] if begin in names else int(begin)
                last = (names[end] if end in names else int(end)) if dash else first
                last = most if step and not dash else last
            every = int(step) if step else 1
        except ValueError:
            raise InvalidInput(f'"{part}" in the schedule "{text}" is nothing.') from None
        if not (least <= first <= last <= most and every > 0):
            raise InvalidInput(f'"{part}" in the schedule "{text}" is not of {least} to {most}.')
        found.update(range(first, last + 1, every))
    return frozenset(found)


def next_for_cron_job(
    owner: batch_v1.CronJob,
    jobs: Sequence[batch_v1.Job],
    statuses: Mapping[str, Mapping[str, Any]],
    last: datetime,
    now: datetime,
) -> Steps:
    """`last` is when a job was due last, or when this was made; `statuses` are the jobs'."""
    spec = owner.spec
    if spec is None or owner.metadata is None:
        return Steps()
    zone = parse_zone(spec.timeZone)
    schedule = parse_schedule(spec.schedule)
    due = _latest_due(schedule, last.astimezone(zone), now)
    active = [job for job in jobs if not _condition(job, statuses)]
    removed = _too_old(spec, jobs, statuses)
    again_at = schedule.after(now.astimezone(zone))
    status: dict[str, Any] = {"active": len(active), "lastScheduleTime": last.isoformat()}
    if due is None or spec.suspend:
        return Steps(remove_jobs=removed, status=status, again_at=again_at)
    status["lastScheduleTime"] = due.astimezone(UTC).isoformat()
    late = spec.startingDeadlineSeconds
    if (late is not None and now > due + timedelta(seconds=late)) or (
        active and spec.concurrencyPolicy == "Forbid"
    ):
        return Steps(remove_jobs=removed, status=status, again_at=again_at)
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
    return Steps(jobs=(job,), remove_jobs=removed, status=status, again_at=again_at)


def parse_zone(name: str | None) -> Any:
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidInput(f'"{name}" is not a time zone that this machine knows.') from None


def _latest_due(schedule: Schedule, last: datetime, now: datetime) -> datetime | None:
    """The last of those that were missed, because they are not made up for one by one."""
    due, moment = None, schedule.after(last)
    while moment is not None and moment <= now:
        due, moment = moment, schedule.after(moment)
    return due


def _condition(job: batch_v1.Job, statuses: Mapping[str, Mapping[str, Any]]) -> str:
    name = (job.metadata.name if job.metadata else "") or ""
    status = statuses.get(name, {})
    return str(status["condition"]) if is_finished(status) else ""


def _too_old(
    spec: batch_v1.CronJobSpec,
    jobs: Sequence[batch_v1.Job],
    statuses: Mapping[str, Mapping[str, Any]],
) -> tuple[str, ...]:
    removed: list[str] = []
    for condition, limit, otherwise in (
        ("Complete", spec.successfulJobsHistoryLimit, 3),
        ("Failed", spec.failedJobsHistoryLimit, 1),
    ):
        kept = otherwise if limit is None else limit
        over = [job for job in jobs if job.metadata and _condition(job, statuses) == condition]
        names = [job.metadata.name or "" for job in over if job.metadata]
        names.sort(key=lambda name: int(name.rpartition("-")[2]))
        removed += names[: max(len(names) - kept, 0)]
    return tuple(removed)

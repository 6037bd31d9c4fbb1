"""Cron schedules of CronJobs: parsing, and the next time after a given one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from winpod.errors import InvalidInput

_MACROS = {
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


_MAX_DAYS_AHEAD = 366 * 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """The five fields of a cron schedule.

    If both the day of the month and the day of the week are restricted, matching one of them is
    enough.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def after(self, moment: datetime) -> datetime | None:
        """Return the next scheduled time, in the time zone of `moment`."""
        earliest = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = earliest.replace(hour=0, minute=0)
        for _ in range(_MAX_DAYS_AHEAD):
            if self._has_day(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        time = day.replace(hour=hour, minute=minute)
                        if time >= earliest:
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
    fields = _MACROS.get(text.strip().lower(), text).split()
    if len(fields) != len(_FIELDS):
        raise InvalidInput(f'"{text}" is not a cron schedule.', 'Write five fields: "*/5 * * * *".')
    values = [
        _parse_field(field, *limits, text) for field, limits in zip(fields, _FIELDS, strict=True)
    ]
    weekdays = frozenset(day % 7 for day in values[4])
    return Schedule(
        values[0],
        values[1],
        values[2],
        values[3],
        weekdays,
        fields[2] in ("*", "?"),
        fields[4] in ("*", "?"),
    )


def _parse_field(
    field: str, minimum: int, maximum: int, names: Mapping[str, int], text: str
) -> frozenset[int]:
    values: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        try:
            if span in ("*", "?"):
                first, last = minimum, maximum
            else:
                begin, dash, end = span.partition("-")
                first = names[begin] if begin in names else int(begin)
                last = (names[end] if end in names else int(end)) if dash else first
                last = maximum if step and not dash else last
            every = int(step) if step else 1
        except ValueError:
            raise InvalidInput(
                f'"{part}" in the schedule "{text}" is not a valid cron field.'
            ) from None
        if not (minimum <= first <= last <= maximum and every > 0):
            raise InvalidInput(
                f'"{part}" in the schedule "{text}" is not in the range {minimum}-{maximum}.'
            )
        values.update(range(first, last + 1, every))
    return frozenset(values)


def parse_time_zone(name: str | None) -> Any:
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidInput(f'"{name}" is not a time zone of this machine.') from None

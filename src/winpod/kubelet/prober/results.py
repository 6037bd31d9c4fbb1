"""Probe results of a container, and the thresholds at which they take effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class ProbeResult(StrEnum):
    UNKNOWN = "unknown"
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class ContainerHealth:
    """The probe results of one container. Without a probe the result is success."""

    startup: ProbeResult = ProbeResult.SUCCESS
    liveness: ProbeResult = ProbeResult.SUCCESS
    readiness: ProbeResult = ProbeResult.SUCCESS

    @property
    def has_started(self) -> bool:
        return self.startup is ProbeResult.SUCCESS


HEALTHY = ContainerHealth()


@dataclass(frozen=True, slots=True)
class ResultStreak:
    """The last result of a probe, and how many equal ones came in a row."""

    last: ProbeResult = ProbeResult.UNKNOWN
    length: int = 0

    def after(self, answer: ProbeResult) -> ResultStreak:
        return (
            replace(self, length=self.length + 1)
            if answer is self.last
            else ResultStreak(answer, 1)
        )

    def reaches_threshold(self, successes: int, failures: int) -> bool:
        """Whether the streak is long enough to take effect."""
        return self.length >= (successes if self.last is ProbeResult.SUCCESS else failures)

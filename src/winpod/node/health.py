"""What probes have found of a container, and when a run of answers counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Result(StrEnum):
    UNKNOWN = "unknown"
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Health:
    """Of one container. One that nobody asks about has started, lives, and is ready."""

    startup: Result = Result.SUCCESS
    liveness: Result = Result.SUCCESS
    readiness: Result = Result.SUCCESS

    @property
    def has_started(self) -> bool:
        return self.startup is Result.SUCCESS


WELL = Health()


@dataclass(frozen=True, slots=True)
class Run:
    """Answers of one probe: the last one, and how many of its kind came in a row."""

    last: Result = Result.UNKNOWN
    length: int = 0

    def after(self, answer: Result) -> Run:
        return replace(self, length=self.length + 1) if answer is self.last else Run(answer, 1)

    def counts(self, successes: int, failures: int) -> bool:
        """Whether the run is long enough to be believed."""
        return self.length >= (successes if self.last is Result.SUCCESS else failures)

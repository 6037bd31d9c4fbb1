"""Wall time and CPU time; CPU time is more meaningful on a loaded machine."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taken:
    clock: float
    cpu: float


def measure(work: Callable[[], None]) -> Taken:
    """Measure a function, including the child processes that it starts and waits for."""
    clock, cpu = time.perf_counter(), _cpu()
    work()
    return Taken(time.perf_counter() - clock, _cpu() - cpu)


def _cpu() -> float:
    used = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def report(title: str, times: Mapping[str, Sequence[Taken]]) -> None:
    """Print the medians of several tools, relative to winpod's."""
    medians = {
        tool: Taken(
            statistics.median(one.clock for one in taken),
            statistics.median(one.cpu for one in taken),
        )
        for tool, taken in times.items()
    }
    winpod = medians["winpod"]
    for tool, median in medians.items():
        print(
            f"{title:12} {tool:22}"
            f" {median.clock:6.2f} s {median.clock / winpod.clock:5.2f} x winpod"
            f"   CPU {median.cpu:6.2f} s {median.cpu / winpod.cpu:5.2f} x winpod",
            flush=True,
        )

"""Seconds by the clock, and seconds of CPU, which say more where others use the machine."""

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
    """What some work takes, with the processes that it starts and that end with it."""
    clock, cpu = time.perf_counter(), _cpu()
    work()
    return Taken(time.perf_counter() - clock, _cpu() - cpu)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def report(title: str, times: Mapping[str, Sequence[Taken]]) -> None:
    """The medians of some ways to do the same, beside winpod's."""
    medians = {
        who: Taken(
            statistics.median(one.clock for one in taken),
            statistics.median(one.cpu for one in taken),
        )
        for who, taken in times.items()
    }
    ours = medians["winpod"]
    for who, median in medians.items():
        print(
            f"{title:12} {who:20}"
            f" {median.clock:6.2f} s {median.clock / ours.clock:5.2f} x winpod"
            f"   CPU {median.cpu:6.2f} s {median.cpu / ours.cpu:5.2f} x winpod",
            flush=True,
        )

"""What a node uses: the machine's own counts where it is the whole machine, else what its pods use.

Nodes that share a machine, or that are simulated, cannot tell their part of the machine's counts;
the CPU time of their pods is added up, so that it never falls when a pod goes, and an equal part of
what the agent uses itself is added.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winpod.node.facts import NodeFacts

_SECOND = 1_000_000_000
_KIB = 1024
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Used:
    """At a time in nanoseconds since 1970. `commit_bytes` is memory that was promised."""

    time: int
    cpu_nanoseconds: int = 0
    nano_cores: int = 0
    working_set_bytes: int = 0
    commit_bytes: int = 0


@dataclass(slots=True)
class NodeUsage:
    facts: NodeFacts
    _last: Used | None = None
    _pods_cpu: dict[str, int] = field(default_factory=dict)
    _added_up: int = 0

    def read(self, pods: Mapping[str, Used]) -> Used:
        """`pods` are what the node's pods use, by the ids of their sandboxes."""
        added_up = self._add_up(pods)
        now = machine_used() if self._is_machine else added_up
        before = self._last
        if before is None or now.time - before.time >= _SECOND:
            self._last = now = _with_rate(now, before)
            return now
        return _with_rate(now, None, before.nano_cores)

    @property
    def _is_machine(self) -> bool:
        facts = self.facts
        has_all = facts.nodes_here == 1 and facts.memory_bytes // _KIB >= machine_memory() // _KIB
        return has_all and not facts.is_simulated

    def _add_up(self, pods: Mapping[str, Used]) -> Used:
        for id_, used in pods.items():
            self._added_up += max(0, used.cpu_nanoseconds - self._pods_cpu.get(id_, 0))
        self._pods_cpu = {id_: used.cpu_nanoseconds for id_, used in pods.items()}
        agent = agent_used(self.facts.nodes_here)
        return Used(
            agent.time,
            self._added_up + agent.cpu_nanoseconds,
            0,
            sum((used.working_set_bytes for used in pods.values()), agent.working_set_bytes),
            sum((used.commit_bytes for used in pods.values()), agent.commit_bytes),
        )


def _with_rate(now: Used, before: Used | None, rate: int = 0) -> Used:
    if before:
        elapsed = now.time - before.time
        rate = max(0, (now.cpu_nanoseconds - before.cpu_nanoseconds) * _SECOND // elapsed)
    return Used(now.time, now.cpu_nanoseconds, rate, now.working_set_bytes, now.commit_bytes)


def machine_used() -> Used:
    """What the machine can take back at once is not in its working set."""
    memory = _memory()
    return Used(
        time.time_ns(),
        _cpu_nanoseconds((_PROC / "stat").read_text()),
        0,
        memory["MemTotal"] - memory["MemAvailable"],
        memory["Committed_AS"],
    )


def agent_used(nodes: int) -> Used:
    """What this process uses, for each of the nodes that it is the agent of."""
    resident = int((_PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Used(
        time.time_ns(), time.process_time_ns() // nodes, 0, resident // nodes, resident // nodes
    )


def machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def machine_available() -> int:
    """What programs could get now."""
    return _memory()["MemAvailable"]


def machine_tasks() -> tuple[int, int]:
    """How many there may be, and how many there are."""
    limits = (_PROC / "sys/kernel" / name for name in ("pid_max", "threads-max"))
    _, _, there_are = (_PROC / "loadavg").read_text().split()[3].partition("/")
    return min(int(limit.read_text()) for limit in limits), int(there_are)


def machine_started() -> int:
    """In nanoseconds since 1970."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _memory() -> dict[str, int]:
    found = {}
    for line in (_PROC / "meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        found[name] = int(amount.split()[0]) * 1024
    return found


def _cpu_nanoseconds(stat: str) -> int:
    """Of all processors, but not the time they idled or waited for disks."""
    user, nice, system, _idle, _waiting, irq, soft_irq, stolen = map(int, stat.split()[1:9])
    ticks = user + nice + system + irq + soft_irq + stolen
    return int(ticks * _SECOND // os.sysconf("SC_CLK_TCK"))

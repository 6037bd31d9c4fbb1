"""What went through the interfaces of a sandbox, as the kernel counts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winpod.network.attachments import INTERFACE
from winpod.network.namespaces import inside

_COUNTERS = Path("/proc/thread-self/net/dev")


@dataclass(frozen=True)
class Counters:
    interface: str
    received_bytes: int
    received_packets: int
    receive_errors: int
    received_dropped: int
    sent_bytes: int
    sent_packets: int
    send_errors: int
    sent_dropped: int


def read_counters(netns: Path) -> list[Counters]:
    """Of every interface but loopback, the sandbox's own first."""
    lines = inside(netns, _COUNTERS.read_text).splitlines()[2:]
    found = [counters for line in lines if (counters := _parse(line)).interface != "lo"]
    return sorted(found, key=lambda counters: counters.interface != INTERFACE)


def _parse(line: str) -> Counters:
    name, _, numbers = line.partition(":")
    values = [int(number) for number in numbers.split()]
    return Counters(name.strip(), *values[:4], *values[8:12])

"""What went through the interfaces of a sandbox, or of the machine, as the kernel counts it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from winpod.network.attachments import INTERFACE
from winpod.network.namespaces import inside

_COUNTERS = Path("/proc/thread-self/net/dev")
_ROUTES = Path("/proc/thread-self/net/route")
_ANYWHERE = "00000000"
_NOT_THE_PODS = ("lo", "tap0")
"""The other is the way to a microVM, by which all of it goes a second time."""
_NOT_THE_MACHINES = ("lo", "veth")


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
    found = parse_counters(inside(netns, _COUNTERS.read_text))
    shown = [counters for counters in found if counters.interface not in _NOT_THE_PODS]
    return sorted(shown, key=lambda counters: counters.interface != INTERFACE)


def machine_counters() -> list[Counters]:
    """Of every interface but loopback and the ends of pods', the one that leads out first."""
    return of_machine(parse_counters(_COUNTERS.read_text()), _ROUTES.read_text())


def of_machine(counters: Iterable[Counters], routes: str) -> list[Counters]:
    """`routes` is the kernel's table of them."""
    rows = (line.split() for line in routes.splitlines()[1:])
    leading_out = {row[0] for row in rows if row[1] == _ANYWHERE}
    shown = [one for one in counters if not one.interface.startswith(_NOT_THE_MACHINES)]
    return sorted(shown, key=lambda one: one.interface not in leading_out)


def parse_counters(text: str) -> list[Counters]:
    return [_parse(line) for line in text.splitlines()[2:]]


def _parse(line: str) -> Counters:
    name, _, numbers = line.partition(":")
    values = [int(number) for number in numbers.split()]
    return Counters(name.strip(), *values[:4], *values[8:12])

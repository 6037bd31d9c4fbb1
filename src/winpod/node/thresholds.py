"""How little room a node may have left before it evicts pods, and how patient it is, in the words
of a kubelet's options: `memory.available<500Mi,nodefs.available<10%,imagefs.available<15%`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from winpod.windows.errors import InvalidInput
from winpod.windows.quantities import parse_quantity

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SIGNALS = {
    "memory.available": "memory",
    "nodefs.available": "node_disk",
    "imagefs.available": "image_disk",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """An amount, or a part of the whole."""

    bytes: int = 0
    share: Decimal = Decimal(0)

    def of(self, size: int) -> int:
        return self.bytes + int(size * self.share)

    def __str__(self) -> str:
        return f"{(self.share * 100).normalize():f}%" if self.share else str(self.bytes)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`hold` is how long a pressure is told after it was seen last.

    Images that nobody uses go also without pressure: from when so much of their disk is used as
    `image_high` says, until it is only `image_low`; those younger than `image_age` stay.
    """

    memory: Bound = Bound(500 * 1024**2)
    node_disk: Bound = Bound(share=Decimal("0.10"))
    image_disk: Bound = Bound(share=Decimal("0.15"))
    hold: timedelta = timedelta(minutes=5)
    image_high: Decimal = Decimal("0.85")
    image_low: Decimal = Decimal("0.80")
    image_age: timedelta = timedelta(minutes=2)


def parse_thresholds(text: str, others: Thresholds) -> Thresholds:
    """What is not stated is as in the others."""
    told: dict[str, Bound] = {}
    for part in text.split(",") if text else ():
        signal, _, amount = part.partition("<")
        if signal not in _SIGNALS:
            known = ", ".join(_SIGNALS)
            raise InvalidInput(f'"{part}" is no threshold.', f"Write SIGNAL<AMOUNT; {known}.")
        told[_SIGNALS[signal]] = _bound(amount)
    return replace(
        others,
        memory=told.get("memory", others.memory),
        node_disk=told.get("node_disk", others.node_disk),
        image_disk=told.get("image_disk", others.image_disk),
    )


def _bound(text: str) -> Bound:
    number = parse_quantity(text.removesuffix("%"))
    if number is None or number < 0 or (text.endswith("%") and number > 100):
        raise InvalidInput(f'"{text}" is no amount.', "Write 500Mi, or 10%.")
    return Bound(share=number / 100) if text.endswith("%") else Bound(int(number))


def show_thresholds(thresholds: Thresholds) -> dict[str, str]:
    """By their signals, as a kubelet's configuration has them."""
    return {signal: str(getattr(thresholds, name)) for signal, name in _SIGNALS.items()}


def show_duration(duration: timedelta) -> str:
    """As Go writes it: `5m0s`, `1h30m0s`, `45s`."""
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    told = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{told}{seconds}s"


def parse_duration(text: str) -> timedelta:
    """`30s`, `5m`, `1h30m`."""
    found = _DURATION.fullmatch(text)
    if not found or not text:
        raise InvalidInput(f'"{text}" is no duration.', "Write 30s, 5m, or 1h30m.")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)

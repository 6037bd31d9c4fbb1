"""Eviction thresholds in the syntax of the kubelet's flags:
`memory.available<500Mi,nodefs.available<10%,imagefs.available<15%`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from winpod.errors import InvalidInput
from winpod.quantities import parse_quantity

_SIGNALS = {
    "memory.available": "memory",
    "nodefs.available": "node_disk",
    "imagefs.available": "image_disk",
}


@dataclass(frozen=True, slots=True)
class ThresholdValue:
    """An absolute amount, or a share of the capacity."""

    bytes: int = 0
    share: Decimal = Decimal(0)

    def bytes_of(self, size: int) -> int:
        return self.bytes + int(size * self.share)

    def __str__(self) -> str:
        return f"{(self.share * 100).normalize():f}%" if self.share else str(self.bytes)


@dataclass(frozen=True, slots=True)
class EvictionThresholds:
    """Thresholds for eviction and image garbage collection.

    `transition_period` is how long a pressure is reported after it was last observed. Without
    pressure, unused images older than `image_age` are removed once disk usage exceeds `image_high`,
    down to `image_low`.
    """

    memory: ThresholdValue = ThresholdValue(500 * 1024**2)
    node_disk: ThresholdValue = ThresholdValue(share=Decimal("0.10"))
    image_disk: ThresholdValue = ThresholdValue(share=Decimal("0.15"))
    transition_period: timedelta = timedelta(minutes=5)
    image_high: Decimal = Decimal("0.85")
    image_low: Decimal = Decimal("0.80")
    image_age: timedelta = timedelta(minutes=2)


def parse_thresholds(text: str, defaults: EvictionThresholds) -> EvictionThresholds:
    """Parse thresholds; signals that are not given keep their default."""
    parsed: dict[str, ThresholdValue] = {}
    for part in text.split(",") if text else ():
        signal, _, amount = part.partition("<")
        if signal not in _SIGNALS:
            raise InvalidInput(
                f'"{part}" is not an eviction threshold.',
                f"Write SIGNAL<AMOUNT with one of these signals: {', '.join(_SIGNALS)}.",
            )
        parsed[_SIGNALS[signal]] = _parse_value(amount)
    return replace(
        defaults,
        memory=parsed.get("memory", defaults.memory),
        node_disk=parsed.get("node_disk", defaults.node_disk),
        image_disk=parsed.get("image_disk", defaults.image_disk),
    )


def _parse_value(text: str) -> ThresholdValue:
    number = parse_quantity(text.removesuffix("%"))
    if number is None or number < 0 or (text.endswith("%") and number > 100):
        raise InvalidInput(f'"{text}" is not a valid amount.', "Write for example 500Mi or 10%.")
    return ThresholdValue(share=number / 100) if text.endswith("%") else ThresholdValue(int(number))


def format_thresholds(thresholds: EvictionThresholds) -> dict[str, str]:
    """Return the thresholds by signal, as in a KubeletConfiguration."""
    return {signal: str(getattr(thresholds, name)) for signal, name in _SIGNALS.items()}

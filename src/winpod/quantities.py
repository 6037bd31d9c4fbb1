"""Parsing and formatting of quantities (`100m`, `1.5Gi`, `2e3`) and durations (`1h30m`)."""

import re
from datetime import timedelta
from decimal import ROUND_FLOOR, Decimal
from functools import lru_cache

from winpod.errors import InvalidInput

_UNITS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(1024),
    "Mi": Decimal(1024**2),
    "Gi": Decimal(1024**3),
    "Ti": Decimal(1024**4),
    "Pi": Decimal(1024**5),
    "Ei": Decimal(1024**6),
}
_MAX_VALUE = Decimal(2**63 - 1)
_MAX_LENGTH = 1000
_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d+)?)s)?", re.ASCII)
_QUANTITY = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)",
    re.ASCII,
)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Decimal | None:
    """Parse a quantity; None if invalid. Values above 2^63-1 are capped, as in the API."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or len(text) > _MAX_LENGTH:
        return None
    number, exponent, unit = match.groups()
    return min(Decimal(number + (exponent or "")) * _UNITS[unit or ""], _MAX_VALUE)


def format_quantity(resource: str, amount: Decimal, *, rounding: str = ROUND_FLOOR) -> str:
    """Format a quantity: memory in binary units, CPU in cores or millicores.

    Inexact values are rounded, keeping at least three digits.
    """
    if resource == "cpu":
        if amount == int(amount):
            return f"{amount:f}"
        return f"{(amount * 1000).to_integral_value(rounding):f}m"
    if resource in ("memory", "ephemeral-storage"):
        for unit in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
            scaled = amount / _UNITS[unit]
            tenths = scaled.quantize(Decimal("0.1"), rounding)
            if abs(scaled) >= 100 or (abs(scaled) >= 1 and tenths == scaled):
                return f"{tenths.normalize():f}{unit}"
    return f"{amount.normalize():f}"


def format_duration(duration: timedelta) -> str:
    """Format a duration as Go does: `5m0s`, `1h30m0s`, `45s`."""
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{prefix}{seconds}s"


def parse_duration(text: str) -> timedelta:
    """Parse `30s`, `5m`, `1h30m`."""
    match = _DURATION.fullmatch(text)
    if not match or not text:
        raise InvalidInput(
            f'"{text}" is not a valid duration.', "Write for example 30s, 5m or 1h30m."
        )
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)

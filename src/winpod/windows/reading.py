"""Typed reading of API objects that people wrote.

Every value is read together with where it stands, so that a mistake is reported as a sentence about
a field, and the file reader can turn the field into a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from winpod.windows.errors import InvalidInput
from winpod.windows.quantities import parse_quantity

Path = tuple[str | int, ...]
Pairs = tuple[tuple[str, str], ...]
Amounts = tuple[tuple[str, Decimal], ...]


def show_path(path: Path) -> str:
    """`spec.containers[0].image`, as Kubernetes writes it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class InvalidField(InvalidInput):
    """A field of an object is not what the API takes there."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{show_path(path) or 'the object'} {problem}.")
        self.path = path


_KINDS: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "empty",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


@dataclass(frozen=True, slots=True)
class At:
    """A value of an object, and the path to it. What is absent reads as None."""

    value: Any
    path: Path = ()

    def __bool__(self) -> bool:
        return self.value is not None

    def wrong(self, wanted: str) -> InvalidField:
        return InvalidField(self.path, f"must be {wanted}, and is {_kind(self.value)}")

    def get(self, *keys: str) -> At:
        here = self
        for key in keys:
            value = here.value
            if value is not None and not isinstance(value, dict):
                raise here.wrong("a mapping")
            here = At(None if value is None else value.get(key), (*here.path, key))
        return here

    def items(self) -> Iterator[At]:
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for index, value in enumerate(self.value):
            yield At(value, (*self.path, index))

    def text(self, default: str = "") -> str:
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            raise self.wrong("text (put it in quotes)")
        return self.value

    def required_text(self) -> str:
        if not self.text():
            raise InvalidField(self.path, "is required")
        return self.text()

    def one_of(self, *names: str) -> str:
        """One of these names, or nothing."""
        if self.text() and self.text() not in names:
            raise InvalidField(
                self.path, f'is "{self.text()}", and must be one of {", ".join(names)}'
            )
        return self.text()

    def flag(self) -> bool:
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def number(self, default: float, least: float, most: float) -> float:
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong("a number")
        if not least <= self.value <= most:
            span = f"from {least:g} to {most:g}"
            raise InvalidField(self.path, f"is {self.value}, and must be {span}")
        return self.value

    def allow(self, *names: str) -> None:
        """Refuse a mapping that has other keys, because nobody would read them."""
        for key in self.names():
            if key not in names:
                known = ", ".join(sorted(names))
                raise InvalidField((*self.path, key), f"is not a setting (there are {known})")

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def pairs(self) -> Pairs:
        """A mapping of text to text, sorted."""
        return tuple((key, self.get(key).text()) for key in self.names())

    def amounts(self) -> Amounts:
        """A mapping of resource names to quantities, sorted."""
        return tuple((key, self.get(key).amount()) for key in self.names())

    def amount(self) -> Decimal:
        """A quantity; none is nothing, as the API takes it."""
        if self.value is None:
            return Decimal(0)
        text = str(self.value) if isinstance(self.value, int | float | str) else ""
        amount = parse_quantity(text)
        if amount is None or isinstance(self.value, bool):
            raise InvalidField(self.path, f'must be a quantity such as 500m or 2Gi, not "{text}"')
        if amount < 0:
            raise InvalidField(self.path, f'must not be negative, and is "{text}"')
        return amount

    def names(self) -> list[str]:
        if self.value is None:
            return []
        if not isinstance(self.value, dict):
            raise self.wrong("a mapping")
        for key in self.value:
            if not isinstance(key, str):
                raise InvalidField(self.path, f"has the key {key!r}, which must be text")
        return sorted(self.value)

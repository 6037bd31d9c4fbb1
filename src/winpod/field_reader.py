"""Typed access to decoded YAML, JSON and TOML documents.

Every value is read together with its field path, so that errors name the field and can be mapped to
a line of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from winpod.errors import InvalidInput
from winpod.quantities import parse_quantity

FieldPath = tuple[str | int, ...]
TextPairs = tuple[tuple[str, str], ...]
Quantities = tuple[tuple[str, Decimal], ...]


def format_path(path: FieldPath) -> str:
    """Format a path as Kubernetes does: `spec.containers[0].image`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class InvalidField(InvalidInput):
    """A field has an invalid value."""

    def __init__(self, path: FieldPath, problem: str) -> None:
        super().__init__(f"{format_path(path) or 'the object'} {problem}.")
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
class Field:
    """A value and its path. Absent values are None."""

    value: Any
    path: FieldPath = ()

    def __bool__(self) -> bool:
        return self.value is not None

    def error(self, expected: str) -> InvalidField:
        return InvalidField(self.path, f"must be {expected}, and is {_kind(self.value)}")

    def get(self, *keys: str) -> Field:
        field = self
        for key in keys:
            value = field.value
            if value is not None and not isinstance(value, dict):
                raise field.error("a mapping")
            field = Field(None if value is None else value.get(key), (*field.path, key))
        return field

    def items(self) -> Iterator[Field]:
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.error("a list")
        for index, value in enumerate(self.value):
            yield Field(value, (*self.path, index))

    def text(self, default: str = "") -> str:
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            raise self.error("text (put it in quotes)")
        return self.value

    def required_text(self) -> str:
        if not self.text():
            raise InvalidField(self.path, "is required")
        return self.text()

    def one_of(self, *names: str) -> str:
        """Return the text, which must be empty or one of these names."""
        if self.text() and self.text() not in names:
            raise InvalidField(
                self.path, f'is "{self.text()}", and must be one of {", ".join(names)}'
            )
        return self.text()

    def flag(self) -> bool:
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value

    def number(self, default: float, minimum: float, maximum: float) -> float:
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error("a number")
        if not minimum <= self.value <= maximum:
            span = f"from {minimum:g} to {maximum:g}"
            raise InvalidField(self.path, f"is {self.value}, and must be {span}")
        return self.value

    def reject_unknown_keys(self, *names: str) -> None:
        """Raise for keys other than these, because they would be ignored."""
        for key in self.key_names():
            if key not in names:
                valid_keys = ", ".join(sorted(names))
                raise InvalidField((*self.path, key), f"is not a setting (there are {valid_keys})")

    def text_list(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def text_map(self) -> TextPairs:
        """Return a mapping of text to text, sorted by key."""
        return tuple((key, self.get(key).text()) for key in self.key_names())

    def quantities(self) -> Quantities:
        """Return a mapping of resource names to quantities, sorted by key."""
        return tuple((key, self.get(key).quantity()) for key in self.key_names())

    def quantity(self) -> Decimal:
        """Return a quantity; 0 if absent, as in the API."""
        if self.value is None:
            return Decimal(0)
        text = str(self.value) if isinstance(self.value, int | float | str) else ""
        amount = parse_quantity(text)
        if amount is None or isinstance(self.value, bool):
            raise InvalidField(self.path, f'must be a quantity such as 500m or 2Gi, not "{text}"')
        if amount < 0:
            raise InvalidField(self.path, f'must not be negative, and is "{text}"')
        return amount

    def key_names(self) -> list[str]:
        if self.value is None:
            return []
        if not isinstance(self.value, dict):
            raise self.error("a mapping")
        for key in self.value:
            if not isinstance(key, str):
                raise InvalidField(self.path, f"has the key {key!r}, which must be text")
        return sorted(self.value)

r"""What `reg query KEY` prints, as values.

The lines are the same in every language: four blanks, a name, a type, a value. Lists are joined
with `\0`, numbers and bytes are hexadecimal.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

_VALUE = re.compile(r" {4}(?P<name>.+?) {4}(?P<kind>REG_[A-Z_0-9]+)(?: {4}(?P<value>.*))?")
_HEADER = struct.Struct("<5I")
_ACTION = struct.Struct("<2I")
_RESTART = 1


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one key. Names know no case; what is missing or odd reads as nothing."""

    found: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.found)

    def text(self, name: str) -> str:
        return self.found.get(name.lower(), ("", ""))[1]

    def number(self, name: str) -> int | None:
        kind, text = self.found.get(name.lower(), ("", ""))
        try:
            return int(text, 16) if kind == "REG_DWORD" else None
        except ValueError:
            return None

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(one for one in self.text(name).split(r"\0") if one)

    def data(self, name: str) -> bytes:
        try:
            return bytes.fromhex(self.text(name))
        except ValueError:
            return b""


def read_values(text: str) -> Values:
    matches = (_VALUE.fullmatch(line) for line in text.splitlines())
    return Values(
        {m["name"].lower(): (m["kind"], (m["value"] or "").strip()) for m in matches if m}
    )


def read_failure_actions(data: bytes) -> tuple[int, tuple[int, ...]]:
    """SERVICE_FAILURE_ACTIONS: after how many seconds failures are forgotten, and the delays of
    the restarts in milliseconds."""
    if len(data) < _HEADER.size:
        return 0, ()
    reset, _message, _command, count, _offset = _HEADER.unpack_from(data)
    whole = (len(data) - _HEADER.size) // _ACTION.size
    actions = [
        _ACTION.unpack_from(data, _HEADER.size + index * _ACTION.size)
        for index in range(min(count, whole))
    ]
    return reset, tuple(delay for kind, delay in actions if kind == _RESTART)

"""Versions of payloads and their programs: `1.7.29`, `v2.4.2`, `6.0.0-rc.1+build`.

Compared like semantic versions: numerically, and a pre-release before its release.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from winpod.errors import InvalidInput

_TEXT = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    major: int
    minor: int
    patch: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Version:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InvalidInput(f'"{text}" is not a version.', "Use a version such as 6.1.0.")
        major, minor, patch, suffix = match.groups()
        return cls(int(major), int(minor), int(patch or 0), suffix or "")

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        return f"{text}-{self.suffix}" if self.suffix else text

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[int, int, int, bool, list[tuple[bool, int, str]]]:
        parts = [
            (not part.isdigit(), int(part) if part.isdigit() else 0, part)
            for part in self.suffix.split(".")
        ]
        return (self.major, self.minor, self.patch, not self.suffix, parts)

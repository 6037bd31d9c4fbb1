"""Writing TOML: values first, then the tables, keys in the order they were given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

Value = str | int | bool | list[str] | Mapping[str, "Value"]
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def render_toml(document: Mapping[str, Value]) -> str:
    return "\n".join(_lines(document, ())) + "\n"


def _lines(table: Mapping[str, Value], path: tuple[str, ...]) -> list[str]:
    values = [(key, one) for key, one in table.items() if not isinstance(one, Mapping)]
    lines = [f"{_key(key)} = {json.dumps(one, ensure_ascii=False)}" for key, one in values]
    if path and (lines or not table):
        lines.insert(0, f"\n[{'.'.join(map(_key, path))}]")
    for key, one in table.items():
        if isinstance(one, Mapping):
            lines += _lines(one, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)

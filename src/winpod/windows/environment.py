"""Environment variables. Windows preserves the case of names and ignores it in comparisons."""

from collections.abc import Iterable, Sequence

from winpod.errors import InvalidInput

Environment = tuple[tuple[str, str], ...]


def parse_variables(texts: Iterable[str]) -> Environment:
    """Parse `NAME=value` pairs as in image configs; without `=` the value is empty."""
    pairs = []
    for text in texts:
        # The per-drive current directories of Windows begin with `=`: =C:=C:\\app
        name, _, value = text[1:].partition("=") if text.startswith("=") else text.partition("=")
        pairs.append((f"={name}" if text.startswith("=") else name, value))
    return tuple(pairs)


def merge(*environments: Sequence[tuple[str, str]]) -> Environment:
    """Merge environments: the last value wins, names compare case-insensitively."""
    merged: dict[str, tuple[str, str]] = {}
    for environment in environments:
        for name, value in environment:
            _check(name, value)
            merged[name.upper()] = (name, value)
    return tuple(merged[key] for key in sorted(merged))


def _check(name: str, value: str) -> None:
    if not name.removeprefix("=") or "=" in name[1:] or "\0" in name + value:
        raise InvalidInput(f'"{name}" is not the name of an environment variable on Windows.')

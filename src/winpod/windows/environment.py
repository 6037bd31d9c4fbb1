"""Environments. Windows keeps the case of a variable's name and does not look at it."""

from collections.abc import Iterable, Sequence

from winpod.windows.errors import InvalidInput

Environment = tuple[tuple[str, str], ...]


def parse_variables(texts: Iterable[str]) -> Environment:
    """`NAME=value`, as image configs have them; one without a sign has an empty value."""
    pairs = []
    for text in texts:
        # Windows' own per-drive directories begin with the sign: =C:=C:\\app
        name, _, value = text[1:].partition("=") if text.startswith("=") else text.partition("=")
        pairs.append((f"={name}" if text.startswith("=") else name, value))
    return tuple(pairs)


def merge(*environments: Sequence[tuple[str, str]]) -> Environment:
    """Later wins; a name that differs only in case is the same variable, spelled as last."""
    merged: dict[str, tuple[str, str]] = {}
    for environment in environments:
        for name, value in environment:
            _check(name, value)
            merged[name.upper()] = (name, value)
    return tuple(merged[key] for key in sorted(merged))


def _check(name: str, value: str) -> None:
    if not name.removeprefix("=") or "=" in name[1:] or "\0" in name + value:
        raise InvalidInput(f'"{name}" is not the name of an environment variable on Windows.')

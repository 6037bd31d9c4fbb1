"""Environments: later wins, case does not count."""

import pytest

from winpod.windows.environment import merge, parse_variables
from winpod.windows.errors import InvalidInput


def test_later_wins_whatever_the_case() -> None:
    image = parse_variables(["Path=C:\\image", "A=1", "EMPTY"])
    assert merge(image, [("PATH", "C:\\pod"), ("b", "x=y")]) == (
        ("A", "1"),
        ("b", "x=y"),
        ("EMPTY", ""),
        ("PATH", "C:\\pod"),
    )


def test_windows_own_drive_variables_pass() -> None:
    assert merge(parse_variables(["=C:=C:\\app"])) == (("=C:", "C:\\app"),)


@pytest.mark.parametrize("pair", [("", "x"), ("=", "x"), ("a=b", "x"), ("a", "\0"), ("a\0", "")])
def test_what_windows_cannot_hold_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput, match="is not the name of an environment variable"):
        merge([pair])

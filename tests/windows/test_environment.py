"""Tests of merging environment variables."""

import pytest

from winpod.errors import InvalidInput
from winpod.windows.environment import merge, parse_variables


def test_last_value_wins_ignoring_case() -> None:
    image = parse_variables(["Path=C:\\image", "A=1", "EMPTY"])
    assert merge(image, [("PATH", "C:\\pod"), ("b", "x=y")]) == (
        ("A", "1"),
        ("b", "x=y"),
        ("EMPTY", ""),
        ("PATH", "C:\\pod"),
    )


def test_per_drive_directories_are_accepted() -> None:
    assert merge(parse_variables(["=C:=C:\\app"])) == (("=C:", "C:\\app"),)


@pytest.mark.parametrize("pair", [("", "x"), ("=", "x"), ("a=b", "x"), ("a", "\0"), ("a\0", "")])
def test_invalid_variable_names_are_rejected(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput, match="is not the name of an environment variable"):
        merge([pair])

"""Every error of the instances package has a hint."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from winpod import instances

PACKAGE = Path(instances.__file__).parent
TEXT_NODES = (ast.Constant, ast.JoinedStr)


def bare_errors(path: Path) -> Iterator[str]:
    """Yield `raise` calls with a message and no hint; Unavailable needs none."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        call = node.exc
        is_class = isinstance(call.func, ast.Name) and call.func.id != "Unavailable"
        is_bare = len(call.args) == 1 and isinstance(call.args[0], TEXT_NODES)
        if is_class and is_bare and not call.keywords:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(call)}"


@pytest.mark.parametrize("part", sorted(one.name for one in PACKAGE.iterdir() if one.is_dir()))
def test_every_raised_error_has_a_hint(part: str) -> None:
    assert [error for path in (PACKAGE / part).rglob("*.py") for error in bare_errors(path)] == []

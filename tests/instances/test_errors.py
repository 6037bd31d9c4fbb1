"""Every error of instances says what to do, wherever it is made."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from winpod import instances

HERE = Path(instances.__file__).parent
SENTENCES = (ast.Constant, ast.JoinedStr)


def bare_errors(path: Path) -> Iterator[str]:
    """Calls in `raise` with a sentence and no advice; that a server is away needs none."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        call = node.exc
        is_class = isinstance(call.func, ast.Name) and call.func.id != "Unavailable"
        is_bare = len(call.args) == 1 and isinstance(call.args[0], SENTENCES)
        if is_class and is_bare and not call.keywords:
            yield f"{path.relative_to(HERE)}:{node.lineno}: {ast.unparse(call)}"


@pytest.mark.parametrize("part", sorted(one.name for one in HERE.iterdir() if one.is_dir()))
def test_no_error_is_raised_without_what_to_do_about_it(part: str) -> None:
    assert [found for path in (HERE / part).rglob("*.py") for found in bare_errors(path)] == []

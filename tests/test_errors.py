"""Reasons of errors, and that no code depends on the text of an error."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import winpod
from winpod.errors import NotFound, WinpodError

SOURCE = Path(winpod.__file__).parent


def subclasses(kind: type[WinpodError]) -> Iterator[type[WinpodError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def error_classes() -> list[type[WinpodError]]:
    for module in pkgutil.walk_packages(winpod.__path__, "winpod."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = dict.fromkeys(subclasses(WinpodError))
    return [kind for kind in found if kind.__module__.startswith("winpod.")]


def test_reasons_are_camel_case_and_unique() -> None:
    by_reason = defaultdict(list)
    for kind in error_classes():
        assert re.fullmatch(r"([A-Z][a-z0-9]+)+", kind.reason), kind
        by_reason[kind.reason].append(kind)
    for reason, (first, *others) in by_reason.items():
        # A subclass may deliberately share the reason of its parent.
        assert all(issubclass(other, first) for other in others), reason


def test_reason_is_the_class_name_unless_set() -> None:
    class Special(NotFound):
        pass

    class Shared(Special):
        reason = "Chosen"

    assert (Special("x").reason, Shared("x").reason) == ("Special", "Chosen")
    assert Special("x", reason="Other").reason == "Other"
    assert Special("x", "y").to_dict() == {"reason": "Special", "message": "x", "hint": "y"}


FOREIGN_TEXT = {
    "compute/errors.py": "conmon passes on only the text of Windows' errors",
    "k8s/client.py": "the NodeRestriction plugin names labels only in its message",
    "k8s/event_recorder.py": "client-go marks combined events by a prefix",
    "network/cni_plugins.py": "plugins return the same code for different problems",
    "images/base/rootfs_builder.py": "mmdebstrap and apt print text only",
    "images/registry/auth.py": "the protocol of credential helpers defines a text",
    "instances/errors.py": "adds a prefix once",
    "play/apiserver/objects.py": "msgspec names the field only in its message",
}
"""Modules with a function that may examine messages, and why it must."""
_SEARCHES = {"startswith", "endswith", "partition", "rpartition", "find", "index", "count"}
_PATTERNS = {"search", "match", "fullmatch"}
_MESSAGES = {"message", "details", "hint", "strerror"}


def is_error_text(node: ast.expr, caught: set[str]) -> bool:
    """Whether an expression is the text of an error, as far as can be seen locally."""
    match node:
        case ast.Name(id=name):
            return name == "message"
        case ast.Attribute(attr=name):
            return name in _MESSAGES
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in caught
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            return name in _MESSAGES or is_error_text(value, caught)
        case ast.BoolOp(values=values):
            return any(is_error_text(value, caught) for value in values)
        case _:
            return False


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a text of several words."""
    value = node.value if isinstance(node, ast.Constant) else ""
    return isinstance(value, str) and re.search(r"[a-z] |[^a-z] [a-z]", value) is not None


def is_separator(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not re.search("[a-z]", str(node.value))


def text_searches(tree: ast.Module) -> Iterator[int]:
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    names = {name for name in caught if name} | {"error"}
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                found = is_error_text(right, names) and not isinstance(right, ast.Name)
                found |= isinstance(right, ast.Name) and is_text(left)
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                found = is_error_text(left, names) and is_text(right)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[text, *_]):
                found = name in _SEARCHES and not is_separator(text)
                found &= is_error_text(value, names)
                found |= name in _PATTERNS and any(is_error_text(a, names) for a in node.args)
            case _:
                found = False
        if found:
            yield node.lineno  # type: ignore[attr-defined]


def test_no_code_depends_on_the_text_of_an_error() -> None:
    found = [
        f"{path}:{line}"
        for file in sorted(SOURCE.rglob("*.py"))
        if (path := str(file.relative_to(SOURCE))) not in FOREIGN_TEXT
        for line in text_searches(ast.parse(file.read_text()))
    ]
    assert not found, "compare the type or the reason of the error instead"


@pytest.mark.parametrize(
    "code",
    [
        'if "gone" in str(error): pass',
        'if "gone" not in error.message: pass',
        'if error.message.startswith("gone"): pass',
        'if "gone" in (error.details() or ""): pass',
        'if re.search("gone|lost", error.message): pass',
        'if error.message == "it is gone": pass',
        'if "it is gone" in text: pass',
        "problem, _, where = str(error).partition(sign)",
    ],
)
def test_searches_in_texts_are_found(code: str) -> None:
    assert list(text_searches(ast.parse(code))) == [1]

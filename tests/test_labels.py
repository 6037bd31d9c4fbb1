"""Each name is defined once, in `winpod.labels`, and docs/labels.md lists them all."""

import ast
import re
from pathlib import Path

from winpod import labels
from winpod.labels import NAMES, render_document

ROOT = Path(__file__).parents[1]
SOURCES = [p for p in (ROOT / "src").rglob("*.py") if p.name != "labels.py"]
_DISTINCT_KEYS = {name.key for name in NAMES if "/" in name.key or name.key.startswith("winpod-")}


def test_document_is_generated_from_the_table() -> None:
    assert (ROOT / "docs" / "labels.md").read_text() == render_document(), "run: make docs"


def test_every_constant_is_in_the_table() -> None:
    constants = {
        value
        for name, value in vars(labels).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert constants - {labels.MANAGED_BY_VALUE} == {name.key for name in NAMES} - {
        labels.MANAGED_BY_VALUE
    }


def test_no_other_module_contains_a_winpod_name() -> None:
    for path in SOURCES:
        assert not re.search(r"winpod\.dev", path.read_text()), path


def test_no_other_module_defines_a_listed_key() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in _DISTINCT_KEYS, f"{path}:{node.lineno}: {node.value}"


def test_keys_are_unique_for_each_kind_of_object() -> None:
    rows = [(name.key, name.kind, name.on) for name in NAMES]
    assert len(rows) == len(set(rows))

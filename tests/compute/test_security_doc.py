"""docs/security.md names only tests that exist."""

import re
from pathlib import Path

HOME = Path(__file__).parents[2]


def test_every_test_named_in_the_document_exists() -> None:
    text = (HOME / "docs/security.md").read_text()
    files = [HOME / name for name in re.findall(r"`((?:tests|src)/[\w/.]+\.py)`", text)]
    assert len(files) >= 4
    tests = "".join(file.read_text() for file in files)
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) >= 10
    assert {name for name in named if f"def {name}(" not in tests} == set()

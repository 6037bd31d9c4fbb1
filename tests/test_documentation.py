"""Links, file names and traced functions in the documentation exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("deploy/*.md"),
        *ROOT.glob("examples/*.md"),
    ]
)
DIRECTORIES = [ROOT / name for name in ("", "src/winpod", "tests", "tests/e2e")]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
PYTHON_FILE = re.compile(r"`([\w/.-]+\.py)`")
TRACE_STEP = re.compile(r"^\| \d+ \| (.*?) \| (.*?) \| (.*) \|$", re.MULTILINE)
CALL_IN_FILE = re.compile(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)")
NAME = re.compile(r"`([\w/.]+)`")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def traced_functions() -> Iterator[tuple[str, str]]:
    """Yield the files and functions of the traced paths in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    for files, functions, effect in TRACE_STEP.findall(text):
        if python_files := PYTHON_FILE.findall(files):
            for function in NAME.findall(functions):
                yield " ".join(python_files), function
        for file, called in CALL_IN_FILE.findall(effect):
            for function in NAME.findall(called):
                yield file, function


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_python_files_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for link, anchor in LINK.findall(text):
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
    for name in PYTHON_FILE.findall(text):
        assert any((directory / name).exists() for directory in DIRECTORIES), name


@pytest.mark.parametrize(("files", "function"), sorted(set(traced_functions())))
def test_traced_functions_exist(files: str, function: str) -> None:
    source = "".join((ROOT / "src/winpod" / file).read_text("utf-8") for file in files.split())
    for part in function.split("."):
        assert re.search(rf"\b(def|class) {part}\b", source), f"{files} does not define {part}"

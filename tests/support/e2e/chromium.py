"""Debian's Chromium in headless mode: the rendered document and a screenshot of a page."""

import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

_LOAD_MILLISECONDS = 4000
_TIMEOUT = 300
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def document(url: str, directory: Path) -> str:
    """Return the document after the page's script has run."""
    return _chromium(directory, "--dump-dom", url)


def screenshot(url: str, file: Path, *, size: tuple[int, int] = (1280, 900), dark: bool) -> None:
    wanted = ["--force-dark-mode"] if dark else []
    where = [f"--screenshot={file}", f"--window-size={size[0]},{size[1]}"]
    _chromium(file.parent, *where, "--hide-scrollbars", *wanted, url)


def _chromium(directory: Path, *arguments: str) -> str:
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("chromium is missing: apt-get install -y chromium", pytrace=False)
    done = subprocess.run(
        [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--no-proxy-server"),
            *(f"--user-data-dir={directory / 'chromium'}", f"--disk-cache-dir={directory / 'c'}"),
            f"--virtual-time-budget={_LOAD_MILLISECONDS}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def first_pixel(file: Path) -> tuple[int, ...]:
    """Return red, green and blue of the first pixel, which no PNG filter changes."""
    data = file.read_bytes()
    assert data.startswith(_SIGNATURE)
    packed, place = b"", len(_SIGNATURE)
    while place < len(data):
        length, kind = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8]
        if kind == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += 12 + length
    return tuple(zlib.decompress(packed)[1:4])


@dataclass
class Table:
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    columns_are_named: bool = True


class Tables(HTMLParser):
    """Tables of a document, by their labels."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, Table] = {}
        self._table = Table()
        self._cell: list[str] | None = None
        self._is_head = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "br":
            self.handle_data(" ")
        elif tag == "table":
            self._table = self.found[attributes.get("aria-labelledby") or ""] = Table()
        elif tag in ("thead", "tbody"):
            self._is_head = tag == "thead"
        elif tag == "tr" and not self._is_head:
            self._table.rows.append([])
        elif tag in ("th", "td"):
            self._cell = []
            if self._is_head:
                self._table.columns_are_named &= attributes.get("scope") == "col"

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._cell is not None:
            text = " ".join("".join(self._cell).split())
            (self._table.head if self._is_head else self._table.rows[-1]).append(text)
            self._cell = None

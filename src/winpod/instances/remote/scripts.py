r"""Batch files: the one form in which anything is run on an instance.

The user's shell there may be cmd or PowerShell, so nothing is said to it but the name of a batch
file. A file carries any argument, whatever quotes it has, and shows it in no list of processes. An
answer is cut into sections by a line that nobody else can print.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from winpod.instances.errors import Unreachable
from winpod.windows.command_line import quote
from winpod.windows.errors import InvalidInput, WinpodError

LONGEST_LINE = 8191
_META = frozenset('()^"<>&|')


class OddAnswer(WinpodError):
    """An instance said something that no Windows Server is known to say."""

    code = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class Section:
    """What one part of a script printed, and the exit code of its last command."""

    text: str
    code: int


def word(text: str) -> str:
    """An argument that arrives as it is at a program, which splits its command line itself.

    A quote means one thing to cmd and another to the program; so cmd is shown no quotes at all.
    """
    _refuse_line_breaks(text)
    return "".join(_literal(character) for character in quote(text))


def place(path: str) -> str:
    """A path as an argument of cmd's own commands (`if exist`, `move`, `rd`)."""
    _refuse_line_breaks(path)
    if '"' in path:
        raise InvalidInput(f"the path {path} has a quote in it.", "Windows has no such paths.")
    return '"' + path.replace("%", "%%") + '"'


def call(program: str, *arguments: str) -> str:
    """A line that runs a program, whose own name is cmd's to read."""
    return " ".join([place(program) if " " in program else program, *map(word, arguments)])


def batch(lines: Iterable[str]) -> bytes:
    """A batch file. What it prints is UTF-8, as far as programs follow the console."""
    written = ["@echo off", "chcp.com 65001 >nul", *lines]
    for line in written:
        if len(line) > LONGEST_LINE:
            raise InvalidInput(
                f"a command has {len(line)} characters, and cmd takes {LONGEST_LINE}: "
                f"{line[:60]}...",
                "Shorten the service's command line.",
            )
    return "".join(f"{line}\r\n" for line in written).encode()


def in_sections(parts: Iterable[Sequence[str]]) -> tuple[bytes, str]:
    """A batch file of several parts, and the mark that `read_sections` finds their ends by."""
    mark = f"##{secrets.token_hex(8)}"
    lines = [line for part in parts for line in (*part, f"echo {mark} %errorlevel%")]
    return batch(lines), mark


def read_sections(output: str, mark: str, count: int) -> list[Section]:
    pieces = re.split(rf"{re.escape(mark)} (-?\d+)[^\n]*\n?", output)
    found = [
        Section(text, int(code)) for text, code in zip(pieces[::2], pieces[1::2], strict=False)
    ]
    if len(found) != count:
        raise Unreachable(
            f"an answer of {count} parts broke off after {len(found)}: {last_line(pieces[-1])}.",
            "The host may have been shut down; try again.",
        )
    return found


def decode(data: bytes) -> str:
    """Text in UTF-8, or in the code page that programs of 1981 had."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("cp437")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def last_line(text: str) -> str:
    """The last line with something on it, for a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else "nothing was said"


def _literal(character: str) -> str:
    if character == "%":
        return "%%"
    return f"^{character}" if character in _META else character


def _refuse_line_breaks(text: str) -> None:
    if any(character in text for character in "\r\n\0"):
        raise InvalidInput(
            f"{text!r} has a line break, which no command line can carry.",
            "Take it out of the settings.",
        )

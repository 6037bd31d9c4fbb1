"""Batch files, the only form in which commands run on an instance, and PowerShell statements.

The user's shell may be cmd or PowerShell, so it only gets the name of a batch file. A file can
carry any argument, whatever quotes it has, and keeps it out of process lists. Output is split into
sections by a random marker line.

PowerShell is used only for what Windows Server 2019 to 2025 offers in no other way. Each statement
is free of double quotes, so that it is one argument of one call.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winpod.errors import InvalidInput, WinpodError
from winpod.instances.errors import InstanceUnreachable
from winpod.instances.planner.state import Network
from winpod.windows.command_line import quote

MAX_LINE = 8191
_META = frozenset('()^"<>&|')


class UnexpectedOutput(WinpodError):
    """Output that no known Windows Server prints."""

    code = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class ScriptSection:
    """Output of one part of a script, and the exit code of its last command."""

    text: str
    code: int


def quote_argument(text: str) -> str:
    """Quote an argument for a program that splits its command line itself.

    cmd and the program interpret quotes differently, so all quotes are escaped for cmd.
    """
    _reject_line_breaks(text)
    return "".join(_escape(character) for character in quote(text))


def quote_path(path: str) -> str:
    """Quote a path for built-in commands of cmd (`if exist`, `move`, `rd`)."""
    _reject_line_breaks(path)
    if '"' in path:
        raise InvalidInput(
            f"the path {path} contains a quote.", "Windows paths cannot contain quotes."
        )
    return '"' + path.replace("%", "%%") + '"'


def call_program(program: str, *arguments: str) -> str:
    """Return the line that runs a program; its name is parsed by cmd, its arguments are not."""
    return " ".join(
        [quote_path(program) if " " in program else program, *map(quote_argument, arguments)]
    )


def batch_file(lines: Iterable[str]) -> bytes:
    """Return a batch file that switches the console to UTF-8, as far as programs follow it."""
    written = ["@echo off", "chcp.com 65001 >nul", *lines]
    for line in written:
        if len(line) > MAX_LINE:
            raise InvalidInput(
                f"a command has {len(line)} characters, and the limit of cmd is {MAX_LINE}: "
                f"{line[:60]}...",
                "Shorten the service's command line.",
            )
    return "".join(f"{line}\r\n" for line in written).encode()


def sectioned_batch(parts: Iterable[Sequence[str]]) -> tuple[bytes, str]:
    """Return a batch file of several parts, and the marker that ends each."""
    marker = f"##{secrets.token_hex(8)}"
    lines = [line for part in parts for line in (*part, f"echo {marker} %errorlevel%")]
    return batch_file(lines), marker


def read_sections(output: str, marker: str, count: int) -> list[ScriptSection]:
    pieces = re.split(rf"{re.escape(marker)} (-?\d+)[^\n]*\n?", output)
    sections = [
        ScriptSection(text, int(code))
        for text, code in zip(pieces[::2], pieces[1::2], strict=False)
    ]
    if len(sections) != count:
        raise InstanceUnreachable(
            f"the output ended after {len(sections)} of {count} sections: {last_line(pieces[-1])}.",
            "The host may have been shut down; try again.",
        )
    return sections


def decode_output(data: bytes) -> str:
    """Decode UTF-8, or else code page 437."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("cp437")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def last_line(text: str) -> str:
    """Return the last line that is not empty, for an error message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:300] if lines else "no output"


def _escape(character: str) -> str:
    if character == "%":
        return "%%"
    return f"^{character}" if character in _META else character


def _reject_line_breaks(text: str) -> None:
    if any(character in text for character in "\r\n\0"):
        raise InvalidInput(
            f"{text!r} has a line break, which a command line cannot contain.",
            "Remove it from the settings.",
        )


BOOTED = "(Get-CimInstance -ClassName Win32_OperatingSystem).LastBootUpTime.ToFileTimeUtc()"
FREE_BYTES = "(Get-PSDrive -Name C).Free"
NETWORKS = "Get-HnsNetwork | Select-Object -Property Id, Name, Type | ConvertTo-Json -Compress"

_NETWORKS_HINT = "Run Get-HnsNetwork there, and check that the service hns is running."
_NETWORK_ID = re.compile(r"[0-9A-Fa-f-]{36}")


def powershell(*statements: str) -> str:
    return call_program(
        "powershell.exe", "-NoProfile", "-NonInteractive", "-Command", "; ".join(statements)
    )


def remove_network(network_id: str) -> str:
    if not _NETWORK_ID.fullmatch(network_id):
        raise InvalidInput(f"{network_id} is not a network ID.", _NETWORKS_HINT)
    return powershell(
        f"Get-HnsNetwork | Where-Object {{ $_.Id -eq '{network_id}' }} | Remove-HnsNetwork"
    )


def read_networks(text: str) -> tuple[Network, ...]:
    """Parse one object, a list of objects, or empty output."""
    if not text.strip():
        return ()
    try:
        document = json.loads(text)
    except ValueError as error:
        output = text.strip()[:200]
        raise UnexpectedOutput(
            f"Get-HnsNetwork printed no JSON: {output}.", _NETWORKS_HINT
        ) from error
    networks = document if isinstance(document, list) else [document]
    return tuple(map(_network, networks))


def _network(item: Any) -> Network:
    if not isinstance(item, Mapping):
        raise UnexpectedOutput(
            f"Get-HnsNetwork listed an item that is not a network: {item!r:.200}.", _NETWORKS_HINT
        )
    values = {str(key).lower(): value for key, value in item.items()}
    return Network(*(str(values.get(key) or "") for key in ("id", "name", "type")))

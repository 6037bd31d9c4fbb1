"""Options and output helpers shared by the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from winpod.compute.hypervisor.accelerator import Accelerator

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Data directory (default: $WINPOD_ROOT).",
        show_default=False,
    ),
]


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig (default: $KUBECONFIG, then ~/.kube/config).",
    ),
]


def default_kubeconfig() -> Path:
    path = os.environ.get("KUBECONFIG", "").partition(":")[0]
    return Path(path or "~/.kube/config").expanduser()


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="Output format.")]


def human_size(size: float) -> str:
    """Format a size in decimal units, as docker does: `512 B`, `1.2 MB`, `3.45 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def emulation_note(accelerator: str) -> str:
    """Mark emulated microVMs, which are many times slower."""
    return " (emulated)" if accelerator == Accelerator.EMULATION else ""


def format_age(seconds: float) -> str:
    """Format an age in its largest unit: `5 minutes`, `2 hours`."""
    for name, length in _UNITS:
        if (count := int(seconds // length)) > 0:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a second"


def short_id(digest: str) -> str:
    """Return the first twelve digits of an id or digest."""
    return digest.rpartition(":")[2][:12]


def print_table(
    columns: Sequence[str], rows: Collection[Sequence[str]], right: Collection[str] = ()
) -> None:
    """Print a rich table on a terminal, aligned text otherwise; align `right` columns right."""
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in (columns, *rows):
            print("  ".join(map(str.ljust, row, widths)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)

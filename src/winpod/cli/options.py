"""Options and forms of output that commands share, so that they read the same everywhere."""

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
        help="Where winpod keeps things, else $WINPOD_ROOT.",
        show_default=False,
    ),
]


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="The cluster, else $KUBECONFIG, else ~/.kube/config."
    ),
]


def usual_kubeconfig() -> Path:
    told = os.environ.get("KUBECONFIG", "").partition(":")[0]
    return Path(told or "~/.kube/config").expanduser()


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="How to print it.")]


def human_size(size: float) -> str:
    """`512 B`, `1.2 MB`, `3.45 GB`, as docker counts them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def emulated(accelerator: str) -> str:
    """What people should see at once: it is many times slower."""
    return " (emulated)" if accelerator == Accelerator.EMULATION else ""


def ago(seconds: float) -> str:
    """`5 minutes`, `2 hours`: the largest unit that fits."""
    for name, length in _UNITS:
        if (count := int(seconds // length)) > 0:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a second"


def short_id(digest: str) -> str:
    """The twelve digits that people read, of an id or a digest."""
    return digest.rpartition(":")[2][:12]


def print_table(
    columns: Sequence[str], rows: Collection[Sequence[str]], right: Collection[str] = ()
) -> None:
    """A table on a terminal, and aligned text elsewhere; the `right` columns are numbers."""
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

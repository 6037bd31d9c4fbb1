"""Options and output helpers shared by the commands."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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


def kubeconfig_files(kubeconfig: Path | None) -> tuple[Path, ...]:
    """Return the files to merge, as kubectl does: the option, $KUBECONFIG, or ~/.kube/config."""
    if kubeconfig:
        return (kubeconfig,)
    names = filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep))
    return tuple(map(Path, names)) or (Path("~/.kube/config").expanduser(),)


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="Output format.")]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Expand each dataclass parameter of a command into the options declared by its fields.

    A field is declared like a parameter: `Annotated[type, typer.Option(...)] = default`. The
    options appear in the order of the parameters, and within a dataclass in that of its fields.
    """
    given = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in given
        if is_dataclass(parameter.annotation)
    }
    parameters = [
        option
        for parameter in given
        for option in (
            _options_of(groups[parameter.name])
            if parameter.name in groups
            else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    ]

    @wraps(command)
    def wrapper(**values: Any) -> None:
        options = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **options)

    wrapper.__annotations__ = {option.name: option.annotation for option in parameters}
    wrapper.__dict__["__signature__"] = inspect.Signature(parameters)
    return wrapper


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=hints[field.name],
        )


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

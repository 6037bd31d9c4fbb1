"""The `winpod` command: collects the commands and is the one place where errors become text."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from winpod import __version__
from winpod.cli.lazy import LazyGroup
from winpod.windows.errors import WinpodError

BAD_INPUT = 2
IO_ERROR = 74
INTERRUPTED = 130
NOBODY_READS = 141
STDOUT = 1

app = typer.Typer(
    name="winpod",
    cls=LazyGroup,
    help="Windows pods anywhere Kubernetes runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"winpod {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del version  # handled by its callback


def main() -> None:
    _open_output()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except WinpodError as error:
        print(f"winpod: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        print(f"winpod: {error.filename or 'the output'}: {error.strerror}.", file=sys.stderr)
        _drop_output()
        sys.exit(IO_ERROR)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # which the command line takes for a 1
            _drop_output()
            sys.exit(NOBODY_READS)
        raise


def _open_output() -> None:
    """Something to write to, even if it was closed, that takes every character."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """So that what is still to be written is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)

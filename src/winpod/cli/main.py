"""The `winpod` command: collects the commands and is the one place where errors become text."""

import os
import sys
from typing import Annotated

import typer

from winpod import __version__
from winpod.cli import check, image, images, pull, rmi
from winpod.windows.errors import WinpodError

BAD_INPUT = 2

app = typer.Typer(
    name="winpod",
    help="Windows pods anywhere Kubernetes runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(check.command)
app.add_typer(image.app, name="image")
app.command("pull")(pull.command)
app.command("images")(images.command)
app.command("rmi")(rmi.command)


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
    try:
        app()
    except WinpodError as error:
        print(f"winpod: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)

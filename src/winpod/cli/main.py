"""The `winpod` entry point: dispatches to the commands and prints errors.

Each command module is imported when the command is called, so that `ps` does not pay for the
dependencies of `pull`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from winpod import __version__
from winpod.cli.extras import EXTRAS, requires_extra
from winpod.errors import ERROR_FILE_VARIABLE, WinpodError

COMMANDS = {
    "check": "Check whether manifests can run on Windows nodes.",
    "play": "Run Kubernetes manifests on this machine without a cluster.",
    "down": "Delete the objects created by `winpod play`.",
    "run": "Run a Windows container.",
    "ps": "List containers.",
    "logs": "Print the logs of a container.",
    "exec": "Execute a command in a running container.",
    "attach": "Attach to a running container.",
    "port-forward": "Forward local ports to a pod.",
    "describe": "Show details of an object created by `winpod play`.",
    "events": "List events of objects created by `winpod play`.",
    "stop": "Stop running containers.",
    "rm": "Remove containers.",
    "inspect": "Show details of containers as JSON.",
    "stats": "Show resource usage of containers.",
    "update": "Update the resource limits of running containers.",
    "image": "Build and inspect Windows images.",
    "pull": "Pull a Windows image for a runtime handler.",
    "images": "List pulled images.",
    "rmi": "Remove images.",
    "doctor": "Check that this machine can run Windows containers.",
    "base": "Manage the Wine base that containers run on.",
    "node": "Join a Kubernetes cluster as one or more Windows nodes.",
    "operator": "Run the operator for the Windows nodes of a cluster.",
    "instance": "Turn Windows Server machines into nodes over SSH.",
    "upgrade": "Upgrade a cluster from one Windows Server release to another.",
    "explain": "Explain why a pod of a cluster is placed on its node, or why it is pending.",
    "runtimeclass": "Generate RuntimeClasses for the Windows nodes of a cluster.",
    "runtime": "Run the CRI v1 runtime service for Windows containers.",
}
"""Every command with the first line of its help. A test compares both."""

_MODULES = {
    "check": "check.command",
    "explain": "check.explain",
    "instance": "instance.command",
    "play": "play.command",
    **{name: f"play.{name}" for name in ("describe", "down", "events")},
    "images": "images.list",
    **{name: f"images.{name}" for name in ("base", "image", "pull", "rmi")},
    "port-forward": "containers.port_forward",
    **{
        name: f"containers.{name}"
        for name in (
            *("attach", "exec", "inspect", "logs", "ps", "rm", "run", "stats", "stop", "update"),
        )
    },
}
"""Command modules below winpod.cli whose name differs from the command's."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"allow_interspersed_args": False, "help_option_names": ["--help"]},
    "exec": {"allow_interspersed_args": False},
}
"""Arguments after the image or container belong to the program; -h is docker's --hostname."""


class LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stub with name and summary, sufficient for the list of commands."""
        del ctx
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name], add_help_option=False)
        return None

    def resolve_command(self, ctx: Any, args: Sequence[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, list(args))
        return name, load(name) if name and command else command, rest


def module_of(name: str) -> str:
    return f"winpod.cli.{_MODULES.get(name, name)}"


def load(name: str) -> Any:
    """Import and return the complete command."""
    with requires_extra(name, EXTRAS.get(name, "all")):
        module = import_module(module_of(name))
    if hasattr(module, "app"):
        group: Any = typer.main.get_command(module.app)
        group.name = name
        return group
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = _SETTINGS.get(name, {})
    app.command(name, context_settings=settings)(module.command)
    return typer.main.get_command(app)


BAD_INPUT = 2
IO_ERROR = 74
INTERRUPTED = 130
BROKEN_PIPE = 141
STDOUT = 1

app = typer.Typer(
    name="winpod",
    cls=LazyGroup,
    help="Windows pods anywhere Kubernetes runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
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
        _report(error)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        _report(WinpodError(f"{error.filename or 'stdout'}: {error.strerror}."))
        _drop_output()
        sys.exit(IO_ERROR)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # which click turns into exit code 1
            _drop_output()
            sys.exit(BROKEN_PIPE)
        raise


def _report(error: WinpodError) -> None:
    """Print the error, and write it for the process that started this one in the background."""
    print(f"winpod: {error}", file=sys.stderr)
    if file := os.environ.get(ERROR_FILE_VARIABLE):
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps(error.to_dict()))


def _open_output() -> None:
    """Ensure a stdout that exists and can encode every character."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - kept open
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Redirect stdout to /dev/null so that the final flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)

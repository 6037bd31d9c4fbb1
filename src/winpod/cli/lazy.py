"""The commands, each imported when it is called: a `ps` should not wait for what a `pull` needs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "check": "Say whether manifests will run on Windows nodes, where, and if not, why and what "
    "to change.",
    "play": "Run manifests on this machine: Windows pods of any build, with no cluster.",
    "down": "End what `play` runs: all of it, or what these manifests asked for.",
    "run": "Run a Windows container, with its output and its exit code.",
    "ps": "List the containers that run, whoever started them.",
    "logs": "Print what a container wrote.",
    "exec": "Run a further program in a container that runs.",
    "attach": "Join the program of a container that runs.",
    "port-forward": "Lead ports of this machine into a pod, until Ctrl-C.",
    "describe": "Tell all about one object that is played, and why its pods are where they are.",
    "events": "Tell what has happened to pods and workloads, the oldest first.",
    "stop": "Stop containers: they are asked to end, and killed if they do not.",
    "rm": "Remove containers that have ended.",
    "inspect": "Tell all that is known about containers, as JSON.",
    "stats": "Show what containers use.",
    "update": "Change the limits of containers while they run; a microVM grows with what is in it.",
    "image": "Make Windows images and look into them.",
    "pull": "Pull a Windows image for a handler: the manifest that its build runs, and its layers.",
    "images": "List the images that were pulled: each name, for each handler.",
    "rmi": "Remove images with all their names, and the content that no other image needs.",
    "base": "Build, show and remove the Windows that containers run on.",
    "node": "Join a Kubernetes cluster as Windows nodes, and run the pods that it sends.",
    "operator": (
        "Look after a cluster's Windows nodes: RuntimeClasses, admission, upgrades, and instances."
    ),
    "instance": "Make nodes of Windows Server machines, over SSH.",
    "upgrade": "Move a cluster from one Windows Server to the next, safely.",
    "explain": "Say why a pod of a cluster is where it is, or why it waits, and what to change.",
    "runtimeclass": "Write the RuntimeClasses that a cluster's Windows nodes give reason for.",
    "runtime": "Run Windows containers for whoever speaks CRI v1.",
}
"""Each with the first line of its help; its module has the same name, with _ for -."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"allow_interspersed_args": False, "help_option_names": ["--help"]},
    "exec": {"allow_interspersed_args": False},
}
"""What follows the image, or the container, is the program's; -h is docker's --hostname."""


class LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Its name and summary, which is all that a list of commands needs."""
        del ctx
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name], add_help_option=False)
        return None

    def resolve_command(self, ctx: Any, args: Sequence[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, list(args))
        return name, load(name) if name and found else found, rest


def load(name: str) -> Any:
    """The whole command."""
    module = import_module(f"winpod.cli.{name.replace('-', '_')}")
    if hasattr(module, "app"):
        group: Any = typer.main.get_command(module.app)
        group.name = name
        return group
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = _SETTINGS.get(name, {})
    app.command(name, context_settings=settings)(module.command)
    return typer.main.get_command(app)

"""What is asked of an upgrade on the command line: the same for its plan and for itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from winpod.cli.options import Kubeconfig
from winpod.cluster.upgrade.asked import Asked, OldNodes, Way, read_asked, write_asked


@dataclass(frozen=True, slots=True)
class Wanted:
    old: Annotated[
        str, typer.Option("--from", metavar="BUILD", help="The old nodes' Windows: 2019.")
    ]
    new: Annotated[str, typer.Option("--to", metavar="BUILD", help="The new nodes' Windows: 2022.")]
    way: Annotated[
        Way,
        typer.Option(
            help="A new class; the same class, with the old kernel in a guest; or only its "
            "selector.",
        ),
    ] = Way.NEW_CLASS
    patch_workloads: Annotated[
        bool,
        typer.Option(
            "--patch-workloads", help="Change workloads that name an old class or select old nodes."
        ),
    ] = False
    leave_behind: Annotated[
        bool,
        typer.Option(
            "--leave-behind", help="Go on where workloads cannot move, and leave them there."
        ),
    ] = False
    old_nodes: Annotated[
        OldNodes, typer.Option(help="What becomes of them when they are empty.")
    ] = OldNodes.KEEP
    patience: Annotated[
        int,
        typer.Option(metavar="SECONDS", min=1, help="Of one step, before everything is undone."),
    ] = 1800
    kubeconfig: Kubeconfig = None
    layout: Annotated[
        list[Path] | None,
        typer.Option(help="OCI layout to look images up in first. May be repeated."),
    ] = None
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no registry: layouts and what is cached.")
    ] = False
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The operator's settings.")
    ] = None

    @property
    def asked(self) -> Asked:
        builds = read_asked({"from": self.old, "to": self.new})
        return Asked(
            builds.old,
            builds.new,
            self.way,
            self.patch_workloads,
            self.leave_behind,
            self.old_nodes,
            self.patience,
        )

    @property
    def spec(self) -> dict[str, Any]:
        return write_asked(self.asked)


def wanting(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is a `Wanted` has its fields as options, before its own."""
    hints = get_type_hints(Wanted, include_extras=True)
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(Wanted)
    ]

    @wraps(command)
    def called(**given: Any) -> None:
        wanted = Wanted(**{option.name: given.pop(option.name) for option in options})
        command(wanted, **given)

    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    called.__dict__["__signature__"] = inspect.Signature([*options, *keyword_only])
    return called

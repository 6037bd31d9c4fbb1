"""`winpod upgrade`: from one Windows Server to the next, planned here and done by the operator."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from winpod.cli.options import Kubeconfig, usual_kubeconfig
from winpod.cli.runtimeclass import read_settings_file
from winpod.cli.upgrade_progress import follow
from winpod.cluster.upgrade.asked import Asked, OldNodes, Way, read_asked, write_asked
from winpod.cluster.upgrade.plan import Plan
from winpod.cluster.upgrade.progress import DONE, is_settled, planned_status
from winpod.cluster.upgrade.report import to_json, to_markdown
from winpod.cluster.upgrade.resource import UPGRADES, Metadata, Status, WindowsUpgrade
from winpod.cluster.upgrade.steps import MERGE
from winpod.cluster.upgrade.survey import Survey, asking
from winpod.images.source import ImageSources
from winpod.node.access import read_kubeconfig
from winpod.node.api import ApiServer, Refused
from winpod.windows.errors import InvalidInput, NotFound

app = typer.Typer(help="Move a cluster from one Windows Server to the next, safely.")


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


From = Annotated[str, typer.Option("--from", metavar="BUILD", help="The old nodes' Windows: 2019.")]
To = Annotated[str, typer.Option("--to", metavar="BUILD", help="The new nodes' Windows: 2022.")]
HowWay = Annotated[
    Way,
    typer.Option(
        "--way",
        help="A new class; the same class, with the old kernel in a guest; or only its selector.",
    ),
]
Patch = Annotated[
    bool,
    typer.Option(
        "--patch-workloads", help="Change workloads that name an old class or select old nodes."
    ),
]
Leave = Annotated[
    bool,
    typer.Option("--leave-behind", help="Go on where workloads cannot move, and leave them there."),
]
Old = Annotated[
    OldNodes, typer.Option("--old-nodes", help="What becomes of them when they are empty.")
]
Patience = Annotated[
    int,
    typer.Option(
        "--patience", metavar="SECONDS", min=1, help="Of one step, before everything is undone."
    ),
]
Layouts = Annotated[
    list[Path] | None,
    typer.Option("--layout", help="OCI layout to look images up in first. May be repeated."),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Ask no registry: layouts and what is cached.")
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The operator's settings.")
]
Form = Annotated[Output, typer.Option("--output", "-o", help="Form of the report.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Name = Annotated[str, typer.Argument(metavar="[NAME]", help="The upgrade, if there are several.")]


@app.callback()
def _group() -> None:
    """Move a cluster from one Windows Server to the next, safely."""


@app.command("plan")
def plan(
    old: From,
    new: To,
    way: HowWay = Way.NEW_CLASS,
    patch_workloads: Patch = False,
    leave_behind: Leave = False,
    old_nodes: Old = OldNodes.KEEP,
    patience: Patience = 1800,
    kubeconfig: Kubeconfig = None,
    layout: Layouts = None,
    offline: Offline = False,
    config: Config = None,
    output: Form = Output.TEXT,
) -> None:
    """Say who can move, who cannot and why, and in which steps; nothing is changed.

    Exit code: 0 everything can move, 1 something stays, 2 bad input.
    """
    spec = _spec(old, new, way, patch_workloads, leave_behind, old_nodes, patience)
    made = asyncio.run(_plan(kubeconfig, read_asked(spec), layout, offline, config))
    _print(made.asked.name, spec, planned_status(made), output)
    raise typer.Exit(1 if made.staying or made.blockers else 0)


@app.command("apply")
def apply(
    old: From,
    new: To,
    way: HowWay = Way.NEW_CLASS,
    patch_workloads: Patch = False,
    leave_behind: Leave = False,
    old_nodes: Old = OldNodes.KEEP,
    patience: Patience = 1800,
    kubeconfig: Kubeconfig = None,
    layout: Layouts = None,
    offline: Offline = False,
    config: Config = None,
    yes: Yes = False,
    output: Form = Output.TEXT,
) -> None:
    """Show the plan, ask, and have the operator do it; its progress is shown until the end.

    Ctrl-C leaves the upgrade to the operator; `apply` again, or `status`, joins it.

    Exit code: 0 done, 1 undone or stopped, 2 bad input.
    """
    spec = _spec(old, new, way, patch_workloads, leave_behind, old_nodes, patience)
    asked = read_asked(spec)
    if not asyncio.run(_is_under_way(kubeconfig, asked.name)):
        made = asyncio.run(_plan(kubeconfig, asked, layout, offline, config))
        print(to_markdown(asked.name, spec, planned_status(made)), file=sys.stderr)
        if not yes:
            _confirm("Begin")
    ended = asyncio.run(_apply(kubeconfig, asked.name, spec))
    _print(ended.name, ended.spec, ended.status, output)
    raise typer.Exit(0 if ended.status.phase == DONE else 1)


@app.command("status")
def status(name: Name = "", kubeconfig: Kubeconfig = None, output: Form = Output.TEXT) -> None:
    """Report how far an upgrade is, or how it ended."""
    found = asyncio.run(_find(kubeconfig, name))
    _print(found.name, found.spec, found.status, output)


@app.command("undo")
def undo(
    name: Name = "", kubeconfig: Kubeconfig = None, yes: Yes = False, output: Form = Output.TEXT
) -> None:
    """Take back what an upgrade did, as far as it can be: removed nodes do not come back."""
    found = asyncio.run(_find(kubeconfig, name))
    if not yes:
        _confirm(f"Undo {found.name}")
    ended = asyncio.run(_undo(kubeconfig, found.name))
    _print(ended.name, ended.spec, ended.status, output)


def _spec(
    old: str,
    new: str,
    way: Way,
    patch_workloads: bool,
    leave_behind: bool,
    old_nodes: OldNodes,
    patience: int,
) -> dict[str, Any]:
    asked = read_asked({"from": old, "to": new})
    return write_asked(
        Asked(asked.old, asked.new, way, patch_workloads, leave_behind, old_nodes, patience)
    )


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput(f"{what}? Nobody is there to answer.", "Give --yes.")
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(1)


def _print(name: str, spec: dict[str, Any], told: Status, output: Output) -> None:
    if output is Output.JSON:
        print(json.dumps(to_json(name, spec, told), indent=2))
    else:
        print(to_markdown(name, spec, told), end="")


@asynccontextmanager
async def _server(kubeconfig: Path | None) -> AsyncIterator[ApiServer]:
    api = ApiServer(read_kubeconfig(kubeconfig or usual_kubeconfig()))
    try:
        yield api
    except Refused as error:
        if error.is_missing:
            raise NotFound(
                "this cluster knows no upgrades: the resource windowsupgrades.winpod.dev is "
                "missing.",
                "Install the operator first.",
            ) from error
        raise
    finally:
        await api.close()


async def _plan(
    kubeconfig: Path | None,
    asked: Asked,
    layouts: list[Path] | None,
    offline: bool,
    config: Path | None,
) -> Plan:
    settings = read_settings_file(config)
    sources = ImageSources(layouts=layouts or (), offline=offline, sizes=False)
    async with _server(kubeconfig) as api, sources:
        survey = Survey(api, lambda: settings, asking(sources))
        _, made = await survey.plan(asked)
        return made


async def _is_under_way(kubeconfig: Path | None, name: str) -> bool:
    async with _server(kubeconfig) as api:
        await api.request("GET", UPGRADES)
        there = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
        return there is not None and not is_settled(there)


async def _apply(kubeconfig: Path | None, name: str, spec: dict[str, Any]) -> WindowsUpgrade:
    """One that is over makes room for the next; one that is under way is told the rest anew."""
    async with _server(kubeconfig) as api:
        there = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
        if there and is_settled(there):
            await api.delete(f"{UPGRADES}/{name}", {})
        if there is None or is_settled(there):
            await api.create(UPGRADES, WindowsUpgrade(Metadata(name), spec))
        else:
            await _change(api, name, spec)
        return await follow(api, name)


async def _find(kubeconfig: Path | None, name: str) -> WindowsUpgrade:
    async with _server(kubeconfig) as api:
        listed = (await api.list(WindowsUpgrade, UPGRADES, {})).items
    found = [upgrade for upgrade in listed if name in ("", upgrade.name)]
    if not found:
        raise NotFound(f"there is no upgrade{f' {name}' if name else ''} in this cluster.")
    if len(found) > 1:
        names = ", ".join(upgrade.name for upgrade in found)
        raise InvalidInput(f"there are several upgrades: {names}.", "Say which.")
    return found[0]


async def _undo(kubeconfig: Path | None, name: str) -> WindowsUpgrade:
    async with _server(kubeconfig) as api:
        await _change(api, name, {"undo": True})
        return await follow(api, name)


async def _change(api: ApiServer, name: str, spec: dict[str, Any]) -> None:
    await api.request("PATCH", f"{UPGRADES}/{name}", {"spec": spec}, content=MERGE)

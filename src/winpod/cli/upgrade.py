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
from winpod.cli.upgrade_options import Wanted, wanting
from winpod.cli.upgrade_progress import follow, until_gone
from winpod.cluster.custom_resources import Metadata
from winpod.cluster.upgrade.objects import MERGE
from winpod.cluster.upgrade.plan import Plan
from winpod.cluster.upgrade.progress import DONE, blockers, is_settled, planned_status
from winpod.cluster.upgrade.report import to_json, to_markdown
from winpod.cluster.upgrade.resource import UPGRADES, Status, WindowsUpgrade
from winpod.cluster.upgrade.survey import Survey, asking
from winpod.images.source import ImageSources
from winpod.node.access import read_kubeconfig
from winpod.node.api import ApiServer, Refused
from winpod.windows.errors import InvalidInput, NotFound, Unavailable

app = typer.Typer(help="Move a cluster from one Windows Server to the next, safely.")
_OFFLINE = (
    "no registry was asked (offline): what a tag names may have changed since; the operator asks"
)


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


Form = Annotated[Output, typer.Option("--output", "-o", help="Form of the report.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Name = Annotated[str, typer.Argument(metavar="[NAME]", help="The upgrade, if there are several.")]


@app.callback()
def _group() -> None:
    """Move a cluster from one Windows Server to the next, safely."""


@app.command("plan")
@wanting
def plan(wanted: Wanted, output: Form = Output.TEXT) -> None:
    """Say who can move, who cannot and why, and in which steps; nothing is changed.

    Exit code: 0 everything can move, 1 something stays, 2 bad input.
    """
    made = asyncio.run(_plan(wanted))
    _print(wanted.asked.name, wanted.spec, _planned(wanted, made), output)
    raise typer.Exit(1 if made.staying or blockers(made) else 0)


@app.command("apply")
@wanting
def apply(wanted: Wanted, yes: Yes = False, output: Form = Output.TEXT) -> None:
    """Show the plan, ask, and have the operator do it; its progress is shown until the end.

    Ctrl-C leaves the upgrade to the operator; `apply` again, or `status`, joins it.

    Exit code: 0 done, 1 undone or stopped, 2 bad input.
    """
    name = wanted.asked.name
    if not asyncio.run(_is_under_way(wanted.kubeconfig, name)):
        planned = _planned(wanted, asyncio.run(_plan(wanted)))
        print(to_markdown(name, wanted.spec, planned), file=sys.stderr)
        if not yes:
            _confirm("Begin")
    ended = asyncio.run(_apply(wanted.kubeconfig, name, wanted.spec))
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


async def _plan(wanted: Wanted) -> Plan:
    settings = read_settings_file(wanted.config)
    layouts, offline = wanted.layout or (), wanted.offline
    sources = ImageSources(layouts=layouts, offline=offline, sizes=False)
    async with _server(wanted.kubeconfig) as api, sources:
        survey = Survey(api, lambda: settings, asking(sources))
        return await survey.plan(wanted.asked, await survey.scene(wanted.asked))


def _planned(wanted: Wanted, made: Plan) -> Status:
    status = planned_status(made)
    if wanted.offline:
        status.notes.append(_OFFLINE)
    return status


async def _is_under_way(kubeconfig: Path | None, name: str) -> bool:
    async with _server(kubeconfig) as api:
        await api.request("GET", UPGRADES)
        there = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
    if there is None or is_settled(there):
        return False
    if there.is_leaving:
        raise Unavailable(
            f"the upgrade {name} is being deleted, and what it did is undone first.",
            "Apply again when `winpod upgrade status` knows it no longer.",
        )
    return True


async def _apply(kubeconfig: Path | None, name: str, spec: dict[str, Any]) -> WindowsUpgrade:
    """One that is over makes room for the next; one that is under way is told the rest anew."""
    async with _server(kubeconfig) as api:
        there = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
        if there and is_settled(there):
            await api.delete(f"{UPGRADES}/{name}", {})
            await until_gone(api, name)
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

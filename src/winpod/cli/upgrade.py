"""`winpod upgrade`: upgrade a cluster from one Windows Server release to another.

The plan is computed here; the operator carries it out. `plan` and `apply` share their options.
`apply` and `undo` show the progress until the upgrade ends or needs a manual change.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from winpod.cli.options import Kubeconfig, kubeconfig_files, with_options
from winpod.cli.runtimeclass import read_settings_file
from winpod.errors import InvalidInput, NotFound, Unavailable
from winpod.images.lookup import ImageLookup
from winpod.images.resolver import ImageResolver
from winpod.k8s.client import MERGE_PATCH, ApiClient, ApiError
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.objects import ObjectMeta
from winpod.labels import API_GROUP
from winpod.operator.upgrade.plan import UpgradePlan
from winpod.operator.upgrade.progress import (
    BLOCKED,
    DONE,
    PENDING,
    RUNNING,
    blockers,
    is_settled,
    planned_status,
)
from winpod.operator.upgrade.report import to_json, to_markdown
from winpod.operator.upgrade.resource import PLURAL, UPGRADES, UpgradeStatus, WindowsUpgrade
from winpod.operator.upgrade.snapshot import SnapshotReader
from winpod.operator.upgrade.spec import (
    OldNodePolicy,
    UpgradeSpec,
    UpgradeStrategy,
    read_spec,
    write_spec,
)


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    old: Annotated[
        str,
        typer.Option(
            "--from", metavar="BUILD", help="Windows release of the old nodes, such as 2019."
        ),
    ]
    new: Annotated[
        str,
        typer.Option(
            "--to", metavar="BUILD", help="Windows release of the new nodes, such as 2022."
        ),
    ]
    way: Annotated[
        UpgradeStrategy,
        typer.Option(
            help="Create a new RuntimeClass, run the old kernel in a guest, or only change the "
            "class's selector.",
        ),
    ] = UpgradeStrategy.NEW_CLASS
    patch_workloads: Annotated[
        bool,
        typer.Option(
            "--patch-workloads", help="Patch workloads that name an old class or select old nodes."
        ),
    ] = False
    leave_behind: Annotated[
        bool,
        typer.Option(
            "--leave-behind",
            help="Continue even if some workloads cannot move, and leave them on old nodes.",
        ),
    ] = False
    old_nodes: Annotated[
        OldNodePolicy, typer.Option(help="What to do with the old nodes once they are drained.")
    ] = OldNodePolicy.KEEP
    patience: Annotated[
        int,
        typer.Option(
            metavar="SECONDS", min=1, help="Time limit of a step before the upgrade is rolled back."
        ),
    ] = 1800
    kubeconfig: Kubeconfig = None
    layout: Annotated[
        list[Path] | None,
        typer.Option(help="OCI layout to look up images in first. May be repeated."),
    ] = None
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Do not contact registries; use layouts and the cache."),
    ] = False
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings file of the operator.")
    ] = None

    @property
    def spec_model(self) -> UpgradeSpec:
        builds = read_spec({"from": self.old, "to": self.new})
        return UpgradeSpec(
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
        return write_spec(self.spec_model)


_POLL_SECONDS = 1.0
_OPERATOR_SECONDS = 30.0
_BLOCKED_SECONDS = 10.0


async def watch_upgrade(api: ApiClient, name: str) -> WindowsUpgrade:
    """Wait until the upgrade is done, rolled back, or blocked by something to fix manually.

    The cause of an earlier block may just have been fixed, so a block must persist to count.
    """
    waited_seconds = blocked_seconds = 0.0
    with _progress() as show:
        while upgrade := await api.get(WindowsUpgrade, f"{UPGRADES}/{name}"):
            status = upgrade.status
            is_observed = status.observed_generation == upgrade.metadata.generation
            show(status)
            blocked_seconds = (
                blocked_seconds + _POLL_SECONDS if is_observed and status.phase == BLOCKED else 0.0
            )
            if is_observed and (is_settled(upgrade) or blocked_seconds > _BLOCKED_SECONDS):
                return upgrade
            if not is_observed and waited_seconds >= _OPERATOR_SECONDS:
                raise Unavailable(
                    f"no operator has picked up the upgrade {name} within {waited_seconds:.0f} s.",
                    "Start one (winpod operator); the upgrade then continues.",
                )
            waited_seconds = 0.0 if is_observed else waited_seconds + _POLL_SECONDS
            await asyncio.sleep(_POLL_SECONDS)
    raise NotFound(f"the upgrade {name} was deleted and its changes were rolled back.")


async def wait_deleted(api: ApiClient, name: str) -> None:
    """Wait until the operator removes its finalizer from a deleted upgrade."""
    for _ in range(round(_OPERATOR_SECONDS / _POLL_SECONDS)):
        if await api.get(WindowsUpgrade, f"{UPGRADES}/{name}") is None:
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise Unavailable(
        f"the deleted upgrade {name} still has a finalizer, and no operator removes it.",
        "Start an operator: winpod operator.",
    )


@contextmanager
def _progress() -> Iterator[Callable[[UpgradeStatus], None]]:
    """Show a progress bar on a terminal, a line per change otherwise; both on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ProgressLines().show
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        Elapsed(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("waiting for the operator", total=None)

        def show(status: UpgradeStatus) -> None:
            done = sum(step.state not in (PENDING, RUNNING) for step in status.steps)
            text = f"{status.phase}: {status.message}" if status.phase else "waiting"
            total = len(status.steps) or None
            bar.update(task, completed=done, total=total, description=text)

        yield show


class _ProgressLines:
    def __init__(self) -> None:
        self._last = ""

    def show(self, status: UpgradeStatus) -> None:
        line = f"{status.phase}: {status.message}"
        if status.phase and line != self._last:
            print(f"winpod: {line}", file=sys.stderr, flush=True)
            self._last = line


app = typer.Typer(help="Upgrade a cluster from one Windows Server release to another.")
_OFFLINE = (
    "no registry was contacted (offline): tags may have moved; the operator resolves them again"
)


class UpgradeFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


Form = Annotated[UpgradeFormat, typer.Option("--output", "-o", help="Output format.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Name = Annotated[
    str, typer.Argument(metavar="[NAME]", help="Name of the upgrade, if there are several.")
]


@app.callback()
def _group() -> None:
    """Upgrade a cluster from one Windows Server release to another."""


@app.command("plan")
@with_options
def plan(options: UpgradeOptions, output: Form = UpgradeFormat.TEXT) -> None:
    """Show which workloads can move, which cannot and why, and the steps; change nothing.

    Exit code: 0 all workloads can move, 1 some cannot, 2 bad input.
    """
    upgrade_plan = asyncio.run(_plan(options))
    _print(options.spec_model.name, options.spec, _planned(options, upgrade_plan), output)
    raise typer.Exit(1 if upgrade_plan.moves_left_behind or blockers(upgrade_plan) else 0)


@app.command("apply")
@with_options
def apply(options: UpgradeOptions, yes: Yes = False, output: Form = UpgradeFormat.TEXT) -> None:
    """Show the plan, ask for confirmation, and start the upgrade.

    The operator carries it out; the progress is shown until the end. Ctrl-C does not stop the
    upgrade; `apply` or `status` shows it again.

    Exit code: 0 done, 1 rolled back or blocked, 2 bad input.
    """
    name = options.spec_model.name
    if not asyncio.run(_is_in_progress(options.kubeconfig, name)):
        planned = _planned(options, asyncio.run(_plan(options)))
        print(to_markdown(name, options.spec, planned), file=sys.stderr)
        if not yes:
            _confirm("Begin")
    upgrade = asyncio.run(_apply(options.kubeconfig, name, options.spec))
    _print(upgrade.name, upgrade.spec, upgrade.status, output)
    raise typer.Exit(0 if upgrade.status.phase == DONE else 1)


@app.command("status")
def status(
    name: Name = "", kubeconfig: Kubeconfig = None, output: Form = UpgradeFormat.TEXT
) -> None:
    """Show the progress or the result of an upgrade."""
    found = asyncio.run(_find(kubeconfig, name))
    _print(found.name, found.spec, found.status, output)


@app.command("undo")
def undo(
    name: Name = "",
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
    output: Form = UpgradeFormat.TEXT,
) -> None:
    """Roll back an upgrade as far as possible: removed nodes are not restored."""
    found = asyncio.run(_find(kubeconfig, name))
    if not yes:
        _confirm(f"Undo {found.name}")
    upgrade = asyncio.run(_undo(kubeconfig, found.name))
    _print(upgrade.name, upgrade.spec, upgrade.status, output)


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"{what}? Cannot ask for confirmation: stdin is not a terminal.", "Give --yes."
        )
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(1)


def _print(name: str, spec: dict[str, Any], status: UpgradeStatus, output: UpgradeFormat) -> None:
    if output is UpgradeFormat.JSON:
        print(json.dumps(to_json(name, spec, status), indent=2))
    else:
        print(to_markdown(name, spec, status), end="")


@asynccontextmanager
async def _api_client(kubeconfig: Path | None) -> AsyncIterator[ApiClient]:
    api = ApiClient(read_kubeconfig(*kubeconfig_files(kubeconfig)))
    try:
        yield api
    except ApiError as error:
        if error.is_not_found:
            raise NotFound(
                f"the cluster has no {PLURAL}.{API_GROUP} resource.",
                "Install the operator first.",
            ) from error
        raise
    finally:
        await api.close()


async def _plan(options: UpgradeOptions) -> UpgradePlan:
    settings = read_settings_file(options.config)
    layouts, offline = options.layout or (), options.offline
    sources = ImageResolver(layouts=layouts, offline=offline, sizes=False)
    async with _api_client(options.kubeconfig) as api, sources:
        images = ImageLookup(sources.describe)
        survey = SnapshotReader(api, lambda: settings, images.describe)
        try:
            return await survey.plan(options.spec_model, await survey.snapshot(options.spec_model))
        finally:
            await images.close()


def _planned(options: UpgradeOptions, upgrade_plan: UpgradePlan) -> UpgradeStatus:
    status = planned_status(upgrade_plan)
    if options.offline:
        status.notes.append(_OFFLINE)
    return status


async def _is_in_progress(kubeconfig: Path | None, name: str) -> bool:
    async with _api_client(kubeconfig) as api:
        await api.request("GET", UPGRADES)
        existing = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
    if existing is None or is_settled(existing):
        return False
    if existing.is_deleting:
        raise Unavailable(
            f"the upgrade {name} is being deleted and rolled back.",
            "Apply again when `winpod upgrade status` no longer lists it.",
        )
    return True


async def _apply(kubeconfig: Path | None, name: str, spec: dict[str, Any]) -> WindowsUpgrade:
    """Replace a finished upgrade of the same name; patch one that is in progress."""
    async with _api_client(kubeconfig) as api:
        existing = await api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
        if existing and is_settled(existing):
            await api.delete(f"{UPGRADES}/{name}", {})
            await wait_deleted(api, name)
        if existing is None or is_settled(existing):
            await api.create(UPGRADES, WindowsUpgrade(ObjectMeta(name), spec))
        else:
            await _change(api, name, spec)
        return await watch_upgrade(api, name)


async def _find(kubeconfig: Path | None, name: str) -> WindowsUpgrade:
    async with _api_client(kubeconfig) as api:
        listed = (await api.list(WindowsUpgrade, UPGRADES, {})).items
    found = [upgrade for upgrade in listed if name in ("", upgrade.name)]
    if not found:
        raise NotFound(f"the cluster has no upgrade{f' {name}' if name else ''}.")
    if len(found) > 1:
        names = ", ".join(upgrade.name for upgrade in found)
        raise InvalidInput(f"there are several upgrades: {names}.", "Name one of them.")
    return found[0]


async def _undo(kubeconfig: Path | None, name: str) -> WindowsUpgrade:
    async with _api_client(kubeconfig) as api:
        await _change(api, name, {"undo": True})
        return await watch_upgrade(api, name)


async def _change(api: ApiClient, name: str, spec: dict[str, Any]) -> None:
    await api.request("PATCH", f"{UPGRADES}/{name}", {"spec": spec}, content=MERGE_PATCH)

"""`winpod base`: build, show and remove the Windows that containers run on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from winpod.cli.options import Format, Output, Root, human_size
from winpod.compute.hypervisor import kit as kits
from winpod.cri.config import read_config
from winpod.images import base as bases
from winpod.images.base import STEPS, Base, Step
from winpod.windows.errors import NotFound

app = typer.Typer(help="Build, show and remove the Windows that containers run on.")


@app.command("build")
def build(
    with_32bit: Annotated[
        bool, typer.Option("--with-32bit", help="Run 32-bit programs too; 150 MB more.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Build again, with the packages of today.")
    ] = False,
    mirror: Annotated[
        str,
        typer.Option(
            "--mirror", metavar="URL", help="A Debian mirror, other than this machine's own."
        ),
    ] = "",
    with_hypervisor: Annotated[
        bool,
        typer.Option(
            "--with-hypervisor", help="QEMU and a kernel for pods in microVMs too; 250 MB more."
        ),
    ] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Build the Wine base from Debian's packages, unless it is there already. Needs root."""
    with _step_shown() as show_step:
        base = bases.build_base(
            _root(root), with_32bit=with_32bit, refresh=refresh, mirror=mirror, progress=show_step
        )
    if with_hypervisor:
        kits.build_kit(_root(root), mirror, _say, refresh=refresh)
    _print([base], output)
    if with_hypervisor:
        _print_kit(_root(root), output)


@app.command("show")
def show(root: Root = None, output: Output = Format.TEXT) -> None:
    """Show the bases, the one that containers get first, and what pods in microVMs need."""
    place = _root(root)
    found = bases.list_bases(place)
    if not found and output is Format.TEXT:
        raise NotFound(f"There is no base in {place}.", "Build one: winpod base build")
    _print(found, output)
    _print_kit(place, output)


@app.command("rm")
def remove(
    base_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="A base's id, or its beginning.")
    ] = "",
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Remove a base, or every base and what pods in microVMs need."""
    from winpod.cri.serving import end_idle

    asyncio.run(end_idle(_root(root).absolute()))
    removed = bases.remove_base(_root(root), base_id)
    had_kit = not base_id and kits.remove_kits(_root(root))
    if output is Format.JSON:
        _print(removed, output)
        return
    for base in removed:
        print(f"removed {base.short_id} ({human_size(base.size)})")
    if had_kit:
        print("removed the hypervisor kit")


def _say(step: str) -> None:
    print(f"winpod: {step} ...", file=sys.stderr, flush=True)


def _root(chosen: Path | None) -> Path:
    return chosen or read_config().root


@contextmanager
def _step_shown() -> Iterator[bases.Progress]:
    """A bar on a terminal, a line for each step elsewhere; both on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: _say(step.name)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=sum(step.share for step in STEPS))

        def advance(step: Step) -> None:
            done = sum(one.share for one in STEPS[: STEPS.index(step)]) if step in STEPS else 0
            bar.update(task, description=step.name, completed=done)

        yield advance


def _print(found: list[Base], output: Format) -> None:
    if output is Format.JSON:
        print(json.dumps([_as_json(base) for base in found], indent=2))
        return
    for base in found:
        kind = "64-bit and 32-bit" if base.with_32bit else "64-bit"
        stale = "" if base.is_current else ", made by another winpod: run winpod base build"
        print(
            f"{base.short_id}  Wine {base.wine}  {kind}  {human_size(base.size)}"
            f"  built {base.built:%Y-%m-%d %H:%M}{stale}"
        )


def _print_kit(root: Path, output: Format) -> None:
    kit = kits.find_kit(root)
    if kit and output is Format.TEXT:
        print(f"{kit.short_id}  QEMU {kit.qemu_version}  for pods in microVMs")


def _as_json(base: Base) -> dict[str, Any]:
    return {
        "id": base.id,
        "path": str(base.path),
        "wine": base.wine,
        "with32Bit": base.with_32bit,
        "size": base.size,
        "built": base.built.isoformat(),
        "current": base.is_current,
        "sources": list(base.sources),
        "packages": dict(base.packages),
        "absent": list(base.absent),
    }

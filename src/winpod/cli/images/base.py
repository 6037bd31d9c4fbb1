"""`winpod base`: manage the Wine base that containers run on."""

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
from winpod.compute.hypervisor import assets as hypervisor_assets
from winpod.config import read_config
from winpod.errors import NotFound
from winpod.images.base import builder as bases
from winpod.images.base.builder import STEPS, Base, BuildStep

app = typer.Typer(help="Manage the Wine base that containers run on.")


@app.command("build")
def build(
    with_32bit: Annotated[
        bool, typer.Option("--with-32bit", help="Include support for 32-bit programs (150 MB).")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Rebuild with current packages.")
    ] = False,
    mirror: Annotated[
        str,
        typer.Option(
            "--mirror", metavar="URL", help="Debian mirror (default: the mirror of this machine)."
        ),
    ] = "",
    with_hypervisor: Annotated[
        bool,
        typer.Option(
            "--with-hypervisor", help="Include QEMU and a kernel for hypervisor isolation (250 MB)."
        ),
    ] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Build the Wine base from Debian packages, unless it is up to date. Requires root."""
    with _progress() as show_step:
        base = bases.build_base(
            _root_or_default(root),
            with_32bit=with_32bit,
            refresh=refresh,
            mirror=mirror,
            progress=show_step,
        )
    if with_hypervisor:
        hypervisor_assets.build_assets(_root_or_default(root), mirror, _print_step, refresh=refresh)
    _print([base], output)
    if with_hypervisor:
        _print_assets(_root_or_default(root), output)


@app.command("show")
def show(root: Root = None, output: Output = Format.TEXT) -> None:
    """Show the bases (the one in use first) and the hypervisor assets."""
    base_root = _root_or_default(root)
    found = bases.list_bases(base_root)
    if not found and output is Format.TEXT:
        raise NotFound(f"No base found in {base_root}.", "Build one: winpod base build")
    _print(found, output)
    _print_assets(base_root, output)


@app.command("rm")
def remove(
    base_id: Annotated[str, typer.Argument(metavar="[ID]", help="ID or ID prefix of a base.")] = "",
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Remove a base, or all bases and the hypervisor assets."""
    from winpod.cri.daemon import stop_idle_daemon

    asyncio.run(stop_idle_daemon(_root_or_default(root).absolute()))
    removed = bases.remove_base(_root_or_default(root), base_id)
    had_assets = not base_id and hypervisor_assets.remove_assets(_root_or_default(root))
    if output is Format.JSON:
        _print(removed, output)
        return
    for base in removed:
        print(f"removed {base.short_id} ({human_size(base.size)})")
    if had_assets:
        print("removed the hypervisor assets")


def _print_step(step: str) -> None:
    print(f"winpod: {step} ...", file=sys.stderr, flush=True)


def _root_or_default(chosen: Path | None) -> Path:
    return chosen or read_config().root


@contextmanager
def _progress() -> Iterator[bases.Progress]:
    """Show a progress bar on a terminal, a line per step otherwise; both on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: _print_step(step.name)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=sum(step.share for step in STEPS))

        def advance(step: BuildStep) -> None:
            done = (
                sum(previous.share for previous in STEPS[: STEPS.index(step)])
                if step in STEPS
                else 0
            )
            bar.update(task, description=step.name, completed=done)

        yield advance


def _print(found: list[Base], output: Format) -> None:
    if output is Format.JSON:
        print(json.dumps([_as_json(base) for base in found], indent=2))
        return
    for base in found:
        kind = "64-bit and 32-bit" if base.with_32bit else "64-bit"
        stale = "" if base.is_current else ", outdated: run winpod base build"
        print(
            f"{base.short_id}  Wine {base.wine}  {kind}  {human_size(base.size)}"
            f"  built {base.built:%Y-%m-%d %H:%M}{stale}"
        )


def _print_assets(root: Path, output: Format) -> None:
    assets = hypervisor_assets.find_assets(root)
    if assets and output is Format.TEXT:
        print(f"{assets.short_id}  QEMU {assets.qemu_version}  for hypervisor isolation")


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

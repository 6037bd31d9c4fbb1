"""`winpod check`: will these manifests run on my Windows nodes, where, and if not, why."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.check_json import json_lines
from winpod.cli.check_sarif import to_sarif
from winpod.cli.check_table import print_table
from winpod.cluster.check import Fleet, Report, check, default_fleet
from winpod.cri.config import read_config
from winpod.images.source import ImageSources
from winpod.node.manifests import Manifests, read_manifests
from winpod.windows.errors import InvalidInput
from winpod.windows.scheduling import with_allocated


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"


def command(
    filename: Annotated[
        list[str],
        typer.Option(
            "--filename",
            "-f",
            help="Manifest file, directory, or - for standard input. May be repeated.",
        ),
    ],
    nodes: Annotated[
        Path | None,
        typer.Option(help="File with Node objects, as `kubectl get nodes -o yaml` writes them."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Check against the nodes of this cluster.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig to use.")] = None,
    layout: Annotated[
        list[Path] | None,
        typer.Option(
            help="OCI layout directory or archive to look images up in first. May be repeated."
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no registry: layouts and what is cached.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings too.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="Form of the report.")] = (
        Output.TABLE
    ),
) -> None:
    """Say whether manifests will run on Windows nodes, where, and if not, why and what to change.

    Without --nodes or --kubeconfig, and with no Node among the manifests, it checks against one
    node of each Windows Server release in support.

    Exit code: 0 all run, 1 some cannot, 2 bad input.
    """
    manifests = read_manifests(filename)
    if not manifests.workloads:
        others = f" ({manifests.passed_over} of other kinds)" if manifests.passed_over else ""
        raise InvalidInput(f"there is no workload to check in {', '.join(filename)}{others}.")
    fleet = _fleet(manifests, nodes, kubeconfig, context)
    report = asyncio.run(_check(manifests, fleet, tuple(layout or ()), offline))
    match output:
        case Output.TABLE:
            print_table(report)
        case Output.JSON:
            for line in json_lines(report):
                print(line)
        case Output.SARIF:
            print(json.dumps(to_sarif(report), indent=2))
    raise typer.Exit(0 if report.is_good(strict=strict) else 1)


def _fleet(
    manifests: Manifests, nodes: Path | None, kubeconfig: Path | None, context: str | None
) -> Fleet:
    if nodes and kubeconfig:
        raise InvalidInput("--nodes and --kubeconfig both name nodes.", "Give one of them.")
    if context and not kubeconfig:
        raise InvalidInput("--context is for --kubeconfig, which is not given.")
    if kubeconfig:
        from winpod.cluster.live import read_cluster

        live = read_cluster(kubeconfig, context=context)
        return Fleet(live.nodes, live.classes)
    if nodes:
        return _fleet_of_file(nodes)
    return Fleet(tuple(manifests.nodes)) if manifests.nodes else default_fleet()


def _fleet_of_file(file: Path) -> Fleet:
    found = read_manifests([str(file)])
    if not found.nodes:
        raise InvalidInput(
            f"{file} holds no Node object.", "`kubectl get nodes -o yaml` writes such a file."
        )
    bound = [w.pod for w in found.workloads if w.pod.node_name and not w.ended]
    return Fleet(with_allocated(found.nodes, bound), tuple(found.classes))


async def _check(
    manifests: Manifests, fleet: Fleet, layouts: tuple[Path, ...], offline: bool
) -> Report:
    with _progress() as on_image:
        async with ImageSources(layouts=layouts, offline=offline, sizes=False) as sources:
            return await check(
                manifests, fleet, sources, on_image=on_image, handlers=read_config().handlers
            )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar for people who watch; silence for everybody else."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("looking up images", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

"""`winpod check`: check whether manifests can run on Windows nodes."""

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

from winpod.check.engine import CheckTarget, Report, check, default_target
from winpod.cli.check.json_report import json_lines
from winpod.cli.check.sarif import to_sarif
from winpod.cli.check.table import print_table
from winpod.config import read_config
from winpod.errors import InvalidInput
from winpod.images.resolver import ImageResolver
from winpod.k8s.manifests import Manifests, read_manifests
from winpod.placement.predicates import with_allocated


class CheckFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"


def command(
    filename: Annotated[
        list[str],
        typer.Option(
            "--filename",
            "-f",
            help="Manifest file, directory, or - for stdin. May be repeated.",
        ),
    ],
    nodes: Annotated[
        Path | None,
        typer.Option(help="File with Node objects (`kubectl get nodes -o yaml`)."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Check against the nodes of this cluster.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Kubeconfig context.")] = None,
    layout: Annotated[
        list[Path] | None,
        typer.Option(
            help="OCI layout directory or archive to look up images in first. May be repeated."
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Do not contact registries; use layouts and the cache."),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings too.")] = False,
    output: Annotated[CheckFormat, typer.Option("--output", "-o", help="Output format.")] = (
        CheckFormat.TABLE
    ),
) -> None:
    """Check whether manifests can run on Windows nodes.

    Reports the nodes of each workload; for those that cannot run, why and what to change. Without
    --nodes or --kubeconfig, and with no Node in the manifests, it checks against one node of each
    supported Windows Server release.

    Exit code: 0 all can run, 1 some cannot, 2 bad input.
    """
    manifests = read_manifests(filename)
    if not manifests.workloads:
        others = f" ({manifests.skipped} of other kinds)" if manifests.skipped else ""
        raise InvalidInput(f"{', '.join(filename)} contains no workload to check{others}.")
    target = _check_target(manifests, nodes, kubeconfig, context)
    report = asyncio.run(_check(manifests, target, tuple(layout or ()), offline))
    match output:
        case CheckFormat.TABLE:
            print_table(report)
        case CheckFormat.JSON:
            for line in json_lines(report):
                print(line)
        case CheckFormat.SARIF:
            print(json.dumps(to_sarif(report), indent=2))
    raise typer.Exit(0 if report.passes(strict=strict) else 1)


def _check_target(
    manifests: Manifests, nodes: Path | None, kubeconfig: Path | None, context: str | None
) -> CheckTarget:
    if nodes and kubeconfig:
        raise InvalidInput("--nodes and --kubeconfig are mutually exclusive.", "Give one of them.")
    if context and not kubeconfig:
        raise InvalidInput("--context requires --kubeconfig.")
    if kubeconfig:
        from winpod.check.live_cluster import read_live_cluster

        live = asyncio.run(read_live_cluster(kubeconfig, context=context))
        return CheckTarget(live.nodes, live.classes)
    if nodes:
        return _target_from_file(nodes)
    return CheckTarget(tuple(manifests.nodes)) if manifests.nodes else default_target()


def _target_from_file(file: Path) -> CheckTarget:
    found = read_manifests([str(file)])
    if not found.nodes:
        raise InvalidInput(
            f"{file} contains no Node object.", "Create it with `kubectl get nodes -o yaml`."
        )
    bound = [w.pod for w in found.workloads if w.pod.node_name and not w.ended]
    return CheckTarget(with_allocated(found.nodes, bound), tuple(found.classes))


async def _check(
    manifests: Manifests, target: CheckTarget, layouts: tuple[Path, ...], offline: bool
) -> Report:
    with _progress() as on_image:
        async with ImageResolver(layouts=layouts, offline=offline, sizes=False) as resolver:
            return await check(
                manifests, target, resolver, on_image=on_image, handlers=read_config().handlers
            )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("looking up images", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

"""`winpod runtimeclass`: generate the operator's RuntimeClasses, for GitOps repositories."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from winpod.errors import InvalidInput, NotFound
from winpod.k8s.manifests import read_manifests
from winpod.operator.runtimeclasses.desired_classes import DesiredClass, desired_classes
from winpod.operator.runtimeclasses.node_labels import change_labels, with_labels
from winpod.operator.settings import OperatorSettings, read_settings
from winpod.placement.model import Node

app = typer.Typer(help="Generate RuntimeClasses for the Windows nodes of a cluster.")


class ClassFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


@app.callback()
def _group() -> None:
    """Generate RuntimeClasses for the Windows nodes of a cluster."""


@app.command("render")
def print_classes(
    nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with Node objects (`kubectl get nodes -o yaml`)."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the nodes of this cluster.")
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Kubeconfig context.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings file of the operator.")
    ] = None,
    output: Annotated[ClassFormat, typer.Option("--output", "-o", help="Output format.")] = (
        ClassFormat.YAML
    ),
) -> None:
    """Print the RuntimeClasses that the operator would create for these nodes.

    Labels that a class selects and a node lacks are reported on stderr as kubectl commands. The
    operator sets them itself.
    """
    settings = read_settings_file(config)
    found = _nodes(nodes, kubeconfig, context)
    labelled = [with_labels(n, change_labels(n)) if settings.labels else n for n in found]
    classes = desired_classes(labelled, settings)
    if not classes:
        raise NotFound(
            "no RuntimeClass applies to these nodes: none is a Windows node of a known build "
            "whose runtime can start pods."
        )
    for command in _missing_labels(classes, found, labelled):
        print(f"winpod: node lacks a label that a class selects, run: {command}", file=sys.stderr)
    objects = [desired.to_object() for desired in classes]
    if output is ClassFormat.JSON:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        print(yaml.safe_dump_all(objects, sort_keys=False, width=1000), end="")


def read_settings_file(config: Path | None) -> OperatorSettings:
    if config is None:
        return OperatorSettings()
    try:
        return read_settings(config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{config} cannot be read: {error}.") from None
    except InvalidInput as error:
        raise InvalidInput(f"{config}: {error}") from None


def _nodes(nodes: Path | None, kubeconfig: Path | None, context: str | None) -> Sequence[Node]:
    if bool(nodes) == bool(kubeconfig):
        raise InvalidInput("either --nodes or --kubeconfig is required.", "Give one of them.")
    if context and not kubeconfig:
        raise InvalidInput("--context requires --kubeconfig.")
    if kubeconfig:
        from winpod.check.live_cluster import read_live_cluster

        return asyncio.run(read_live_cluster(kubeconfig, context=context)).nodes
    found = read_manifests([str(nodes)]).nodes
    if not found:
        raise InvalidInput(
            f"{nodes} contains no Node object.", "Create it with `kubectl get nodes -o yaml`."
        )
    return found


def _missing_labels(
    classes: Sequence[DesiredClass], found: Sequence[Node], labelled: Sequence[Node]
) -> Iterable[str]:
    selected = {pair for desired in classes for pair in desired.runtime_class.node_selector}
    for before, after in zip(found, labelled, strict=True):
        lacking = sorted((set(after.labels) - set(before.labels)) & selected)
        if lacking:
            pairs = " ".join(f"{key}={value}" for key, value in lacking)
            yield f"kubectl label node {before.name} {pairs}"

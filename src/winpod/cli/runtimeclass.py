"""`winpod runtimeclass`: the classes that the operator would make, for who keeps them in git."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from winpod.cluster.classes import WantedClass, desired_classes
from winpod.cluster.node_labels import change_labels, with_labels
from winpod.cluster.settings import Settings, read_settings
from winpod.node.manifests import read_manifests
from winpod.windows.errors import InvalidInput, NotFound
from winpod.windows.objects import Node

app = typer.Typer(help="Write the RuntimeClasses that a cluster's Windows nodes give reason for.")


class Output(StrEnum):
    YAML = "yaml"
    JSON = "json"


@app.callback()
def _group() -> None:
    """Write the RuntimeClasses that a cluster's Windows nodes give reason for."""


@app.command("render")
def render(
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Node objects, as `kubectl get nodes -o yaml` writes them."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask this cluster for its nodes.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig to use.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The operator's settings.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Form of the objects.")] = (
        Output.YAML
    ),
) -> None:
    """Print the RuntimeClasses that the operator would make for these nodes.

    Labels that a class needs and nodes lack are told: the operator sets them, or you do.
    """
    settings = read_settings_file(config)
    found = _nodes(nodes, kubeconfig, context)
    labelled = [with_labels(n, change_labels(n)) if settings.labels else n for n in found]
    classes = desired_classes(labelled, settings)
    if not classes:
        raise NotFound(
            "these nodes give no reason for a RuntimeClass: none is a Windows node of a known "
            "build whose runtime can start pods."
        )
    for command in _missing_labels(classes, found, labelled):
        print(f"winpod: a class selects a label that a node lacks: {command}", file=sys.stderr)
    objects = [wanted.to_object() for wanted in classes]
    if output is Output.JSON:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        print(yaml.safe_dump_all(objects, sort_keys=False, width=1000), end="")


def read_settings_file(config: Path | None) -> Settings:
    if config is None:
        return Settings()
    try:
        return read_settings(config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{config} cannot be read: {error}.") from None
    except InvalidInput as error:
        raise InvalidInput(f"{config}: {error}") from None


def _nodes(nodes: Path | None, kubeconfig: Path | None, context: str | None) -> Sequence[Node]:
    if bool(nodes) == bool(kubeconfig):
        raise InvalidInput("one of --nodes and --kubeconfig names the nodes.", "Give one of them.")
    if context and not kubeconfig:
        raise InvalidInput("--context is for --kubeconfig, which is not given.")
    if kubeconfig:
        from winpod.cluster.live import read_cluster

        return read_cluster(kubeconfig, context=context).nodes
    found = read_manifests([str(nodes)]).nodes
    if not found:
        raise InvalidInput(
            f"{nodes} holds no Node object.", "`kubectl get nodes -o yaml` writes such a file."
        )
    return found


def _missing_labels(
    classes: Sequence[WantedClass], found: Sequence[Node], labelled: Sequence[Node]
) -> Iterable[str]:
    selected = {pair for wanted in classes for pair in wanted.runtime_class.node_selector}
    for before, after in zip(found, labelled, strict=True):
        lacking = sorted((set(after.labels) - set(before.labels)) & selected)
        if lacking:
            pairs = " ".join(f"{key}={value}" for key, value in lacking)
            yield f"kubectl label node {before.name} {pairs}"

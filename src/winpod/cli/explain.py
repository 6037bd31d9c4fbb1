"""`winpod explain`: why a pod of a cluster is where it is; why it waits, and what to change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from winpod.cli.check_json import reason_json, verdict_json
from winpod.cli.check_table import Line, advice_lines, placement_lines, print_lines, say
from winpod.cli.options import Format, Kubeconfig, Output, usual_kubeconfig
from winpod.cluster.admission.deciding import Fate
from winpod.cluster.explaining import Explained, ImageFacts, explain
from winpod.cluster.telling import UNPLACEABLE
from winpod.images.source import ImageSources
from winpod.node.access import read_kubeconfig
from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError

_STYLES = {Fate.RUNS: "bold green", Fate.CANNOT_RUN: "bold red", Fate.NOT_WINDOWS: "dim"}
_COMPLETION_SECONDS = 2.0
_DEFAULT = "default"


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the namespace's pods; none where the cluster does not answer at once."""
    with suppress(WinpodError, TimeoutError):
        kubeconfig = ctx.params.get("kubeconfig") or usual_kubeconfig()
        namespace = ctx.params.get("namespace") or _DEFAULT
        names = asyncio.run(_names(Path(kubeconfig), namespace))
        return [name for name in names if name.startswith(incomplete)]
    return []


async def _names(kubeconfig: Path, namespace: str) -> list[str]:
    api = ApiServer(read_kubeconfig(kubeconfig))
    try:
        async with asyncio.timeout(_COMPLETION_SECONDS):
            answer = await api.request("GET", f"/api/v1/namespaces/{namespace}/pods")
        return [item["metadata"]["name"] for item in json.loads(answer)["items"]]
    finally:
        await api.close()


def command(
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD", help="A pod's name, or NAMESPACE/NAME.", autocompletion=_complete
        ),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where the pod is.")
    ] = _DEFAULT,
    kubeconfig: Kubeconfig = None,
    layout: Annotated[
        list[Path] | None,
        typer.Option(
            help="OCI layout directory or archive to look images up in first. May be repeated."
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no registry: layouts and what is cached.")
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Say why a pod of a cluster is where it is, or why it waits, and what to change.

    Told are its RuntimeClass and who named it, the builds that its images have, and what each of
    the cluster's nodes says to it. The operator need not be installed.
    """
    first, slash, name = pod.partition("/")
    namespace, name = (first, name) if slash else (namespace, pod)
    access = read_kubeconfig(kubeconfig or usual_kubeconfig())

    async def ask() -> Explained:
        api = ApiServer(access)
        sources = ImageSources(layouts=tuple(layout or ()), offline=offline, sizes=False)
        try:
            async with sources:
                return await explain(api, sources, namespace, name)
        finally:
            await api.close()

    told = asyncio.run(ask())
    if output is Format.JSON:
        print(json.dumps(_as_json(told), indent=2))
    else:
        print_lines(_lines(told))


def _lines(told: Explained) -> Iterator[Line]:
    """Of a pod without a node, the nodes below say why; so does the operator's event."""
    pod, verdict = told.pod, told.verdict
    where = f"on {pod.node}" if pod.node else "on no node"
    yield [
        (f"{pod.namespace}/{pod.name}", "bold"),
        (f"  {pod.phase}, {where}  ", "dim"),
        (say(verdict.fate), _STYLES.get(verdict.fate, "bold yellow")),
    ]
    yield [(f"  {verdict.sentence if pod.node else verdict.sentence.partition(': ')[0]}", "")]
    yield from _class_lines(told)
    yield [("images", "bold")]
    for facts in told.images:
        yield [(f"  {facts.text}  ", ""), (_image(facts), "dim")]
    yield [("nodes", "bold")]
    yield from placement_lines(told.placement)
    yield from advice_lines(told.advice)
    events = [event for event in told.events if event.reason != UNPLACEABLE]
    if events:
        yield [("events", "bold")]
    for event in events:
        when = event.lastTimestamp or event.eventTime
        yield [
            (f"  {when:%Y-%m-%d %H:%M:%S}  " if when else "  ", "dim"),
            (f"{event.reason}  ", "yellow" if event.type == "Warning" else ""),
            (event.message or "", ""),
        ]


def _class_lines(told: Explained) -> Iterator[Line]:
    name, seen = told.pod.runtime_class, told.runtime_class
    yield [("class", "bold")]
    if not name:
        yield [("  none: process isolation, on the nodes that the pod itself selects", "")]
        return
    yield [(f"  {name}", ""), (f", {told.origin}" if told.origin else "", "dim")]
    if seen is None:
        yield [("  there is no such RuntimeClass", "yellow")]
        return
    made_by = f"made by winpod: {told.about}" if seen.is_ours else "not made by winpod"
    yield [(f"  handler {seen.runtime_class.handler}; {made_by}", "dim")]
    selector = ", ".join(f"{key}={value}" for key, value in seen.runtime_class.node_selector)
    if selector:
        yield [(f"  selects {selector}", "dim")]
    if seen.retiring:
        yield [(f"  takes no new pods: {seen.retiring}", "yellow")]


def _image(facts: ImageFacts) -> str:
    if facts.problem:
        return facts.problem
    return ", ".join(facts.builds) or f"no Windows: {', '.join(facts.systems)}"


def _as_json(told: Explained) -> dict[str, Any]:
    pod, seen = told.pod, told.runtime_class
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": pod.phase,
        "node": pod.node or None,
        "os": told.os or None,
        "status": str(told.verdict.fate),
        "message": told.verdict.sentence,
        "class": {
            "name": pod.runtime_class,
            "origin": told.origin or None,
            "exists": seen is not None,
            "handler": seen.runtime_class.handler if seen else None,
            "madeByWinpod": seen.is_ours if seen else None,
            "retiring": (seen.retiring or None) if seen else None,
            "nodeSelector": dict(seen.runtime_class.node_selector) if seen else {},
        }
        if pod.runtime_class
        else None,
        "images": [
            {
                "image": facts.text,
                "builds": list(facts.builds),
                "systems": list(facts.systems),
                "problem": facts.problem or None,
            }
            for facts in told.images
        ],
        "refusals": [reason_json(reason) for reason in told.placement.refusals],
        "verdicts": [verdict_json(verdict) for verdict in told.placement.verdicts],
        "advice": list(told.advice),
        "events": [
            {
                "type": event.type,
                "reason": event.reason,
                "message": event.message,
                "count": event.count or 1,
            }
            for event in told.events
        ],
    }

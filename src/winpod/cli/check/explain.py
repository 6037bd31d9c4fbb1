"""`winpod explain`: explain the placement of a pod of a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from winpod.cli.check.json_report import reason_json, verdict_json
from winpod.cli.check.table import Line, advice_lines, placement_lines, print_lines, styled_word
from winpod.cli.options import Format, Kubeconfig, Output, kubeconfig_files
from winpod.errors import WinpodError
from winpod.images.resolver import ImageResolver
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.operator.admission.review import ReviewOutcome
from winpod.operator.events import UNPLACEABLE
from winpod.operator.explain import Explanation, ImageInfo, explain_pod

_STYLES = {
    ReviewOutcome.RUNS: "bold green",
    ReviewOutcome.CANNOT_RUN: "bold red",
    ReviewOutcome.NOT_WINDOWS: "dim",
}
_COMPLETION_SECONDS = 2.0
_DEFAULT = "default"


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete pod names; returns none if the cluster does not answer quickly."""
    with suppress(WinpodError, TimeoutError):
        kubeconfig = ctx.params.get("kubeconfig")
        files = kubeconfig_files(Path(kubeconfig) if kubeconfig else None)
        namespace = ctx.params.get("namespace") or _DEFAULT
        names = asyncio.run(_names(files, namespace))
        return [name for name in names if name.startswith(incomplete)]
    return []


async def _names(kubeconfig: tuple[Path, ...], namespace: str) -> list[str]:
    api = ApiClient(read_kubeconfig(*kubeconfig))
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
            metavar="POD", help="Pod name, or NAMESPACE/NAME.", autocompletion=_complete
        ),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pod.")
    ] = _DEFAULT,
    kubeconfig: Kubeconfig = None,
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
    output: Output = Format.TEXT,
) -> None:
    """Explain why a pod of a cluster is placed on its node, or why it is pending.

    Shows its RuntimeClass and where that was set, the Windows builds of its images, the verdict for
    each node, and what to change. The operator need not be installed.
    """
    first, slash, name = pod.partition("/")
    namespace, name = (first, name) if slash else (namespace, pod)
    access = read_kubeconfig(*kubeconfig_files(kubeconfig))

    async def explain() -> Explanation:
        api = ApiClient(access)
        resolver = ImageResolver(layouts=tuple(layout or ()), offline=offline, sizes=False)
        try:
            async with resolver:
                return await explain_pod(api, resolver, namespace, name)
        finally:
            await api.close()

    explanation = asyncio.run(explain())
    if output is Format.JSON:
        print(json.dumps(_as_json(explanation), indent=2))
    else:
        print_lines(_lines(explanation))


def _lines(explanation: Explanation) -> Iterator[Line]:
    """Format an explanation.

    For a pod without a node the reasons are listed per node, so they are left out of the message
    and of the operator's event.
    """
    pod, verdict = explanation.pod, explanation.verdict
    where = f"on {pod.node}" if pod.node else "on no node"
    yield [
        (f"{pod.namespace}/{pod.name}", "bold"),
        (f"  {pod.phase}, {where}  ", "dim"),
        (styled_word(verdict.outcome), _STYLES.get(verdict.outcome, "bold yellow")),
    ]
    yield [(f"  {verdict.message if pod.node else verdict.message.partition(': ')[0]}", "")]
    yield from _class_lines(explanation)
    yield [("images", "bold")]
    for image in explanation.images:
        yield [(f"  {image.text}  ", ""), (_describe_image(image), "dim")]
    yield [("nodes", "bold")]
    yield from placement_lines(explanation.placement)
    yield from advice_lines(explanation.advice)
    events = [event for event in explanation.events if event.reason != UNPLACEABLE]
    if events:
        yield [("events", "bold")]
    for event in events:
        when = event.lastTimestamp or event.eventTime
        yield [
            (f"  {when:%Y-%m-%d %H:%M:%S}  " if when else "  ", "dim"),
            (f"{event.reason}  ", "yellow" if event.type == "Warning" else ""),
            (event.message or "", ""),
        ]


def _class_lines(explanation: Explanation) -> Iterator[Line]:
    name, cached_class = explanation.pod.runtime_class, explanation.runtime_class
    yield [("class", "bold")]
    if not name:
        yield [("  none: process isolation, on the nodes that the pod itself selects", "")]
        return
    yield [(f"  {name}", ""), (f", {explanation.origin}" if explanation.origin else "", "dim")]
    if cached_class is None:
        yield [("  this RuntimeClass does not exist", "yellow")]
        return
    made_by = (
        f"managed by winpod: {explanation.about}"
        if cached_class.is_managed
        else "not managed by winpod"
    )
    yield [(f"  handler {cached_class.runtime_class.handler}; {made_by}", "dim")]
    selector = ", ".join(
        f"{key}={value}" for key, value in cached_class.runtime_class.node_selector
    )
    if selector:
        yield [(f"  selects {selector}", "dim")]
    if cached_class.retiring:
        yield [(f"  accepts no new pods: {cached_class.retiring}", "yellow")]


def _describe_image(image: ImageInfo) -> str:
    if image.problem:
        return image.problem
    return ", ".join(image.builds) or f"not a Windows image: {', '.join(image.systems)}"


def _as_json(explanation: Explanation) -> dict[str, Any]:
    pod, cached_class = explanation.pod, explanation.runtime_class
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": pod.phase,
        "node": pod.node or None,
        "os": explanation.os or None,
        "status": str(explanation.verdict.outcome),
        "message": explanation.verdict.message,
        "class": {
            "name": pod.runtime_class,
            "origin": explanation.origin or None,
            "exists": cached_class is not None,
            "handler": cached_class.runtime_class.handler if cached_class else None,
            "madeByWinpod": cached_class.is_managed if cached_class else None,
            "retiring": (cached_class.retiring or None) if cached_class else None,
            "nodeSelector": dict(cached_class.runtime_class.node_selector) if cached_class else {},
        }
        if pod.runtime_class
        else None,
        "images": [
            {
                "image": image.text,
                "builds": list(image.builds),
                "systems": list(image.systems),
                "problem": image.problem or None,
            }
            for image in explanation.images
        ],
        "refusals": [reason_json(reason) for reason in explanation.placement.refusals],
        "verdicts": [verdict_json(verdict) for verdict in explanation.placement.verdicts],
        "advice": list(explanation.advice),
        "events": [
            {
                "type": event.type,
                "reason": event.reason,
                "message": event.message,
                "count": event.count or 1,
            }
            for event in explanation.events
        ],
    }

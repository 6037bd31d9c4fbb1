"""Why one pod of a cluster is where it is, or is nowhere: asked once, and decided by the rules.

What a pod's author wrote is told from what was added to it by what made it: the template of its
workload, or what was applied.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from lightkube.models import core_v1 as v1

from winpod.cluster.admission.choosing import as_written
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.classes import ABOUT
from winpod.cluster.makers import WORKLOADS
from winpod.cluster.pod_verdicts import PodVerdict, judge_pod
from winpod.cluster.seen import (
    ClassObject,
    NodeObject,
    PodObject,
    SeenClass,
    SeenPod,
    Templates,
    see_class,
    see_node,
)
from winpod.cluster.view import CLASSES, NODES, PODS
from winpod.images.source import ImageSources
from winpod.node.api import ApiServer, Refused
from winpod.node.manifests import template_path
from winpod.windows.advice import advise
from winpod.windows.errors import NotFound, WinpodError
from winpod.windows.objects import Pod
from winpod.windows.placement import Cluster, intended_os
from winpod.windows.platforms import Image
from winpod.windows.scheduling import with_allocated
from winpod.windows.verdicts import Placement

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_MOST_EVENTS = 10


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """`problem` where nobody could say what it is."""

    text: str
    builds: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """`origin` says who named the class. `placement` is over all nodes, as if it had none yet."""

    pod: SeenPod
    os: str
    verdict: PodVerdict
    placement: Placement
    advice: tuple[str, ...]
    images: tuple[ImageFacts, ...]
    runtime_class: SeenClass | None = None
    origin: str = ""
    about: str = ""
    events: tuple[v1.Event, ...] = field(default=(), compare=False)


async def explain(api: ApiServer, sources: ImageSources, namespace: str, name: str) -> Explained:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    whole = await _get(api, path)
    if whole is None:
        raise NotFound(
            f"there is no pod {name} in namespace {namespace}.", "-n chooses another namespace."
        )
    templates = Templates()
    seen = templates.see_pod(msgspec.convert(whole, PodObject))
    (cluster, classes), images, events, origin = await asyncio.gather(
        _cluster(api, seen, templates),
        _images(api, sources, seen, whole),
        _events(api, seen),
        _origin(api, seen, whole),
    )
    known = {facts.text: image for facts, image in images if image}
    nodes = {node.name: node for node in cluster.nodes}
    written = as_written(seen.template, cluster.classes)
    placement = cluster.place(written, known)
    runtime_class = classes.get(seen.runtime_class)
    return Explained(
        pod=seen,
        os=intended_os(written, cluster.classes, known, cluster.handlers),
        verdict=judge_pod(seen, cluster, nodes, known),
        placement=placement,
        advice=() if seen.node else advise(written, placement, cluster, known),
        images=tuple(facts for facts, _ in images),
        runtime_class=runtime_class,
        origin=origin,
        about=dict(runtime_class.annotations).get(ABOUT, "") if runtime_class else "",
        events=events,
    )


async def _cluster(
    api: ApiServer, but: SeenPod, templates: Templates
) -> tuple[Cluster, dict[str, SeenClass]]:
    """With what is taken on its nodes, but not by the pod in question."""
    nodes, classes, pods = await asyncio.gather(
        api.list(NodeObject, NODES, {}),
        api.list(ClassObject, CLASSES, {}),
        api.list(PodObject, PODS, {}),
    )
    others = (templates.see_pod(pod) for pod in pods.items if pod.metadata.uid != but.uid)
    bound: list[Pod] = [
        replace(other.template, node_name=other.node)
        for other in others
        if other.node and not other.has_ended
    ]
    sized = with_allocated((see_node(node).node for node in nodes.items), bound)
    seen = {one.name: one for one in map(see_class, classes.items)}
    return Cluster(sized, (one.runtime_class for one in seen.values())), seen


async def _images(
    api: ApiServer, sources: ImageSources, seen: SeenPod, whole: Mapping[str, Any]
) -> list[tuple[ImageFacts, Image | None]]:
    names = seen.template.pull_secrets
    account = whole["spec"].get("serviceAccountName", "")
    secrets = await PullSecrets(api).of(seen.namespace, names, account)

    async def look_up(text: str) -> tuple[ImageFacts, Image | None]:
        try:
            image = await sources.describe(text, secrets)
        except WinpodError as error:
            return ImageFacts(text, problem=str(error)), None
        systems = tuple(sorted(image.operating_systems()))
        return ImageFacts(text, image.builds(), systems), image

    return await asyncio.gather(*(look_up(text) for text in seen.template.images))


async def _events(api: ApiServer, seen: SeenPod) -> tuple[v1.Event, ...]:
    """The last ones, the newest last."""
    path = f"/api/v1/namespaces/{seen.namespace}/events"
    selector = f"involvedObject.kind=Pod,involvedObject.name={seen.name}"
    try:
        listed = await api.list(v1.Event, path, {"fieldSelector": selector})
    except Refused as error:
        if error.is_forbidden:
            return ()
        raise
    told = sorted(listed.items, key=lambda event: str(event.lastTimestamp or event.eventTime or ""))
    return tuple(told[-_MOST_EVENTS:])


async def _origin(api: ApiServer, seen: SeenPod, whole: Mapping[str, Any]) -> str:
    """Who named its class, as far as it can be told."""
    if not seen.runtime_class:
        return ""
    kind, name = seen.owner
    added = "added when the pod was created, because its author named none"
    if kind in WORKLOADS:
        path = f"{WORKLOADS[kind]}/namespaces/{seen.namespace}/{kind.lower()}s/{name}"
        maker = await _get(api, path)
        if maker is None:
            return ""
        steps = template_path(maker["apiVersion"], maker["kind"]) or ()
        return f"named by {kind} {name}" if _names_class(maker, steps) else added
    applied = whole["metadata"].get("annotations", {}).get(_LAST_APPLIED)
    if applied:
        return "named by its author" if _names_class(json.loads(applied), ()) else added
    return "named in the pod"


def _names_class(obj: Mapping[str, Any], steps: Sequence[str | int]) -> bool:
    found: Any = obj
    for step in (*steps, "spec"):
        found = found.get(step) or {}
    return bool(found.get("runtimeClassName"))


async def _get(api: ApiServer, path: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(await api.request("GET", path))
    except Refused as error:
        if error.is_missing:
            return None
        raise
    return found

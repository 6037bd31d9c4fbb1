"""Explains why a pod of a cluster runs where it does, or does not run.

What the user wrote is distinguished from what admission added with the template of the workload, or
with kubectl's last-applied-configuration.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from winpod.errors import NotFound, WinpodError
from winpod.images.resolver import ImageResolver
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.manifests import template_path
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.objects import NodeObject, RuntimeClassObject
from winpod.labels import ABOUT_ANNOTATION, LAST_APPLIED_ANNOTATION
from winpod.operator.admission.class_selection import without_runtime_class
from winpod.operator.cached_objects import (
    CachedPod,
    CachedRuntimeClass,
    PackedPod,
    TemplateCache,
    to_cached_class,
    to_cached_node,
)
from winpod.operator.cluster_cache import CLASSES, NODES, PODS
from winpod.operator.owners import WORKLOADS
from winpod.operator.pod_evaluator import PodVerdict, evaluate_pod
from winpod.operator.pull_secrets import PullSecrets
from winpod.placement.advice import advise
from winpod.placement.evaluator import Cluster, intended_os
from winpod.placement.model import Pod
from winpod.placement.predicates import with_allocated
from winpod.placement.verdicts import Placement
from winpod.windows.platforms import Image

_MAX_EVENTS = 10


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A resolved image; `problem` if it could not be resolved."""

    text: str
    builds: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`origin` is where the RuntimeClass was set; `placement` evaluates the pod as unbound."""

    pod: CachedPod
    os: str
    verdict: PodVerdict
    placement: Placement
    advice: tuple[str, ...]
    images: tuple[ImageInfo, ...]
    runtime_class: CachedRuntimeClass | None = None
    origin: str = ""
    about: str = ""
    events: tuple[v1.Event, ...] = field(default=(), compare=False)


async def explain_pod(
    api: ApiClient, resolver: ImageResolver, namespace: str, name: str
) -> Explanation:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    obj = await _get(api, path)
    if obj is None:
        raise NotFound(
            f"pod {name} not found in namespace {namespace}.", "Use -n for another namespace."
        )
    templates = TemplateCache()
    pod = templates.to_cached_pod(msgspec.convert(obj, PackedPod))
    (cluster, classes), images, events, origin = await asyncio.gather(
        _cluster(api, pod, templates),
        _images(api, resolver, pod, obj),
        _events(api, pod),
        _origin(api, pod, obj),
    )
    resolved = {info.text: image for info, image in images if image}
    nodes = {node.name: node for node in cluster.nodes}
    unclassed = without_runtime_class(pod.template, cluster.classes)
    placement = cluster.place(unclassed, resolved)
    runtime_class = classes.get(pod.runtime_class)
    return Explanation(
        pod=pod,
        os=intended_os(unclassed, cluster.classes, resolved, cluster.handlers),
        verdict=evaluate_pod(pod, cluster, nodes, resolved),
        placement=placement,
        advice=() if pod.node else advise(unclassed, placement, cluster, resolved),
        images=tuple(info for info, _ in images),
        runtime_class=runtime_class,
        origin=origin,
        about=dict(runtime_class.annotations).get(ABOUT_ANNOTATION, "") if runtime_class else "",
        events=events,
    )


async def _cluster(
    api: ApiClient, excluded: CachedPod, templates: TemplateCache
) -> tuple[Cluster, dict[str, CachedRuntimeClass]]:
    """Read the cluster with the allocations of all bound pods but the excluded one."""
    nodes, classes, pods = await asyncio.gather(
        api.list(NodeObject, NODES, {}),
        api.list(RuntimeClassObject, CLASSES, {}),
        api.list(PackedPod, PODS, {}),
    )
    others = (
        templates.to_cached_pod(pod) for pod in pods.items if pod.metadata.uid != excluded.uid
    )
    bound: list[Pod] = [
        replace(other.template, node_name=other.node)
        for other in others
        if other.node and not other.is_terminal
    ]
    sized = with_allocated((to_cached_node(node).node for node in nodes.items), bound)
    cached = {c.name: c for c in map(to_cached_class, classes.items)}
    return Cluster(sized, (c.runtime_class for c in cached.values())), cached


async def _images(
    api: ApiClient, resolver: ImageResolver, pod: CachedPod, obj: Mapping[str, Any]
) -> list[tuple[ImageInfo, Image | None]]:
    names = pod.template.pull_secrets
    account = obj["spec"].get("serviceAccountName", "")
    secrets = await PullSecrets(api).find(pod.namespace, names, account)

    async def resolve(text: str) -> tuple[ImageInfo, Image | None]:
        try:
            image = await resolver.describe(text, secrets)
        except WinpodError as error:
            return ImageInfo(text, problem=str(error)), None
        systems = tuple(sorted(image.operating_systems()))
        return ImageInfo(text, image.builds(), systems), image

    return await asyncio.gather(*(resolve(text) for text in pod.template.images))


async def _events(api: ApiClient, pod: CachedPod) -> tuple[v1.Event, ...]:
    """Return the latest events of the pod, the newest last; none if the user may not list them."""
    path = f"/api/v1/namespaces/{pod.namespace}/events"
    selector = f"involvedObject.kind=Pod,involvedObject.name={pod.name}"
    try:
        listed = await api.list(v1.Event, path, {"fieldSelector": selector})
    except ApiError as error:
        if error.is_forbidden:
            return ()
        raise
    events = sorted(listed.items, key=lambda e: str(e.lastTimestamp or e.eventTime or ""))
    return tuple(events[-_MAX_EVENTS:])


async def _origin(api: ApiClient, pod: CachedPod, obj: Mapping[str, Any]) -> str:
    """Describe where the pod's RuntimeClass was set; empty if unknown."""
    if not pod.runtime_class:
        return ""
    kind, name = pod.owner
    added = "set by admission, because the author set none"
    if kind in WORKLOADS:
        path = f"{WORKLOADS[kind]}/namespaces/{pod.namespace}/{kind.lower()}s/{name}"
        owner = await _get(api, path)
        if owner is None:
            return ""
        path_to_template = template_path(owner["apiVersion"], owner["kind"]) or ()
        return f"set by {kind} {name}" if _names_class(owner, path_to_template) else added
    applied = obj["metadata"].get("annotations", {}).get(LAST_APPLIED_ANNOTATION)
    if applied:
        return "set by its author" if _names_class(json.loads(applied), ()) else added
    return "set in the pod"


def _names_class(obj: Mapping[str, Any], path_to_template: Sequence[str | int]) -> bool:
    value: Any = obj
    for step in (*path_to_template, "spec"):
        value = value.get(step) or {}
    return bool(value.get("runtimeClassName"))


async def _get(api: ApiClient, path: str) -> dict[str, Any] | None:
    try:
        obj: dict[str, Any] = json.loads(await api.request("GET", path))
    except ApiError as error:
        if error.is_not_found:
            return None
        raise
    return obj

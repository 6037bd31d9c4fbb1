"""What an upgrade has to know of a cluster, read when it is asked for: nodes, classes, workloads.

Pods are put to whoever makes them: a Deployment, not its ReplicaSet. Images are looked up only for
workloads that the upgrade concerns; one that cannot be known for certain stays unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.cluster.classes import desired_classes
from winpod.cluster.looking_up import Images
from winpod.cluster.node_labels import change_labels, with_labels
from winpod.cluster.pull_secrets import PullSecrets
from winpod.cluster.seen import Condition, PodObject, PodStatus, SeenPod, Templates
from winpod.cluster.settings import Settings
from winpod.cluster.upgrade_asked import Asked
from winpod.cluster.upgrade_moves import DAEMON, Workload, WorkloadPod
from winpod.cluster.upgrade_plan import Scene, is_concerned
from winpod.images.source import ImageSources
from winpod.node.api import ApiServer
from winpod.windows.errors import InvalidInput, WinpodError
from winpod.windows.objects import Node, Pod
from winpod.windows.platforms import Image
from winpod.windows.scheduling import ENDED_PHASES, with_allocated

LookUp = Callable[[str, Sequence[Mapping[str, Any]]], Awaitable[Image | None]]
NODES = "/api/v1/nodes"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
WORKLOADS = {
    "ReplicationController": "/api/v1",
    "Deployment": "/apis/apps/v1",
    "StatefulSet": "/apis/apps/v1",
    "DaemonSet": "/apis/apps/v1",
    "ReplicaSet": "/apis/apps/v1",
    "Job": "/apis/batch/v1",
    "CronJob": "/apis/batch/v1",
}
_LOOKUP_SECONDS = 30.0
_log = logging.getLogger(__name__)
_COUNTED = ("ReplicationController", "Deployment", "StatefulSet", "ReplicaSet")


class _ReadyStatus(PodStatus):
    conditions: list[Condition] | None = None


class _Pod(PodObject):
    status: _ReadyStatus = msgspec.field(default_factory=_ReadyStatus)


class _Owner(DictMixin):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(DictMixin, rename="camel"):
    name: str = ""
    namespace: str = ""
    owner_references: list[_Owner] | None = None


class _JobTemplate(DictMixin):
    spec: dict[str, Any]


class _Spec(DictMixin, rename="camel"):
    replicas: int | None = None
    template: dict[str, Any] | None = None
    job_template: _JobTemplate | None = None


class _Maker(DictMixin):
    metadata: _Metadata
    spec: _Spec

    @property
    def template(self) -> dict[str, Any]:
        job = self.spec.job_template
        return (job.spec["template"] if job else self.spec.template) or {}


_Key = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A workload before its images are known, and the service account that it pulls as."""

    workload: Workload
    account: str = "default"


class Survey:
    def __init__(self, api: ApiServer, settings: Callable[[], Settings], look_up: LookUp) -> None:
        self._api = api
        self._settings = settings
        self._look_up = look_up
        self._secrets = PullSecrets(api)

    async def scene(self, asked: Asked) -> Scene:
        nodes, classes, pods = await asyncio.gather(
            self.objects(NODES), self.objects(CLASSES), self._pods()
        )
        bound = [replace(s.template, node_name=s.node) for s, _ in pods if s.node]
        found = await self._workloads(pods)
        settings = self._settings()
        read = with_allocated((_node(obj, settings) for obj in nodes), bound)
        wanted = tuple(want.to_object() for want in desired_classes(read, settings))
        bare = Scene(read, tuple(classes), tuple(one.workload for one in found), wanted)
        concerned = [one for one in found if is_concerned(one.workload, asked, bare)]
        known = await asyncio.gather(*(self._with_images(one) for one in concerned))
        with_images = {str(workload): workload for workload in known}
        every = (with_images.get(str(one), one) for one in bare.workloads)
        return replace(bare, workloads=tuple(every))

    async def objects(self, path: str) -> list[dict[str, Any]]:
        """As the server has them, each with the kind that a list leaves out."""
        answer = json.loads(await self._api.request("GET", path))
        kind = {
            "apiVersion": answer["apiVersion"],
            "kind": str(answer["kind"]).removesuffix("List"),
        }
        return [kind | item for item in answer["items"] or ()]

    async def _pods(self) -> list[tuple[SeenPod, bool]]:
        """Those that have not ended, and whether each is ready."""
        templates = Templates()
        listed = await self._api.list(_Pod, "/api/v1/pods", {})
        return [
            (templates.see_pod(pod), _is_ready(pod))
            for pod in listed.items
            if pod.status.phase not in ENDED_PHASES
        ]

    async def _workloads(self, pods: Iterable[tuple[SeenPod, bool]]) -> list[_Found]:
        makers = await self._makers()
        made: dict[_Key, list[tuple[SeenPod, bool]]] = {}
        for seen, is_ready in pods:
            if seen.owner[0] != "Node":  # which its node alone starts and ends
                made.setdefault(_root(seen, makers), []).append((seen, is_ready))
        found = []
        for key in {**makers, **made}:
            one = _workload(key, makers.get(key), made.get(key, ()))
            if one is not None:
                found.append(one)
        return found

    async def _makers(self) -> dict[_Key, _Maker]:
        async def of_kind(kind: str, where: str) -> list[tuple[_Key, _Maker]]:
            listed = await self._api.list(_Maker, f"{where}/{kind.lower()}s", {})
            metadata = ((item.metadata, item) for item in listed.items)
            return [((kind, m.namespace, m.name), item) for m, item in metadata]

        listed = await asyncio.gather(*(of_kind(*pair) for pair in WORKLOADS.items()))
        return {key: item for items in listed for key, item in items}

    async def _with_images(self, found: _Found) -> Workload:
        workload = found.workload
        names = workload.pod.pull_secrets
        secrets = await self._secrets.of(workload.namespace, names, found.account)
        texts = workload.pod.images
        images = await asyncio.gather(*(self._look_up(text, secrets) for text in texts))
        known = {t: image for t, image in zip(texts, images, strict=True) if image}
        return replace(workload, images=known)


def _node(obj: Mapping[str, Any], settings: Settings) -> Node:
    """With the labels that the operator gives it."""
    node = Node.from_object(obj)
    return with_labels(node, change_labels(node)) if settings.labels else node


def _is_ready(pod: _Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def _controller(maker: _Maker | None) -> tuple[str, str]:
    owners = (maker.metadata.owner_references or ()) if maker else ()
    return next(((o.kind, o.name) for o in owners if o.controller), ("", ""))


def _root(seen: SeenPod, makers: Mapping[_Key, _Maker]) -> _Key:
    """Who makes the pod; a Job is its own, since a CronJob does not change those it has made."""
    kind, name = seen.owner
    if not kind:
        return ("Pod", seen.namespace, seen.name)
    key = (kind, seen.namespace, name)
    if kind == "ReplicaSet" and (above := _controller(makers.get(key))) != ("", ""):
        return (above[0], seen.namespace, above[1])
    return key


def _workload(
    key: _Key,
    maker: _Maker | None,
    pods: Sequence[tuple[SeenPod, bool]],
) -> _Found | None:
    kind, namespace, name = key
    is_made = kind in ("ReplicaSet", "Job") and _controller(maker) != ("", "")
    if (is_made or kind == "Job") and not pods:
        return None
    template = maker.template if maker else {}
    try:
        pod = (
            Pod.from_template(template, every_node=kind == DAEMON)
            if maker
            else replace(pods[0][0].template, overhead=())
        )
    except InvalidInput:
        return None
    account = template.get("spec", {}).get("serviceAccountName") or "default"
    counted = (maker.spec.replicas if maker.spec.replicas is not None else 1) if maker else None
    workload = Workload(
        *(kind, namespace, name, pod),
        tuple(_seen(seen, is_ready) for seen, is_ready in pods),
        counted if kind in _COUNTED else None,
    )
    return _Found(workload, account)


def _seen(pod: SeenPod, is_ready: bool) -> WorkloadPod:
    return WorkloadPod(
        pod.name,
        pod.uid,
        pod.node,
        is_ready,
        pod.is_leaving,
        pod.runtime_class,
        pod.template.node_selector,
    )


def asking(sources: ImageSources) -> LookUp:
    """Each image of this look once. What a tag lets one guess is not enough to move anybody by."""

    async def look_up(text: str, secrets: Sequence[Mapping[str, Any]]) -> Image | None:
        try:
            return await sources.describe(text, secrets)
        except WinpodError as error:
            _log.warning("%s", error)
            return None

    return look_up


def keeping(images: Images) -> LookUp:
    """What the operator knows already, else what it finds out within its time."""

    async def look_up(text: str, secrets: Sequence[Mapping[str, Any]]) -> Image | None:
        found = await images.describe(text, secrets, _LOOKUP_SECONDS)
        return found.image if found.is_certain else None

    return look_up

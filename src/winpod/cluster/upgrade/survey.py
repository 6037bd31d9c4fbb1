"""What an upgrade has to know of a cluster, read when it is asked for: nodes, classes, workloads.

Images are looked up only for workloads that the upgrade concerns; what is not known for certain
stays unknown, and the workload says why. Lists come in pages and are put together in a thread, so
that an operator with twenty thousand pods still answers others meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.cluster.admission.looking_up import Found, Images
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.classes import desired_classes
from winpod.cluster.makers import WORKLOADS, Key, ListedPod, Made, Maker, see_living, workloads_of
from winpod.cluster.node_labels import change_labels, with_labels
from winpod.cluster.settings import Settings
from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.moves import Workload
from winpod.cluster.upgrade.plan import Plan, Scene, concerned_workloads, plan_upgrade
from winpod.cluster.view import CLASSES, NODES, PODS
from winpod.images.source import ImageSources
from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError
from winpod.windows.objects import Node
from winpod.windows.scheduling import with_allocated

Secrets = Sequence[Mapping[str, Any]]
LookUp = Callable[[str, Secrets], Awaitable[Found]]
_PAGE = "500"
_LOOKUP_SECONDS = 30.0
_RECENT_SECONDS = 60.0
"""For how long what a registry said of a tag is what it says now."""
_CLASS_KIND = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
_T = TypeVar("_T")


class _PageMetadata(DictMixin, rename={"go_on": "continue"}):
    go_on: str = ""


class _Page(DictMixin):
    items: list[msgspec.Raw] | None = None
    metadata: _PageMetadata = msgspec.field(default_factory=_PageMetadata)


class Survey:
    def __init__(self, api: ApiServer, settings: Callable[[], Settings], look_up: LookUp) -> None:
        self._api = api
        self._settings = settings
        self._look_up = look_up
        self._secrets = PullSecrets(api)

    async def plan(self, asked: Asked, scene: Scene) -> Plan:
        return await asyncio.to_thread(plan_upgrade, asked, scene)

    async def scene(self, asked: Asked) -> Scene:
        """With the images of those workloads that the upgrade concerns."""
        nodes, classes, pods, *makers = await asyncio.gather(
            self._listed(NODES, dict[str, Any]),
            self._listed(CLASSES, dict[str, Any]),
            self._listed(PODS, ListedPod),
            *(self._makers(kind, where) for kind, where in WORKLOADS.items()),
        )
        known = {key: maker for some in makers for key, maker in some.items()}
        settings = self._settings()
        bare, found = await asyncio.to_thread(_bare_scene, nodes, classes, pods, known, settings)
        names = {str(workload) for workload in concerned_workloads(asked, bare)}
        concerned = [one for one in found if str(one.workload) in names]
        looked_up = await asyncio.gather(*(self._with_images(one) for one in concerned))
        with_images = {str(workload): workload for workload in looked_up}
        every = (with_images.get(str(one), one) for one in bare.workloads)
        return replace(bare, workloads=tuple(every))

    async def uses_class(self, name: str) -> str:
        """A pod that uses this class, if there is one."""
        for pod in see_living(await self._listed(PODS, ListedPod)):
            if pod.seen.runtime_class == name:
                return f"{pod.seen.namespace}/{pod.seen.name}"
        return ""

    async def _makers(self, kind: str, where: str) -> dict[Key, Maker]:
        listed = await self._listed(f"{where}/{kind.lower()}s", Maker)
        return {(kind, m.metadata.namespace, m.metadata.name): m for m in listed}

    async def _listed(self, path: str, kind: type[_T]) -> list[_T]:
        found: list[_T] = []
        params = {"limit": _PAGE}
        while True:
            page = msgspec.json.decode(
                await self._api.request("GET", path, params=params), type=_Page
            )
            found += [msgspec.json.decode(item, type=kind) for item in page.items or ()]
            if not page.metadata.go_on:
                return found
            params["continue"] = page.metadata.go_on

    async def _with_images(self, made: Made) -> Workload:
        workload = made.workload
        names = workload.pod.pull_secrets
        secrets = await self._secrets.of(workload.namespace, names, made.account)
        texts = workload.pod.images
        found = await asyncio.gather(*(self._look_up(text, secrets) for text in texts))
        known = {t: f.image for t, f in zip(texts, found, strict=True) if f.image and not f.problem}
        problems = tuple(dict.fromkeys(f.problem for f in found if f.problem))
        return replace(workload, images=known, problems=problems)


def _bare_scene(
    nodes: Sequence[Mapping[str, Any]],
    classes: Iterable[Mapping[str, Any]],
    pods: Iterable[ListedPod],
    makers: Mapping[Key, Maker],
    settings: Settings,
) -> tuple[Scene, list[Made]]:
    living = see_living(pods)
    bound = (replace(p.seen.template, node_name=p.seen.node) for p in living if p.seen.node)
    read = with_allocated((_node(obj, settings) for obj in nodes), bound)
    wanted = tuple(want.to_object() for want in desired_classes(read, settings))
    found = workloads_of(living, makers)
    known = tuple({**_CLASS_KIND, **obj} for obj in classes)
    uids = {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in nodes}
    return Scene(read, known, tuple(one.workload for one in found), wanted, uids), found


def _node(obj: Mapping[str, Any], settings: Settings) -> Node:
    """With the labels that the operator gives it."""
    node = Node.from_object(obj)
    return with_labels(node, change_labels(node)) if settings.labels else node


def asking(sources: ImageSources) -> LookUp:
    """Each image of this look once. What a tag lets one guess is not enough to move anybody by."""

    async def look_up(text: str, secrets: Secrets) -> Found:
        try:
            return Found(await sources.describe(text, secrets))
        except WinpodError as error:
            return Found(None, error.sentence)

    return look_up


class RecentImages:
    """What the operator knows of digests, and of tags what registries said within a minute.

    Nobody is moved by what a tag named once: where the registry does not answer, that is unknown.
    """

    def __init__(self, images: Images, clock: Callable[[], float] = time.monotonic) -> None:
        self._images = images
        self._clock = clock
        self._recent: dict[tuple[str, str], tuple[float, Found]] = {}

    async def look_up(self, text: str, secrets: Secrets) -> Found:
        now = self._clock()
        self._recent = {key: kept for key, kept in self._recent.items() if now < kept[0]}
        key = (text, hashlib.sha256(msgspec.json.encode(secrets)).hexdigest())
        if key in self._recent:
            return self._recent[key][1]
        found = await self._images.describe(text, secrets, _LOOKUP_SECONDS)
        if found.is_old:
            found = await self._images.describe_anew(text, secrets, _LOOKUP_SECONDS)
        if found.is_certain:
            self._recent[key] = (now + _RECENT_SECONDS, found)
        return found

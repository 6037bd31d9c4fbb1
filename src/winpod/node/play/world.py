"""All that is played: what the manifests ask for is made so, and kept so, again and again.

Objects are written down first; then a round looks at all of them and does what is missing: pods of
workloads made and ended, pods placed, services led to them. A round that is cut short is made up
for by the next one, also of the next process.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.config import Config
from winpod.cri.settings import Compute
from winpod.node.play import controllers, placing
from winpod.node.play.claims import CLAIM, VOLUME, Claims, clear
from winpod.node.play.desired import Change, Desired
from winpod.node.play.events import Events
from winpod.node.play.fleet import Fleet
from winpod.node.play.images import Lookups
from winpod.node.play.nodes import node_document
from winpod.node.play.objects import Document, Key, in_order, key_of
from winpod.node.play.places import Places
from winpod.node.play.pods import Pods, images_of, pod_in
from winpod.node.play.publishing import Publishing, parse_publication
from winpod.node.play.records import Records
from winpod.node.play.source import PlayObjects, typed
from winpod.node.play.templates import has_ended, name_of
from winpod.node.play.workloads import Workloads
from winpod.node.pods import uid_of
from winpod.node.requests import metadata_of
from winpod.node.sources import Kind
from winpod.windows.errors import WinpodError

_log = logging.getLogger(__name__)
_WAITING_SECONDS, _LONGEST_SECONDS = 30.0, 3600.0
_WHO_PULLS = ("Secret", "ServiceAccount")
_KEPT = (CLAIM, VOLUME)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one `winpod play` asks for; `local` are images that were taken from layouts."""

    documents: Sequence[Document]
    nodes: Sequence[Document] = ()
    layouts: Sequence[str] = ()
    publish: Sequence[str] = ()
    local: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Pull:
    """An image that a pod will need, for the handler and the build of its node.

    `secrets` are those to pull it with, each as JSON.
    """

    image: str
    handler: str
    build: str
    secrets: tuple[str, ...] = ()


class World:
    def __init__(self, root: Path, config: Config) -> None:
        self.root = root
        self._handlers = config.handlers
        simulated = config.runtime.compute is Compute.SIMULATED
        self.records = Records(root / "play/records.db")
        self.events = Events(self.records)
        self.objects = PlayObjects(self.records, root)
        self.publishing = Publishing(serves=not simulated)
        self.fleet = Fleet(root, config, self.objects, self)
        self._dirty = asyncio.Event()
        self.pods = Pods(self.records, self.fleet.give, self._dirty.set)
        self.claims = Claims(self.records, root)
        self._clearing: asyncio.Task[None] | None = None
        self.desired = Desired(self.records, self.pods, self.claims)
        self._images = Lookups(self.records)
        self._places = Places(
            self.records,
            self.pods,
            self.fleet,
            self._images,
            self.events,
            self.claims,
            config.handlers,
        )
        self.workloads = Workloads(
            self.records, self.desired, self.pods, self._places, self.events, self._dirty.set
        )
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._settle_nodes(self.records.of_kind("Node"))
        self._dirty.set()
        self._task = asyncio.create_task(self._rounds())

    async def stop(self) -> None:
        """Pods go on."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._clearing:
            await self._clearing
        await self.publishing.stop()
        await self.fleet.stop()
        self.records.close()

    @property
    def is_idle(self) -> bool:
        """No pod is there, and nothing that makes pods or leads to them."""
        active = (*controllers.KINDS, "Pod", "Service")
        return not any(key.kind in active for key in self.records.keys())  # noqa: SIM118

    @property
    def is_done(self) -> bool:
        """It is idle, and what claims had is gone as well."""
        return self.is_idle and not any(self.claims.ending()) and not self.is_clearing

    @property
    def is_clearing(self) -> bool:
        return self._clearing is not None and not self._clearing.done()

    async def apply(self, asked: Asked) -> tuple[list[Change], list[str]]:
        """All of it or, where something is refused, nothing: what can be said no to comes first,
        then the nodes start, and then everything is written at once."""
        async with self._turn:
            self._refuse(asked)
            self._look_in(asked.layouts)
            nodes, notes = await self._nodes_for(asked)
            documents = in_order([*nodes, *asked.documents])
            await self._add_nodes(documents)
            with self.records.together():
                self._remember("publish", asked.publish)
                self._remember("local images", asked.local)
                changes = [self.desired.write(document) for document in documents]
            if any(c.key.kind in _WHO_PULLS and c.what != "unchanged" for c in changes):
                self._images.forget()
            await self._refresh_volumes(changes)
        self._dirty.set()
        return changes, notes

    async def pulls(self, asked: Asked) -> list[Pull]:
        """The images that pods of these objects may need, for each node that they can go to."""
        async with self._turn:
            self._refuse(asked)
            self._look_in(asked.layouts)
            nodes, _ = await self._nodes_for(asked)
            facts = self.fleet.facts([*self.records.of_kind("Node"), *nodes, *asked.documents])
            found: dict[Pull, None] = {}
            for document in asked.documents:
                if pod := pod_in(document):
                    images = await self._images.of(pod, asked.documents)
                    classes = self._places.classes(asked.documents)
                    places = placing.possible(pod, facts, classes, images, self._handlers)
                    secrets = tuple(map(json.dumps, self._images.secrets(pod, asked.documents)))
                    for node, handler in places:
                        build = str(node.build)
                        pulls = (Pull(i, handler, build, secrets) for i in images_of(pod))
                        found |= dict.fromkeys(pulls)
            return list(found)

    async def delete(self, keys: Iterable[Key], *, volumes: bool) -> list[Change]:
        async with self._turn:
            wanted = [key for key in keys if volumes or key.kind not in _KEPT]
            changes = [change for key in wanted if (change := self.desired.delete(key))]
        self._dirty.set()
        return changes

    def _refuse(self, asked: Asked) -> None:
        for text in asked.publish:
            parse_publication(text)
        self.fleet.refuse([*asked.nodes, *asked.documents])
        self.desired.refuse(asked.documents)

    def _look_in(self, layouts: Sequence[str]) -> None:
        if self._remember("layouts", layouts):
            self._images.forget()

    def _remember(self, name: str, values: Sequence[str]) -> bool:
        """For pods that are made later on; whether there is something new."""
        before = self.records.setting(name)
        new = [value for value in values if value not in before]
        if new:
            self.records.set(name, [*before, *new])
        return bool(new)

    async def _nodes_for(self, asked: Asked) -> tuple[list[Document], list[str]]:
        """Those that were asked for; where there are none at all, one that fits best."""
        nodes = list(asked.nodes)
        there = [d for d in asked.documents if d["kind"] == "Node"]
        pods = [pod for document in asked.documents if (pod := pod_in(document))]
        if nodes or there or self.records.of_kind("Node") or not pods:
            return nodes, []
        images = [await self._images.of(pod, asked.documents) for pod in pods]
        pairs = [(pod.to_dict(), known) for pod, known in zip(pods, images, strict=True)]
        classes = self._places.classes(asked.documents)
        build, good, count = placing.best_build(
            pairs, classes, self.fleet.handlers_on, self._handlers
        )
        short = build.release.short_name if build.release else str(build.number)
        fitting = "all pods" if good == count else f"the pods of {good} of {count} objects"
        note = f"one node, {build.describe()}, fits {fitting}; --node chooses others"
        return [node_document(build, f"win-{short}")], [note]

    async def _add_nodes(self, documents: Iterable[Document]) -> None:
        """Those among these run; where one cannot start, all is as it was."""
        before = self.records.of_kind("Node")
        asked = [d for d in documents if d["kind"] == "Node"]
        named = {document["metadata"]["name"]: document for document in (*before, *asked)}
        try:
            await self._settle_nodes(list(named.values()))
        except BaseException:
            await self._settle_nodes(before)
            raise

    async def _settle_nodes(self, wanted: Sequence[Document]) -> None:
        """Those that are asked for run, each with its part of the machine."""
        if wanted:
            await self.publishing.start()
        for node in await self.fleet.settle(wanted, self.pods):
            await node.engine.replace(self.pods.on(node.facts.name))

    async def _refresh_volumes(self, changes: Iterable[Change]) -> None:
        """What is mounted of a config map or secret that has changed is new at once."""
        kinds = ("ConfigMap", "Secret")
        changed = [c.key for c in changes if c.what == "configured" and c.key.kind in kinds]
        namespaces = {key.namespace for key in changed}
        for pod in self.pods.all():
            node = self.fleet.node_of(pod)
            if node and metadata_of(pod).namespace in namespaces and not has_ended(pod):
                try:
                    await node.volumes.refresh(pod)
                except WinpodError as error:
                    _log.info("volumes of %s stay as they are: %s", name_of(pod), error)

    async def _rounds(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._patience()):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            self._dirty.clear()
            try:
                async with self._turn:
                    await self._round()
            except Exception:
                _log.exception("a round was cut short")
                await asyncio.sleep(1)
                self._dirty.set()

    def _patience(self) -> float:
        waiting = any(not choice.node for choice in self.pods.choices.values())
        longest = _WAITING_SECONDS if waiting else _LONGEST_SECONDS
        if (again_at := self.workloads.again_at) is None:
            return longest
        return min(longest, max((again_at - datetime.now(UTC)).total_seconds(), 0.05))

    async def _round(self) -> None:
        await self.workloads.step()
        self.desired.let_claims_go(self.pods.all())
        if self.claims.aside() and not self.is_clearing:
            self._clearing = asyncio.create_task(self._clear())
        if self.is_idle:
            await self._let_nodes_go()
        for document in list(self.pods.replaced()):
            self.pods.add(self.desired.made(document), document)
        await self._places.place_all()
        await self.publishing.update(
            [typed(v1.Service, document) for document in self.records.of_kind("Service")],
            self.pods.all(),
            self.records.setting("publish"),
        )

    async def _clear(self) -> None:
        """What claims had is removed, beside everything else."""
        tried: set[Path] = set()
        while new := self.claims.aside() - tried:
            tried |= new
            await asyncio.to_thread(clear, new)

    async def _let_nodes_go(self) -> None:
        """The next pods may need others."""
        for document in self.records.of_kind("Node"):
            self.records.remove(key_of(document))
        await self.fleet.settle((), self.pods)
        self.records.clear()

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        self.pods.tell(uid_of(pod), status)

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        self.pods.annotate(uid_of(pod), annotations)

    async def event(
        self, pod: v1.Pod, kind: Kind, reason: str, message: str, container: str = ""
    ) -> None:
        key = Key("Pod", metadata_of(pod).namespace or "", name_of(pod))
        self.events.tell(key, kind, reason, message, container)

    async def gone(self, pod: v1.Pod) -> None:
        self.pods.forget(uid_of(pod))

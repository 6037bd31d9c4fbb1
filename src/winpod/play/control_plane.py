"""The control plane of `winpod play`: one reconcile loop over all stored objects.

Objects are stored first. Each sync then runs the controllers, schedules pending pods and updates
the service proxy. A sync that fails is repeated by the next one, also after a restart of the
process.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winpod.clock import utc_now
from winpod.concurrency import run_to_completion
from winpod.config import ComputeKind, Config
from winpod.errors import WinpodError
from winpod.images.layout import open_layout
from winpod.images.registry.auth import ResolvedCredentials
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, uid_of
from winpod.kubelet.interfaces import EventType
from winpod.play import scheduler
from winpod.play.apiserver.database import database_file
from winpod.play.apiserver.objects import Document, ObjectKey, in_apply_order, key_of
from winpod.play.apiserver.pods import PodStore, images_of, pod_template_of
from winpod.play.apiserver.store import EventStore, ObjectStore
from winpod.play.apply import AppliedChange, Applier
from winpod.play.controllers import manager
from winpod.play.controllers.manager import ControllerManager
from winpod.play.controllers.pvc import CLAIM, VOLUME, PvcController, delete_directories
from winpod.play.image_lookup import PodImageLookup
from winpod.play.image_pull import ImagePull, ImagePuller, Report, ignore_report
from winpod.play.kubelet_objects import StoredObjectSource, from_document
from winpod.play.nodes import NodeManager, node_document
from winpod.play.pod_template import is_terminal, name_of
from winpod.play.proxy.service_proxy import ServiceProxy, parse_published_port
from winpod.play.scheduler import Scheduler

_log = logging.getLogger(__name__)
_PENDING_SYNC_SECONDS, _MAX_SYNC_SECONDS = 30.0, 3600.0
_PULL_SECRET_KINDS = ("Secret", "ServiceAccount")
_VOLUME_KINDS = (CLAIM, VOLUME)


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """The input of one `winpod play`; `credentials` are the user's, for the pulls."""

    documents: Sequence[Document]
    nodes: Sequence[Document] = ()
    layouts: Sequence[str] = ()
    publish: Sequence[str] = ()
    credentials: ResolvedCredentials = field(default_factory=ResolvedCredentials)


@dataclass(frozen=True, slots=True)
class _ApplyPlan:
    """What an apply needs: nodes to add, and images to pull for them and the existing nodes."""

    existing_nodes: Sequence[Document]
    nodes: Sequence[Document]
    notes: list[str]
    pulls: Sequence[ImagePull]


class ControlPlane:
    def __init__(self, root: Path, config: Config) -> None:
        self.root = root
        self._handlers = config.handlers
        simulated = config.runtime.compute is ComputeKind.SIMULATED
        self.records = ObjectStore(database_file(root))
        self.events = EventStore(self.records)
        self.objects = StoredObjectSource(self.records, root)
        self.publishing = ServiceProxy(serves=not simulated)
        self.fleet = NodeManager(root, config, self.objects, self)
        self._dirty = asyncio.Event()
        self.pods = PodStore(self.records, self.fleet.assign_pod, self._dirty.set)
        self.claims = PvcController(self.records, root)
        self._volume_deletion: asyncio.Task[None] | None = None
        self.desired = Applier(self.records, self.pods, self.claims)
        self._images = PodImageLookup(self.records)
        self._puller = ImagePuller(root, config)
        self._scheduler = Scheduler(
            self.records,
            self.pods,
            self.fleet,
            self._images,
            self.events,
            self.claims,
            config.handlers,
        )
        self.workloads = ControllerManager(
            self.records, self.desired, self.pods, self._scheduler, self.events, self._dirty.set
        )
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._reconcile_nodes(self.records.list_kind("Node"))
        self._dirty.set()
        self._task = asyncio.create_task(self._sync_loop())

    async def stop(self) -> None:
        """Stop the control plane; pods keep running."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._volume_deletion:
            await self._volume_deletion
        await self.publishing.stop()
        await self.fleet.stop()
        await self._images.close()
        self.records.close()

    @property
    def is_idle(self) -> bool:
        """Whether there are no pods, workloads or services."""
        active = (*manager.KINDS, "Pod", "Service")
        return not any(key.kind in active for key in self.records.keys())  # noqa: SIM118

    @property
    def is_done(self) -> bool:
        """Whether the control plane is idle and all released volumes are deleted."""
        return self.is_idle and not any(self.claims.terminating()) and not self.is_deleting_volumes

    @property
    def is_deleting_volumes(self) -> bool:
        return self._volume_deletion is not None and not self._volume_deletion.done()

    async def apply(
        self, request: ApplyRequest, report: Report = ignore_report
    ) -> tuple[list[AppliedChange], list[str]]:
        """Apply all objects or none, and return the changes and notes.

        Validation comes first, then the images are pulled, the nodes start, and all objects are
        written in one transaction. Others may change objects during the pulls; if the nodes
        changed, the apply starts over. A cancelled apply changes nothing, unless it comes too late.
        """
        has_new_layouts = not {*request.layouts} <= {*self.records.setting("layouts")}
        if has_new_layouts:
            self._images.invalidate()
        try:
            while True:
                async with self._lock:
                    with self._images.on_behalf_of_user(request.layouts, request.credentials):
                        plan = await self._plan(request)
                images = dict.fromkeys(pull.image for pull in plan.pulls)
                report({"type": "validated", "images": list(images)})
                local = await self._puller.pull(
                    plan.pulls, request.layouts, request.credentials, report
                )
                async with self._lock:
                    if self.records.list_kind("Node") == plan.existing_nodes:
                        changes = await run_to_completion(self._commit(request, plan, local))
                        return changes, plan.notes
        except BaseException:
            if has_new_layouts:
                self._images.invalidate()
            raise

    async def _plan(self, request: ApplyRequest) -> _ApplyPlan:
        """Validate the request, and list the images of its pods for every node they can run on."""
        self._validate(request)
        for layout in {*request.layouts} - {*self.records.setting("layouts")}:
            open_layout(Path(layout)).close()
        existing = self.records.list_kind("Node")
        nodes, notes = await self._nodes_for(request)
        facts = self.fleet.node_configs([*existing, *nodes, *request.documents])
        pulls: dict[ImagePull, None] = {}
        for document in request.documents:
            if pod := pod_template_of(document):
                images = await self._images.look_up(pod, request.documents)
                classes = self._scheduler.classes(request.documents)
                feasible = scheduler.feasible_nodes(
                    pod, facts, classes, images.found, self._handlers
                )
                secrets = tuple(map(json.dumps, self._images.secrets(pod, request.documents)))
                for node, handler in feasible:
                    new = (ImagePull(i, handler, node.build, secrets) for i in images_of(pod))
                    pulls |= dict.fromkeys(new)
        return _ApplyPlan(existing, nodes, notes, list(pulls))

    async def _commit(
        self, request: ApplyRequest, plan: _ApplyPlan, local: Sequence[str]
    ) -> list[AppliedChange]:
        """Start the nodes and write all objects; `local` are the images that layouts have."""
        self._validate(request)
        documents = in_apply_order([*plan.nodes, *request.documents])
        await self._add_nodes(documents)
        with self.records.transaction():
            self._add_setting("layouts", request.layouts)
            self._add_setting("publish", request.publish)
            self._add_setting("local images", local)
            changes = [self.desired.apply(document) for document in documents]
        if any(c.key.kind in _PULL_SECRET_KINDS and c.what != "unchanged" for c in changes):
            self._images.invalidate()
        self._dirty.set()
        await self._refresh_volumes(changes)
        return changes

    async def delete(self, keys: Iterable[ObjectKey], *, volumes: bool) -> list[AppliedChange]:
        async with self._lock:
            selected = [key for key in keys if volumes or key.kind not in _VOLUME_KINDS]
            changes = [change for key in selected if (change := self.desired.delete(key))]
        self._dirty.set()
        return changes

    def _validate(self, request: ApplyRequest) -> None:
        for text in request.publish:
            parse_published_port(text)
        self.fleet.validate([*request.nodes, *request.documents])
        self.desired.validate(request.documents)

    def _add_setting(self, name: str, values: Sequence[str]) -> None:
        """Append new values to a stored setting."""
        before = self.records.setting(name)
        if new := [value for value in values if value not in before]:
            self.records.set(name, [*before, *new])

    async def _nodes_for(self, request: ApplyRequest) -> tuple[list[Document], list[str]]:
        """Return the requested nodes or, if there are none at all, one node of the best build."""
        nodes = list(request.nodes)
        documents = [d for d in request.documents if d["kind"] == "Node"]
        pods = [pod for document in request.documents if (pod := pod_template_of(document))]
        if nodes or documents or self.records.list_kind("Node") or not pods:
            return nodes, []
        images = [await self._images.look_up(pod, request.documents) for pod in pods]
        pairs = [(pod.to_dict(), of_pod.found) for pod, of_pod in zip(pods, images, strict=True)]
        classes = self._scheduler.classes(request.documents)
        build, good, count = scheduler.best_build(
            pairs, classes, self.fleet.available_handlers, self._handlers
        )
        short = build.release.short_name if build.release else str(build.number)
        fitting = "all pods" if good == count else f"the pods of {good} of {count} objects"
        note = f"one node, {build.describe()}, fits {fitting}; --node chooses others"
        return [node_document(build, f"win-{short}")], [note]

    async def _add_nodes(self, documents: Iterable[Document]) -> None:
        """Start the nodes among the documents; restore the previous set if one fails to start."""
        before = self.records.list_kind("Node")
        requested = [d for d in documents if d["kind"] == "Node"]
        named = {document["metadata"]["name"]: document for document in (*before, *requested)}
        try:
            await self._reconcile_nodes(list(named.values()))
        except BaseException:
            await self._reconcile_nodes(before)
            raise

    async def _reconcile_nodes(self, documents: Sequence[Document]) -> None:
        """Start and stop nodes to match, each with its share of the machine."""
        if documents:
            await self.publishing.start()
        for node in await self.fleet.reconcile(documents, self.pods):
            await node.kubelet.replace_pods(self.pods.on_node(node.facts.name))

    async def _refresh_volumes(self, changes: Iterable[AppliedChange]) -> None:
        """Update mounted ConfigMaps and Secrets that have changed."""
        kinds = ("ConfigMap", "Secret")
        changed = [c.key for c in changes if c.what == "configured" and c.key.kind in kinds]
        namespaces = {key.namespace for key in changed}
        for pod in self.pods.all():
            node = self.fleet.node_of(pod)
            if node and metadata_of(pod).namespace in namespaces and not is_terminal(pod):
                try:
                    await node.volumes.refresh(pod)
                except WinpodError as error:
                    _log.info("Failed to refresh volumes of pod %s: %s", name_of(pod), error)

    async def _sync_loop(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._sync_timeout()):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            self._dirty.clear()
            try:
                async with self._lock:
                    await self._sync()
            except Exception:
                _log.exception("Reconcile failed")
                await asyncio.sleep(1)
                self._dirty.set()

    def _sync_timeout(self) -> float:
        waiting = any(not choice.node for choice in self.pods.choices.values())
        longest = _PENDING_SYNC_SECONDS if waiting else _MAX_SYNC_SECONDS
        if (again_at := self.workloads.again_at) is None:
            return longest
        return min(longest, max((again_at - utc_now()).total_seconds(), 0.05))

    async def _sync(self) -> None:
        await self.workloads.run_controllers()
        self.desired.release_claims(self.pods.all())
        if self.claims.released_directories() and not self.is_deleting_volumes:
            self._volume_deletion = asyncio.create_task(self._delete_volumes())
        if self.is_idle:
            await self._remove_nodes()
        for document in list(self.pods.pods_to_recreate()):
            self.pods.add(self.desired.with_defaults(document), document)
        await self._scheduler.schedule_pending()
        await self.publishing.update(
            [from_document(v1.Service, document) for document in self.records.list_kind("Service")],
            self.pods.all(),
            self.records.setting("publish"),
        )

    async def _delete_volumes(self) -> None:
        """Delete the directories of removed claims in the background."""
        tried: set[Path] = set()
        while new := self.claims.released_directories() - tried:
            tried |= new
            await asyncio.to_thread(delete_directories, new)

    async def _remove_nodes(self) -> None:
        """Remove all nodes once nothing runs; the next pods may need other builds."""
        for document in self.records.list_kind("Node"):
            self.records.remove(key_of(document))
        await self.fleet.reconcile((), self.pods)
        self.records.clear()

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        self.pods.set_status(uid_of(pod), status)

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        self.pods.annotate(uid_of(pod), annotations)

    async def event(
        self, pod: v1.Pod, kind: EventType, reason: str, message: str, container: str = ""
    ) -> None:
        key = ObjectKey("Pod", metadata_of(pod).namespace or "", name_of(pod))
        self.events.record(key, kind, reason, message, container)

    async def pod_deleted(self, pod: v1.Pod) -> None:
        self.pods.remove(uid_of(pod))

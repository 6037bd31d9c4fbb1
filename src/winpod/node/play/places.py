"""Pods get their nodes: chosen by what their images are, told with the reasons, written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from lightkube.models import core_v1 as v1

from winpod.node.facts import NodeFacts
from winpod.node.play import placing
from winpod.node.play.claims import Claims
from winpod.node.play.events import Events
from winpod.node.play.fleet import Fleet
from winpod.node.play.images import Lookups
from winpod.node.play.objects import Document, Key, key_of, template_of
from winpod.node.play.pods import Pods, pod_in
from winpod.node.play.records import Records
from winpod.node.play.templates import has_ended, name_of
from winpod.node.pods import condition, is_deleted, uid_of
from winpod.node.requests import metadata_of, spec_of
from winpod.windows.handlers import Handlers
from winpod.windows.objects import RuntimeClass


class Places:
    def __init__(
        self,
        records: Records,
        pods: Pods,
        fleet: Fleet,
        images: Lookups,
        events: Events,
        claims: Claims,
        handlers: Handlers,
    ) -> None:
        self._records = records
        self._pods = pods
        self._fleet = fleet
        self._images = images
        self._events = events
        self._claims = claims
        self._handlers = handlers

    async def place_all(self) -> None:
        """Those that are to run and have no node yet; of the others it is found out why there."""
        for pod in self._pods.all():
            if not is_deleted(pod) and not has_ended(pod):
                await self._place(pod)

    async def _place(self, pod: v1.Pod) -> None:
        uid, node = uid_of(pod), spec_of(pod).nodeName or ""
        before = self._pods.choices.get(uid)
        if node and before:
            return
        if not node and (ending := self._claims.ending_of(pod)):
            self._tell_waiting(pod, f'persistentvolumeclaim "{ending[0].name}" is being deleted.')
            return
        facts = self._fleet.running()
        others = () if node else [other for other in self._pods.all() if other is not pod]
        choice = await self._choose(pod, others, facts)
        if node:
            choice = placing.Choice(node, choice.handler, choice.why, unknown=choice.unknown)
            if self._fleet.node_of(pod):
                self._pods.place(pod, choice)
        elif choice != before:
            self._pods.place(pod, choice)
            self._tell_where(pod, choice, len(facts))

    def _tell_where(self, pod: v1.Pod, choice: placing.Choice, count: int) -> None:
        key = Key("Pod", metadata_of(pod).namespace or "", name_of(pod))
        if choice.node:
            text = f"Successfully assigned {key.namespace}/{key.name} to {choice.node}"
            self._events.tell(key, "Normal", "Scheduled", text)
            return
        reasons = "; ".join(choice.lines) or "there is none"
        message = f"0/{count} nodes are available: {reasons}."
        message += f" Advice: {'; '.join(choice.advice)}." if choice.advice else ""
        self._tell_waiting(pod, message)

    def _tell_waiting(self, pod: v1.Pod, message: str) -> None:
        told = condition(pod.status, "PodScheduled")
        if told and told.message == message:
            return
        scheduled = v1.PodCondition(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message=message,
            lastTransitionTime=datetime.now(UTC),
        )
        self._pods.tell(uid_of(pod), v1.PodStatus(phase="Pending", conditions=[scheduled]))
        key = Key("Pod", metadata_of(pod).namespace or "", name_of(pod))
        self._events.tell(key, "Warning", "FailedScheduling", message)

    async def _choose(
        self,
        pod: v1.Pod,
        others: Iterable[v1.Pod],
        facts: Sequence[NodeFacts],
    ) -> placing.Choice:
        images = await self._images.of(pod)
        able, classes = self._fleet.handlers_on, self.classes()
        choice = placing.place(pod, others, facts, classes, images, able, self._handlers)
        return replace(choice, unknown=self._images.troubles(pod))

    async def daemon_nodes(self, document: Document) -> list[str]:
        """The nodes that a DaemonSet has a pod on."""
        template, pod = template_of(document), pod_in(document)
        if template is None or pod is None:
            return []
        images = await self._images.of(pod)
        facts = self._fleet.running()
        return placing.nodes_for(template, facts, self.classes(), images, self._handlers)

    def classes(self, documents: Iterable[Document] = ()) -> list[RuntimeClass]:
        new = [d for d in documents if d["kind"] == "RuntimeClass"]
        written = {key_of(d): d for d in (*self._records.of_kind("RuntimeClass"), *new)}
        return [RuntimeClass.from_object(document) for document in written.values()]

"""Scheduler of `winpod play`: binds pods to nodes by the same rules as `winpod check`.

The first part is pure; `Scheduler` applies it to the stored pods and records the binding, or the
reasons against every node, as condition and event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from winpod.clock import utc_now
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import condition, is_deleted, metadata_of, spec_of, uid_of
from winpod.kubelet.node_config import NodeConfig
from winpod.labels import ARCH_LABEL, BUILD_LABEL, OS_LABEL
from winpod.placement import model
from winpod.placement.advice import advise
from winpod.placement.evaluator import Cluster, evaluate_node, intended_os, preferred_nodes
from winpod.placement.model import Node, RuntimeClass
from winpod.placement.predicates import admit_with_runtime_class, with_allocated
from winpod.placement.verdicts import Outcome, Placement, Status, Verdict
from winpod.play.apiserver.objects import Document, ObjectKey, key_of, template_of
from winpod.play.apiserver.pods import Binding, PodStore, pod_template_of, to_placement_pod
from winpod.play.apiserver.store import EventStore, ObjectStore
from winpod.play.controllers.pvc import PvcController
from winpod.play.image_lookup import PodImageLookup
from winpod.play.nodes import NodeManager
from winpod.play.pod_template import is_terminal, name_of
from winpod.windows.builds import DEFAULT_HOST, RELEASES, Build, supported_ltsc
from winpod.windows.handlers import BUILTIN_HANDLERS, PROCESS_HANDLER, Handlers
from winpod.windows.platforms import Image

Images = Mapping[str, Image]
HandlersOn = Callable[[Build], frozenset[str]]
"""Return the handlers that a node of a build can run on this machine."""


def to_placement_node(facts: NodeConfig) -> Node:
    """Convert a node to the placement model."""
    return Node(
        name=facts.name,
        labels=tuple(sorted(facts.all_labels.items())),
        taints=facts.taints,
        allocatable=tuple(sorted(facts.allocatable().items())),
        handlers=facts.handlers,
        runtime="winpod",
        kernel_version=str(facts.build),
    )


def schedule_pod(
    pod: v1.Pod,
    others: Iterable[v1.Pod],
    nodes: Sequence[NodeConfig],
    classes: Sequence[RuntimeClass],
    images: Images,
    handlers_on: HandlersOn,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> Binding:
    """Choose the node of one pod, given the other pods and their nodes."""
    bound = [
        to_placement_pod(other)
        for other in others
        if spec_of(other).nodeName and not is_terminal(other)
    ]
    cluster = Cluster(with_allocated(map(to_placement_node, nodes), bound), classes, handlers)
    placement_pod = to_placement_pod(pod)
    placement = cluster.place(placement_pod, images)
    if intended_os(placement_pod, cluster.classes, images, handlers) == "linux":
        return Binding("", lines=("The pod is for Linux, and these nodes run Windows.",))
    node = _least_loaded(preferred_nodes(placement.verdicts), bound) or _undecided_node(placement)
    if not node or placement.refusals:
        advice = advise(placement_pod, placement, cluster, images)
        extra_node = _advise_node(placement_pod, cluster, images, handlers_on)
        return Binding("", lines=tuple(_refusal_messages(placement)), advice=(*extra_node, *advice))
    verdict = next(v for v in placement.verdicts if node in v.nodes)
    return Binding(
        node, verdict.handler or PROCESS_HANDLER.name, _reason_for(node, verdict, placement)
    )


def _least_loaded(names: Sequence[str], bound: Iterable[model.Pod]) -> str:
    """Of equally suitable nodes, return the one with the fewest pods."""
    taken = Counter(pod.node_name for pod in bound)
    return min(names, key=lambda name: taken[name], default="")


def _advise_node(
    pod: model.Pod, cluster: Cluster, images: Images, handlers_on: HandlersOn
) -> tuple[str, ...]:
    """Advise a node of another build that would run the pod, if there is one."""
    admitted, refusals = admit_with_runtime_class(pod, cluster.classes)
    for build in known_builds(images.values()) if not refusals else ():
        node = _plain_node(build, handlers_on)
        verdict = evaluate_node(admitted, node, images, cluster.handlers)
        if verdict.outcome is Outcome.RUNS:
            short = build.release.short_name if build.release else str(build)
            return (f"play it with a node of {build.describe()}: --node {short}",)
    return ()


def _plain_node(build: Build, handlers_on: HandlersOn) -> Node:
    labels = ((ARCH_LABEL, "amd64"), (BUILD_LABEL, str(build)), (OS_LABEL, "windows"))
    return Node(
        "new",
        tuple(sorted(labels)),
        handlers=handlers_on(build),
        runtime="winpod",
        kernel_version=str(build),
    )


def known_builds(images: Iterable[Image]) -> list[Build]:
    """List the builds to try for a node: supported ones and those of the images, default first."""
    known = {release.build for release in supported_ltsc()}
    stated = {m.platform.build.base for i in images for m in i.manifests if m.platform.build}
    known |= {r.build for r in RELEASES if r.runs_pods and r.build in stated}
    return sorted(known, key=lambda build: (build != DEFAULT_HOST, -build.number))


def _undecided_node(placement: Placement) -> str:
    """Return a node whose verdict is unknown, e.g. because an image lookup failed.

    The pod is tried there; the pull then reports the error.
    """
    return next((v.nodes[0] for v in placement.verdicts if v.outcome is Outcome.UNKNOWN), "")


def _refusal_messages(placement: Placement) -> Iterable[str]:
    for refusal in placement.refusals:
        yield f"{refusal.message}{_symptom(refusal.symptom)}"
    for verdict in placement.verdicts:
        for reason in verdict.reasons:
            yield f"{', '.join(verdict.nodes)}: {reason.message}{_symptom(reason.symptom)}"


def _symptom(text: str) -> str:
    return f" [{text}]" if text else ""


def _reason_for(node: str, verdict: Verdict, placement: Placement) -> str:
    """Explain the binding: what fits, and what rules out the other nodes."""
    builds = dict.fromkeys(m.platform.os_version for _, m in verdict.manifests)
    image = ", ".join(build for build in builds if build)
    fits = f"image {image} fits" if image else "the image could not be looked up"
    others = [v for v in placement.verdicts if node not in v.nodes and v.reasons]
    if not others:
        return fits
    reasons = "; ".join(f"not {', '.join(v.nodes)}: {v.reasons[0].message}" for v in others[:2])
    return f"{fits}; {reasons}"


def feasible_nodes(
    pod: v1.Pod,
    nodes: Sequence[NodeConfig],
    classes: Sequence[RuntimeClass],
    images: Images,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> list[tuple[NodeConfig, str]]:
    """List the nodes the pod could run on if they were empty, each with the handler."""
    verdicts = (
        Cluster(map(to_placement_node, nodes), classes, handlers)
        .place(to_placement_pod(pod), images)
        .verdicts
    )
    handler_by_node = {n: v.handler for v in verdicts if v.outcome is Outcome.RUNS for n in v.nodes}
    return [
        (facts, handler_by_node[facts.name]) for facts in nodes if facts.name in handler_by_node
    ]


def daemon_nodes(
    template: Mapping[str, Any],
    nodes: Sequence[NodeConfig],
    classes: Sequence[RuntimeClass],
    images: Images,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> list[str]:
    """List the nodes on which the pod of a DaemonSet can run."""
    pod = model.Pod.from_template(template, every_node=True)
    cluster = Cluster(map(to_placement_node, nodes), classes, handlers)
    verdicts = cluster.place(pod, images).verdicts
    fitting = (Outcome.RUNS, Outcome.UNKNOWN)
    feasible = {name for v in verdicts if v.outcome in fitting for name in v.nodes}
    return [facts.name for facts in nodes if facts.name in feasible]


def best_build(
    templates: Iterable[tuple[Mapping[str, Any], Images]],
    classes: Sequence[RuntimeClass],
    handlers_on: HandlersOn,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> tuple[Build, int, int]:
    """Return the build that runs the most of these pods, how many it runs, and their total.

    Ties go to the default build, then to the newest.
    """
    pods = [(model.Pod.from_template(template), images) for template, images in templates]
    known = known_builds(image for _, images in pods for image in images.values())

    def count(build: Build) -> int:
        cluster = Cluster((_plain_node(build, handlers_on),), classes, handlers)
        accepted = (Status.RUNS, Status.UNKNOWN)
        return sum(cluster.place(pod, images).status in accepted for pod, images in pods)

    best = max(known, key=count)
    return best, count(best), len(pods)


class Scheduler:
    def __init__(
        self,
        records: ObjectStore,
        pods: PodStore,
        fleet: NodeManager,
        images: PodImageLookup,
        events: EventStore,
        claims: PvcController,
        handlers: Handlers,
    ) -> None:
        self._records = records
        self._pods = pods
        self._fleet = fleet
        self._images = images
        self._events = events
        self._claims = claims
        self._handlers = handlers

    async def schedule_pending(self) -> None:
        """Bind pods without a node; for pods with one, record why they fit."""
        for pod in self._pods.all():
            if not is_deleted(pod) and not is_terminal(pod):
                await self._schedule(pod)

    async def _schedule(self, pod: v1.Pod) -> None:
        uid, node = uid_of(pod), spec_of(pod).nodeName or ""
        before = self._pods.choices.get(uid)
        if node and before:
            return
        if not node and (ending := self._claims.terminating_of(pod)):
            self._record_unschedulable(
                pod, f'persistentvolumeclaim "{ending[0].name}" is being deleted.'
            )
            return
        facts = self._fleet.running_nodes()
        others = () if node else [other for other in self._pods.all() if other is not pod]
        choice = await self._choose(pod, others, facts)
        if node:
            choice = Binding(node, choice.handler, choice.why, unknown=choice.unknown)
            if self._fleet.node_of(pod):
                self._pods.bind(pod, choice)
        elif choice != before:
            self._pods.bind(pod, choice)
            self._record_binding(pod, choice, len(facts))

    def _record_binding(self, pod: v1.Pod, choice: Binding, count: int) -> None:
        key = ObjectKey("Pod", metadata_of(pod).namespace or "", name_of(pod))
        if choice.node:
            text = f"Successfully assigned {key.namespace}/{key.name} to {choice.node}"
            self._events.record(key, "Normal", "Scheduled", text)
            return
        reasons = "; ".join(choice.lines) or "there are no nodes"
        message = f"0/{count} nodes are available: {reasons}."
        message += f" Advice: {'; '.join(choice.advice)}." if choice.advice else ""
        self._record_unschedulable(pod, message)

    def _record_unschedulable(self, pod: v1.Pod, message: str) -> None:
        current = condition(pod.status, "PodScheduled")
        if current and current.message == message:
            return
        scheduled = v1.PodCondition(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message=message,
            lastTransitionTime=utc_now(),
        )
        self._pods.set_status(uid_of(pod), v1.PodStatus(phase="Pending", conditions=[scheduled]))
        key = ObjectKey("Pod", metadata_of(pod).namespace or "", name_of(pod))
        self._events.record(key, "Warning", "FailedScheduling", message)

    async def _choose(
        self,
        pod: v1.Pod,
        others: Iterable[v1.Pod],
        facts: Sequence[NodeConfig],
    ) -> Binding:
        images = await self._images.look_up(pod)
        able, classes = self._fleet.available_handlers, self.classes()
        choice = schedule_pod(pod, others, facts, classes, images.found, able, self._handlers)
        return replace(choice, unknown=images.errors)

    async def daemon_nodes(self, document: Document) -> list[str]:
        """List the nodes that get a pod of a DaemonSet."""
        template, pod = template_of(document), pod_template_of(document)
        if template is None or pod is None:
            return []
        images = await self._images.look_up(pod)
        facts = self._fleet.running_nodes()
        return daemon_nodes(template, facts, self.classes(), images.found, self._handlers)

    def classes(self, documents: Iterable[Document] = ()) -> list[RuntimeClass]:
        new = [d for d in documents if d["kind"] == "RuntimeClass"]
        stored = {key_of(d): d for d in (*self._records.list_kind("RuntimeClass"), *new)}
        return [RuntimeClass.from_object(document) for document in stored.values()]

"""Evaluates every pod of the cluster: where it runs or may run, and why it waits.

Started pods are evaluated on demand, which is cheap. Pending pods are evaluated in the background,
since their images must be resolved. A bound pod is checked against its node, an unbound one like
admission does. The leader records an event for pods that no node can run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from winpod.images.lookup import ImageLookup
from winpod.k8s.event_recorder import Event
from winpod.operator.admission.class_selection import ClassSelection, without_runtime_class
from winpod.operator.admission.review import ImageLookups, ReviewOutcome, review_selection
from winpod.operator.cached_objects import CachedPod
from winpod.operator.cluster_cache import CachedKind, ClusterCache
from winpod.operator.events import unplaceable_event
from winpod.operator.pull_secrets import PullSecrets
from winpod.placement.evaluator import Cluster, intended_os
from winpod.placement.model import Node, Pod
from winpod.placement.predicates import admit_with_runtime_class
from winpod.placement.start_checks import ImagesByReference, check_start
from winpod.placement.verdicts import Outcome

RUNNING, PENDING = "Running", "Pending"


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The verdict on a pod. `nodes` are those where an unbound pod may run."""

    outcome: ReviewOutcome
    message: str = ""
    nodes: tuple[str, ...] = ()


NOT_WINDOWS = PodVerdict(ReviewOutcome.NOT_WINDOWS)


def with_caveat(verdict: PodVerdict, caveats: Sequence[str]) -> PodVerdict:
    """Make the verdict unknown if images are stale; `caveats` are why they were not refreshed."""
    if not caveats or verdict.outcome is ReviewOutcome.NOT_WINDOWS:
        return verdict
    message = f"according to its images when last resolved: {verdict.message}".rstrip(".")
    return replace(
        verdict, outcome=ReviewOutcome.UNKNOWN, message=f"{message}. {' '.join(caveats)}"
    )


def depends_on_images(pod: CachedPod, nodes: Mapping[str, Node]) -> bool:
    """Whether the verdict depends on its images: it has not started and may be for Windows."""
    if pod.phase != PENDING or pod.is_deleting:
        return False
    node = nodes.get(pod.node)
    return node is None or node.os == "windows"


def evaluate_pod(
    pod: CachedPod, cluster: Cluster, nodes: Mapping[str, Node], images: ImagesByReference
) -> PodVerdict:
    """Evaluate a pod. `nodes` are the cluster's by name; unresolved images are not in `images`."""
    if pod.node:
        return _evaluate_bound(pod, nodes.get(pod.node), cluster, images)
    return _evaluate_unbound(without_runtime_class(pod.template, cluster.classes), cluster, images)


def _evaluate_bound(
    pod: CachedPod, node: Node | None, cluster: Cluster, images: ImagesByReference
) -> PodVerdict:
    if node is None:
        return PodVerdict(ReviewOutcome.UNKNOWN, "its node does not exist")
    if node.os != "windows" and not _is_for_windows(pod.template, cluster, images):
        return NOT_WINDOWS
    admitted, _ = admit_with_runtime_class(pod.template, cluster.classes)
    start = check_start(admitted, node, images, cluster.handlers)
    isolation = f"{start.handler.isolation} isolation" if start.handler else ""
    where = ", ".join(filter(None, (isolation, start.kernel.describe() if start.kernel else "")))
    if pod.phase == RUNNING:
        return PodVerdict(ReviewOutcome.RUNS, where)
    if start.reasons:
        reasons = "; ".join(reason.message for reason in start.reasons)
        return PodVerdict(ReviewOutcome.CANNOT_RUN, f"it cannot start there: {reasons}")
    if start.unknown:
        reasons = "; ".join(reason.message for reason in start.unknown)
        return PodVerdict(ReviewOutcome.UNKNOWN, f"it may not start there: {reasons}")
    return PodVerdict(ReviewOutcome.RUNS, f"it starts there: {where}")


def _evaluate_unbound(template: Pod, cluster: Cluster, images: ImagesByReference) -> PodVerdict:
    os = intended_os(template, cluster.classes, images, cluster.handlers)
    if os not in ("", "windows"):
        return NOT_WINDOWS
    if not os:
        return PodVerdict(
            ReviewOutcome.UNKNOWN, "neither the pod nor its images state its operating system"
        )
    placement = cluster.place(template, images)
    answer = review_selection(ClassSelection(template, placement), cluster, images, {})
    running = (verdict for verdict in placement.verdicts if verdict.outcome is Outcome.RUNS)
    nodes = tuple(name for verdict in running for name in verdict.nodes)
    message = answer.message or "it may run; the scheduler has not chosen a node yet"
    return PodVerdict(answer.outcome, message, nodes)


def _is_for_windows(template: Pod, cluster: Cluster, images: ImagesByReference) -> bool:
    return intended_os(template, cluster.classes, images, cluster.handlers) == "windows"


Key = tuple[str, str]
_LOOKUP_SECONDS = 20.0
_MAX_LOOKUPS = 16
_MAX_REPORTED = 4096
_NOT_EVALUATED = PodVerdict(ReviewOutcome.UNKNOWN, "it has not been evaluated yet")


@dataclass(frozen=True, slots=True)
class EvaluationPeriods:
    """Periods in seconds: how long verdicts are `fresh`, the `rest` between two evaluations of
    pending pods, and after which they are evaluated `again` if nothing changed in the cluster.
    """

    fresh: float = 1.0
    rest: float = 2.0
    again: float = 60.0


class PodEvaluator:
    def __init__(
        self,
        cache: ClusterCache,
        images: ImageLookup,
        secrets: PullSecrets,
        record_event: Callable[[Event], None],
        is_leader: Callable[[], bool],
        periods: EvaluationPeriods | None = None,
    ) -> None:
        self._periods = periods or EvaluationPeriods()
        self._cache = cache
        self._images = images
        self._secrets = secrets
        self._record_event = record_event
        self._is_leader = is_leader
        self._changed = cache.subscribe(CachedKind.NODE, CachedKind.CLASS, CachedKind.POD)
        self._lookup_semaphore = asyncio.Semaphore(_MAX_LOOKUPS)
        self._evaluation_lock = asyncio.Lock()
        self._pending: dict[Key, PodVerdict] = {}
        self._reported: dict[tuple[str, str], None] = {}
        self._verdicts: Mapping[Key, PodVerdict] = {}
        self._evaluated_at = float("-inf")

    def verdicts(self) -> Mapping[Key, PodVerdict]:
        """Return the verdicts on all non-terminal pods, by namespace and name."""
        if time.monotonic() > self._evaluated_at + self._periods.fresh:
            self._verdicts = dict(self._evaluate_all())
            self._evaluated_at = time.monotonic()
        return self._verdicts

    async def run(self) -> None:
        """Evaluate pending pods when something changes, and periodically."""
        await self._cache.wait_synced()
        while True:
            self._changed.clear()
            nodes = _by_name(self._cache.cluster())
            groups: dict[object, list[CachedPod]] = {}
            for pod in self._cache.pods:
                if depends_on_images(pod, nodes):
                    groups.setdefault((pod.namespace, id(pod.template), pod.node), []).append(pod)
            keys = {_key(pod) for pods in groups.values() for pod in pods}
            self._pending = {k: v for k, v in self._pending.items() if k in keys}
            await asyncio.gather(*(self._evaluate_pending(pods) for pods in groups.values()))
            await asyncio.sleep(self._periods.rest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._periods.again if groups else None):
                    await self._changed.wait()

    async def _evaluate_pending(self, pods: Sequence[CachedPod]) -> None:
        """Evaluate equivalent pods. Stale tags are refreshed before reporting them unplaceable."""
        pod = pods[0]
        lookups = await self._resolve_images(pod, pod.template.images)
        verdict = await self._evaluate(pod, lookups)
        stale = [text for text, lookup in lookups.items() if lookup.is_stale]
        changed = verdict != self._pending.get(_key(pod))
        if verdict.outcome is ReviewOutcome.CANNOT_RUN and stale and changed:
            refreshed = await self._resolve_images(pod, stale, max_age=0)
            verdict = await self._evaluate(pod, {**lookups, **refreshed})
        self._pending.update((_key(pod), verdict) for pod in pods)
        self._evaluated_at = float("-inf")
        if verdict.outcome is ReviewOutcome.CANNOT_RUN and self._is_leader():
            self._report_unplaceable(pods, verdict.message)

    async def _resolve_images(
        self, pod: CachedPod, texts: Sequence[str], max_age: float | None = None
    ) -> ImageLookups:
        async with self._lookup_semaphore:
            secrets = await self._secrets.find(pod.namespace, pod.template.pull_secrets)
            lookups = (
                self._images.describe(text, secrets, _LOOKUP_SECONDS, max_age=max_age)
                for text in texts
            )
            found = await asyncio.gather(*lookups)
        return dict(zip(texts, found, strict=True))

    async def _evaluate(self, pod: CachedPod, lookups: ImageLookups) -> PodVerdict:
        """Evaluate one pod at a time, yielding to other tasks in between."""
        usable = {text: f for text, f in lookups.items() if f.is_certain or f.is_stale}
        images = {text: lookup.image for text, lookup in usable.items() if lookup.image}
        caveats = [lookup.caveat or lookup.problem for lookup in usable.values()]
        async with self._evaluation_lock:
            await asyncio.sleep(0)
            cluster = self._cache.cluster()
            verdict = evaluate_pod(pod, cluster, _by_name(cluster), images)
        return with_caveat(verdict, list(filter(None, caveats)))

    def _report_unplaceable(self, pods: Iterable[CachedPod], message: str) -> None:
        """Record the event once for each pod and message."""
        for pod in pods:
            if (pod.uid, message) not in self._reported:
                self._reported[pod.uid, message] = None
                self._record_event(unplaceable_event(pod.namespace, pod.name, pod.uid, message))
        while len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    def _evaluate_all(self) -> Iterable[tuple[Key, PodVerdict]]:
        """Evaluate all pods; once per template and group of equivalent nodes."""
        cluster = self._cache.cluster()
        nodes = _by_name(cluster)
        signatures = _signature_ids(nodes)
        verdicts: dict[object, PodVerdict] = {}
        for pod in self._cache.pods:
            if pod.is_terminal:
                continue
            key = _key(pod)
            if not pod.node or depends_on_images(pod, nodes):
                yield key, self._pending.get(key, _NOT_EVALUATED)
                continue
            group = (id(pod.template), signatures.get(pod.node, pod.node), pod.phase)
            if group not in verdicts:
                verdicts[group] = evaluate_pod(pod, cluster, nodes, {})
            yield key, verdicts[group]


def _key(pod: CachedPod) -> Key:
    return (pod.namespace, pod.name)


def _by_name(cluster: Cluster) -> dict[str, Node]:
    return {node.name: node for node in cluster.nodes}


def _signature_ids(nodes: Mapping[str, Node]) -> dict[str, int]:
    """Map nodes to ids that are equal for equivalent nodes; ids are cheaper to compare."""
    ids: dict[object, int] = {}
    return {name: ids.setdefault(_signature(node), len(ids)) for name, node in nodes.items()}


def _signature(node: Node) -> object:
    """Return everything that decides whether a pod starts on the node."""
    return (node.os, node.architecture, node.build, node.runtime, node.handlers)

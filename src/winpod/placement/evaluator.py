"""Evaluation of a pod against nodes: where it runs, and why it does not run elsewhere.

Three stages are evaluated in the order of a cluster: whether the API server admits the pod, whether
the scheduler can place it on a node, whether it starts there. A node that the scheduler may choose
but where the pod cannot start ends in a crash loop, so it is reported separately from a node that
the scheduler rules out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from winpod.field_reader import TextPairs
from winpod.labels import ARCH_LABEL, BETA_OS_LABEL, BUILD_LABEL, OS_LABEL
from winpod.placement.capacity import FreeCapacity, SortedCapacity, capacity_reasons
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.placement.node_groups import NodeGroup, NodeGroups, trim_cache
from winpod.placement.predicates import (
    AdmittedPod,
    admit_with_runtime_class,
    is_excluded_by_pod,
    scheduling_reasons,
    scheduling_requests,
)
from winpod.placement.start_checks import ImagesByReference, check_start
from winpod.placement.verdicts import Outcome, Placement, Reason, Status, Verdict
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, HYPERVISOR_HANDLER, PROCESS_HANDLER, Handlers
from winpod.windows.platforms import Manifest


def evaluate_node(
    admitted: AdmittedPod,
    node: Node,
    images: ImagesByReference,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> Verdict:
    """Return the node's verdict with every reason against it.

    A node that the pod does not select is not evaluated further.
    """
    verdict = _evaluate_without_capacity(admitted, node, images, handlers)
    requests = scheduling_requests(admitted.pod)
    if is_excluded_by_pod(verdict.reasons):
        return verdict
    capacity = capacity_reasons(node)
    _, short = capacity.split_by_fit(requests)
    return _with_shortfall(verdict, capacity.shortfall(requests, short)) if short else verdict


def _evaluate_without_capacity(
    admitted: AdmittedPod, node: Node, images: ImagesByReference, handlers: Handlers
) -> Verdict:
    unscheduled = tuple(scheduling_reasons(admitted, node))
    if is_excluded_by_pod(unscheduled):
        return Verdict((node.name,), Outcome.BLOCKED, kernel=node.build, reasons=unscheduled)
    start = check_start(admitted, node, images, handlers)
    reasons = unscheduled + start.reasons
    if unscheduled:
        outcome = Outcome.BLOCKED
    elif start.reasons:
        outcome = Outcome.FAILS
    elif start.unknown:
        outcome, reasons = Outcome.UNKNOWN, start.unknown
    else:
        outcome = Outcome.RUNS
    return Verdict(
        nodes=(node.name,),
        outcome=outcome,
        handler=start.handler.name if start.handler else admitted.handler,
        isolation=start.handler.isolation if start.handler else None,
        kernel=start.kernel,
        manifests=start.manifests,
        reasons=reasons,
    )


def _with_shortfall(verdict: Verdict, shortfall: tuple[Reason, ...]) -> Verdict:
    reasons = () if verdict.outcome is Outcome.UNKNOWN else verdict.reasons
    return replace(verdict, outcome=Outcome.BLOCKED, reasons=reasons + shortfall)


_Evaluations = tuple[tuple[Verdict, ...], list[tuple[Verdict, NodeGroup]]]
"""Verdicts of excluded nodes, and of node groups whose capacity is still to be checked."""


class Cluster:
    """Nodes and RuntimeClasses; nodes that are equivalent for a pod are evaluated once.

    `groups` is shared by clusters that differ only in what is allocated on their nodes.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        classes: Iterable[RuntimeClass] = (),
        handlers: Handlers = BUILTIN_HANDLERS,
    ) -> None:
        self.nodes = tuple(nodes)
        self.handlers = handlers
        self.classes = {c.name: c for c in classes}
        self.groups = NodeGroups(self.nodes)
        self._evaluations: dict[object, _Evaluations] = {}
        self._free = FreeCapacity(self.nodes)
        self._capacities: dict[NodeGroup, SortedCapacity] = {}

    def with_nodes(self, nodes: Iterable[Node]) -> Cluster:
        """Copy with these nodes replaced by name; cached results of the others are kept."""
        by_name = {node.name: node for node in nodes}
        new = copy(self)
        new.nodes = tuple(by_name.get(node.name, node) for node in self.nodes)
        indexes = [index for index, node in enumerate(self.nodes) if node.name in by_name]
        new._free, new._capacities = self._free.with_nodes(new.nodes, indexes), {}
        changed = [index for index in indexes if _differ(self.nodes[index], new.nodes[index])]
        if changed:
            new.groups, new._evaluations = self.groups.with_nodes(new.nodes, changed), {}
        return new

    def place(self, pod: Pod, images: ImagesByReference) -> Placement:
        admitted, refusals = admit_with_runtime_class(pod, self.classes)
        verdicts = self._verdicts(admitted, images)
        return Placement(
            status=_status(pod, verdicts, refusals),
            verdicts=verdicts,
            refusals=refusals,
            node="" if refusals else _choice(verdicts),
        )

    def _verdicts(self, admitted: AdmittedPod, images: ImagesByReference) -> tuple[Verdict, ...]:
        requests = scheduling_requests(admitted.pod)
        excluded, reachable = self._evaluate(admitted, images)
        names_by_verdict: dict[Verdict, list[str]] = {}
        for verdict, group in reachable:
            capacity = self._capacity(group)
            fitting, short = capacity.split_by_fit(requests)
            if fitting:
                names_by_verdict.setdefault(verdict, []).extend(fitting)
            if short:
                blocked = _with_shortfall(verdict, capacity.shortfall(requests, short))
                names = (self.nodes[index].name for index in short)
                names_by_verdict.setdefault(blocked, []).extend(names)
        verdicts = tuple(replace(v, nodes=tuple(names)) for v, names in names_by_verdict.items())
        return verdicts + excluded

    def _evaluate(self, admitted: AdmittedPod, images: ImagesByReference) -> _Evaluations:
        """Evaluate everything but capacity; similar pods usually differ only in requests."""
        pod = replace(admitted.pod, requests=(), overhead=())
        key = (pod, admitted.handler, tuple(images.get(text) for text in pod.images))
        if key not in self._evaluations:
            names_by_verdict: dict[Verdict, list[str]] = {}
            reachable = []
            for group in self.groups.groups_for(pod):
                verdict = _evaluate_without_capacity(
                    admitted, group.representative, images, self.handlers
                )
                verdict = replace(verdict, nodes=())
                if is_excluded_by_pod(verdict.reasons):
                    names_by_verdict.setdefault(verdict, []).extend(group.names)
                else:
                    reachable.append((verdict, group))
            excluded = tuple(
                replace(v, nodes=tuple(names)) for v, names in names_by_verdict.items()
            )
            trim_cache(self._evaluations)
            self._evaluations[key] = (excluded, reachable)
        return self._evaluations[key]

    def _capacity(self, group: NodeGroup) -> SortedCapacity:
        if group not in self._capacities:
            trim_cache(self._capacities)
            self._capacities[group] = SortedCapacity(group, self._free)
        return self._capacities[group]


def _differ(node: Node, other: Node) -> bool:
    """Whether the nodes differ in more than what is allocated on them."""
    return node != replace(other, allocated=node.allocated)


def _status(pod: Pod, verdicts: Sequence[Verdict], refusals: Sequence[Reason]) -> Status:
    outcomes = {verdict.outcome for verdict in verdicts}
    if refusals or (pod.is_daemon and Outcome.FAILS in outcomes):
        return Status.CANNOT_RUN
    if Outcome.RUNS in outcomes:
        return Status.MAY_FAIL if Outcome.FAILS in outcomes else Status.RUNS
    if Outcome.UNKNOWN in outcomes:
        return Status.UNKNOWN
    waiting = any(v.reasons and all(r.temporary for r in v.reasons) for v in verdicts)
    # The scheduler does not wait for a suitable node while an unsuitable one has capacity.
    return Status.WAITS if waiting and Outcome.FAILS not in outcomes else Status.CANNOT_RUN


def _choice(verdicts: Iterable[Verdict]) -> str:
    return next(iter(preferred_nodes(verdicts)), "")


def preferred_nodes(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the nodes that run the pod; only those of the image's exact build if any exist."""
    running = [v for v in verdicts if v.outcome is Outcome.RUNS]
    exact = [v for v in running if v.kernel and all(_is_own(m, v.kernel) for _, m in v.manifests)]
    return [node for verdict in exact or running for node in verdict.nodes]


def _is_own(manifest: Manifest, kernel: Build) -> bool:
    build = manifest.platform.build
    return build is not None and build.base == kernel.base


def intended_os(
    pod: Pod,
    classes: Mapping[str, RuntimeClass],
    images: ImagesByReference,
    handlers: Handlers = BUILTIN_HANDLERS,
) -> str:
    """Return the OS a pod is for: stated in its spec, else implied by its images, else empty."""
    admitted, _ = admit_with_runtime_class(pod, classes)
    selector = dict(admitted.pod.node_selector)
    stated = pod.os or selector.get(OS_LABEL) or selector.get(BETA_OS_LABEL)
    stated = stated or pod.platform_constraint.os or _os_of_affinity(pod)
    if stated or handlers.find(admitted.handler or " "):
        return stated or "windows"
    supported = [image.operating_systems() for t in pod.images if (image := images.get(t))]
    common = frozenset.intersection(*supported) if supported else frozenset()
    return next(iter(common)) if len(common) == 1 else ""


def _os_of_affinity(pod: Pod) -> str:
    """Return the OS that every term requires; a node has to match only one of the terms."""
    named = {
        frozenset(
            v for r in term.labels if r.key == OS_LABEL and r.operator == "In" for v in r.values
        )
        for term in pod.affinity or ()
    }
    only = named.pop() if len(named) == 1 else frozenset[str]()
    return next(iter(only)) if len(only) == 1 else ""


def default_nodes(builds: Iterable[Build]) -> tuple[Node, ...]:
    """One containerd node per build: no taints, the two default handlers, unknown size."""
    return tuple(
        Node(
            name=f"windows-{build.release.short_name if build.release else build.number}",
            labels=_windows_labels(build),
            handlers=frozenset((PROCESS_HANDLER.name, HYPERVISOR_HANDLER.name)),
            runtime="containerd",
        )
        for build in builds
    )


def _windows_labels(build: Build) -> TextPairs:
    return ((ARCH_LABEL, "amd64"), (OS_LABEL, "windows"), (BUILD_LABEL, str(build.base)))

"""Plans how one workload moves off the nodes of an old Windows build. Pure.

Its pod is placed on the cluster after the upgrade, without the old nodes and with the new classes:
unchanged, and with each small template change that may help. The first that runs on every eligible
node is the move. Node-local volumes are not considered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from winpod.errors import InvalidInput
from winpod.field_reader import TextPairs
from winpod.labels import BUILD_LABEL, OSVERSION_LABEL
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.placement.predicates import is_excluded_by_pod
from winpod.placement.start_checks import ImagesByReference
from winpod.placement.verdicts import Cause, Outcome, Placement, Reason, Stage, Status
from winpod.windows.builds import Build, parse_build
from winpod.windows.handlers import Handlers, hypervisor_handler
from winpod.windows.isolation import Isolation

BUILD_LABELS = (BUILD_LABEL, OSVERSION_LABEL)
_PATCHABLE = (
    *("Deployment", "StatefulSet", "DaemonSet", "CronJob"),
    *("ReplicaSet", "ReplicationController"),
)
_BARE_POD = "Pod"
DAEMON = "DaemonSet"


class MoveOutcome(StrEnum):
    NEW_IMAGE = "new-image"
    HYPERVISOR = "hypervisor"
    CANNOT = "cannot"


@dataclass(frozen=True, slots=True)
class WorkloadPod:
    """A non-terminal pod of a workload."""

    name: str
    uid: str
    node: str = ""
    is_ready: bool = False
    is_leaving: bool = False
    runtime_class: str = ""
    node_selector: TextPairs = ()


@dataclass(frozen=True, slots=True)
class UpgradeWorkload:
    """A workload, its pod template and its existing pods.

    `replicas` is None if no number of ready pods is promised, as for a Job; `problems` are why
    images could not be resolved.
    """

    kind: str
    namespace: str
    name: str
    pod: Pod
    pods: tuple[WorkloadPod, ...] = ()
    replicas: int | None = None
    images: ImagesByReference = field(default_factory=dict, compare=False)
    problems: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def ready(self) -> int:
        return sum(pod.is_ready and not pod.is_leaving for pod in self.pods)

    def pods_on(self, nodes: Iterable[str]) -> tuple[WorkloadPod, ...]:
        names = frozenset(nodes)
        return tuple(pod for pod in self.pods if pod.node in names)


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """A change of a pod template: a class and node labels to set; empty for no change."""

    runtime_class: str = ""
    node_selector: TextPairs = ()

    def __bool__(self) -> bool:
        return bool(self.runtime_class or self.node_selector)

    def __str__(self) -> str:
        named = [f"runtimeClassName: {self.runtime_class}"] if self.runtime_class else []
        return ", ".join(named + [f"nodeSelector {k}: {v}" for k, v in self.node_selector])

    def apply(self, pod: Pod) -> Pod:
        selector = dict(pod.node_selector) | dict(self.node_selector)
        return replace(
            pod,
            runtime_class=self.runtime_class or pod.runtime_class,
            node_selector=tuple(sorted(selector.items())),
            overhead=() if self.runtime_class else pod.overhead,
        )

    def is_applied(self, pod: WorkloadPod) -> bool:
        has = dict(pod.node_selector)
        return self.runtime_class in ("", pod.runtime_class) and all(
            has.get(key) == value for key, value in self.node_selector
        )


@dataclass(frozen=True, slots=True)
class WorkloadMove:
    """The move of a workload; it `stays` if its pods cannot leave the old nodes, for `reasons`."""

    workload: UpgradeWorkload
    outcome: MoveOutcome
    change: TemplateChange = TemplateChange()
    stays: bool = False
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetCluster:
    """The cluster after the upgrade: without the old nodes, with the new classes.

    `cordoned` has only the old nodes, to which pods must not return; `targets` are the classes that
    a workload of an old class may use instead, the best first.
    """

    old: Build
    new: Build
    cluster: Cluster
    cordoned: Cluster
    new_nodes: tuple[Node, ...]
    old_classes: frozenset[str] = frozenset()
    targets: tuple[RuntimeClass, ...] = ()
    may_change: bool = False


def selects(pairs: TextPairs, build: Build) -> bool:
    """Whether a selector matches nodes of this build, by either build label."""
    return any(key in BUILD_LABELS and _is_build(value, build) for key, value in pairs)


def _is_build(text: str, build: Build) -> bool:
    try:
        return parse_build(text).base == build.base
    except InvalidInput:
        return False


def translated_selector(pairs: TextPairs, old: Build, new_nodes: Sequence[Node]) -> TextPairs:
    """Return the build labels of a selector for old nodes with the values of new nodes."""
    translated = []
    for key, value in pairs:
        if key in BUILD_LABELS and _is_build(value, old):
            values = (node.label(key) for node in new_nodes)
            translated += [(key, value) for value in values if value][:1]
    return tuple(translated)


def selects_any(runtime_class: RuntimeClass, nodes: Iterable[Node]) -> bool:
    return any(all(node.label(k) == v for k, v in runtime_class.node_selector) for node in nodes)


def target_classes(
    classes: Iterable[RuntimeClass],
    desired_names: Collection[str],
    new: Build,
    new_nodes: Sequence[Node],
    handlers: Handlers,
) -> tuple[RuntimeClass, ...]:
    """Return the classes of the new nodes: process isolation first, then the newest guest.

    A class that does not select the build is included only if it is one of the desired classes:
    others have an unknown purpose, and so have classes for a guest size.
    """

    def rank(runtime_class: RuntimeClass) -> tuple[bool, int, bool, str]:
        handler = handlers.resolve_advertised(runtime_class.handler)
        is_process = handler.isolation is Isolation.PROCESS
        return (
            not is_process,
            -(handler.guest or new).number,
            runtime_class.name not in desired_names,
            runtime_class.name,
        )

    def is_size(runtime_class: RuntimeClass) -> bool:
        is_guest = (
            handlers.resolve_advertised(runtime_class.handler).isolation is Isolation.HYPERVISOR
        )
        return is_guest and handlers.find(runtime_class.handler) is None

    translated = (c for c in classes if selects(c.node_selector, new) or c.name in desired_names)
    reached = (c for c in translated if selects_any(c, new_nodes) and not is_size(c))
    return tuple(sorted(reached, key=rank))


def plan_move(workload: UpgradeWorkload, after: TargetCluster) -> WorkloadMove:
    if workload.kind == _BARE_POD:
        reason = "it is a bare pod: no controller recreates it after eviction"
        return WorkloadMove(workload, MoveOutcome.CANNOT, stays=True, reasons=(reason,))
    refusals: list[Placement] = []
    for change in _changes(workload.pod, after):
        placement = after.cluster.place(change.apply(workload.pod), workload.images)
        if placement.status is Status.RUNS:
            if workload.kind != DAEMON and (
                node := _node_to_return_to(change.apply(workload.pod), after)
            ):
                reason = f"it tolerates cordoned nodes and would return to {node}"
                return WorkloadMove(workload, MoveOutcome.CANNOT, stays=True, reasons=(reason,))
            return _successful_move(workload, change, placement, after)
        refusals.append(placement)
    reasons = (*_reasons(refusals, after), *workload.problems)
    return WorkloadMove(
        workload, MoveOutcome.CANNOT, stays=workload.kind != DAEMON, reasons=reasons
    )


def _node_to_return_to(pod: Pod, after: TargetCluster) -> str:
    """Return an old node that the scheduler may choose again although it is cordoned."""
    for verdict in after.cordoned.place(pod, {}).verdicts:
        blocking = (r for r in verdict.reasons if r.stage is Stage.SCHEDULE)
        if all(reason.cause is Cause.RESOURCES for reason in blocking):
            return verdict.nodes[0]
    return ""


def _changes(pod: Pod, after: TargetCluster) -> Iterator[TemplateChange]:
    """Yield changes, starting with none; a class that is not an old one is not replaced."""
    selector = translated_selector(pod.node_selector, after.old, after.new_nodes)
    yield TemplateChange()
    if selector:
        yield TemplateChange(node_selector=selector)
    if pod.runtime_class in after.old_classes | {""}:
        others = (
            runtime_class
            for runtime_class in after.targets
            if runtime_class.name != pod.runtime_class
        )
        yield from (TemplateChange(target.name, selector) for target in others)


def _successful_move(
    workload: UpgradeWorkload, change: TemplateChange, placement: Placement, after: TargetCluster
) -> WorkloadMove:
    running = [v for v in placement.verdicts if v.outcome is Outcome.RUNS]
    in_guest = all(v.isolation is Isolation.HYPERVISOR for v in running)
    outcome = MoveOutcome.HYPERVISOR if in_guest else MoveOutcome.NEW_IMAGE
    if not change:
        return WorkloadMove(workload, outcome)
    if workload.kind not in _PATCHABLE:
        reason = (
            f"the template of a {workload.kind} is immutable: wait for it to finish, or delete it"
        )
    elif not after.may_change:
        reason = f"it must be changed first: {change}"
    else:
        return WorkloadMove(workload, outcome, change)
    return WorkloadMove(workload, outcome, change, workload.kind != DAEMON, (reason,))


def _reasons(placements: Sequence[Placement], after: TargetCluster) -> tuple[str, ...]:
    """Return the reasons against the new nodes, of the attempt that got furthest."""
    names = {node.name for node in after.new_nodes}
    translated = [tuple(_reasons_against(placement, names)) for placement in placements]
    best = max(
        translated, key=lambda reasons: max(map(_progress_rank, reasons), default=0), default=()
    )
    sentences = dict.fromkeys(reason.message for reason in best)
    if any(reason.cause is Cause.BUILD and reason.subject for reason in best):
        handler = hypervisor_handler(after.old).name
        sentences[
            f"it needs an image for {after.new.describe()}, or hypervisor isolation: nodes with "
            f"the handler {handler}, and a class for it"
        ] = None
    return tuple(sentences) or (f"no node of {after.new.describe()} accepts it",)


def _progress_rank(reason: Reason) -> int:
    if reason.stage is Stage.ADMIT or is_excluded_by_pod((reason,)):
        return 1
    return 3 if reason.stage is Stage.START else 2


def _reasons_against(placement: Placement, names: set[str]) -> Iterator[Reason]:
    yield from placement.refusals
    for verdict in placement.verdicts:
        if names.intersection(verdict.nodes) and verdict.outcome is not Outcome.RUNS:
            choices = [r for r in verdict.reasons if is_excluded_by_pod((r,))]
            yield from choices or verdict.reasons

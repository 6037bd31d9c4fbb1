"""What becomes of one workload when the nodes of an old Windows build go: pure.

Its pod is placed on the cluster as it will be, without the old nodes and with the classes that the
upgrade makes, as it is and with each small change of its template that may help; the first that
runs on every node it can be sent to is its move. Volumes that live on one node are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from winpod.windows.builds import Build, parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import Handlers, hypervisor_for
from winpod.windows.isolation import Isolation
from winpod.windows.objects import BUILD_LABEL, OSVERSION_LABEL, Node, Pod, RuntimeClass
from winpod.windows.placement import Cluster
from winpod.windows.reading import Pairs
from winpod.windows.scheduling import is_out_of_reach
from winpod.windows.starting import Images
from winpod.windows.verdicts import Cause, Outcome, Placement, Reason, Stage, Status

BUILD_LABELS = (BUILD_LABEL, OSVERSION_LABEL)
_CHANGEABLE = (
    *("Deployment", "StatefulSet", "DaemonSet", "CronJob"),
    *("ReplicaSet", "ReplicationController"),
)
_BARE = "Pod"
DAEMON = "DaemonSet"


class Fate(StrEnum):
    NEW_IMAGE = "new-image"
    HYPERVISOR = "hypervisor"
    CANNOT = "cannot"


@dataclass(frozen=True, slots=True)
class WorkloadPod:
    """A pod that has not ended, as it was read."""

    name: str
    uid: str
    node: str = ""
    is_ready: bool = False
    is_leaving: bool = False
    runtime_class: str = ""
    node_selector: Pairs = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """What makes pods, the pod that it makes, and those there are.

    `replicas` is None where no number of ready pods is promised, as for a Job; `problems` say why
    images are not known.
    """

    kind: str
    namespace: str
    name: str
    pod: Pod
    pods: tuple[WorkloadPod, ...] = ()
    replicas: int | None = None
    images: Images = field(default_factory=dict, compare=False)
    problems: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def ready(self) -> int:
        return sum(pod.is_ready and not pod.is_leaving for pod in self.pods)

    def on(self, nodes: Iterable[str]) -> tuple[WorkloadPod, ...]:
        there = frozenset(nodes)
        return tuple(pod for pod in self.pods if pod.node in there)


@dataclass(frozen=True, slots=True)
class Change:
    """Of a pod template: a class to name, and labels to select; nothing where it is as it is."""

    runtime_class: str = ""
    node_selector: Pairs = ()

    def __bool__(self) -> bool:
        return bool(self.runtime_class or self.node_selector)

    def __str__(self) -> str:
        named = [f"runtimeClassName: {self.runtime_class}"] if self.runtime_class else []
        return ", ".join(named + [f"nodeSelector {k}: {v}" for k, v in self.node_selector])

    def made(self, pod: Pod) -> Pod:
        selector = dict(pod.node_selector) | dict(self.node_selector)
        return replace(
            pod,
            runtime_class=self.runtime_class or pod.runtime_class,
            node_selector=tuple(sorted(selector.items())),
            overhead=() if self.runtime_class else pod.overhead,
        )

    def is_made(self, pod: WorkloadPod) -> bool:
        has = dict(pod.node_selector)
        return self.runtime_class in ("", pod.runtime_class) and all(
            has.get(key) == value for key, value in self.node_selector
        )


@dataclass(frozen=True, slots=True)
class Move:
    """`stays` where its pods cannot be sent away from the old nodes, and `reasons` say why."""

    workload: Workload
    fate: Fate
    change: Change = Change()
    stays: bool = False
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class After:
    """The cluster as it will be: without the old nodes, with the classes that there will be.

    `cordoned` has only the old nodes, which nobody should come back to; `targets` are the classes
    that a workload of an old class may name instead, the best first.
    """

    old: Build
    new: Build
    cluster: Cluster
    cordoned: Cluster
    new_nodes: tuple[Node, ...]
    old_classes: frozenset[str] = frozenset()
    targets: tuple[RuntimeClass, ...] = ()
    may_change: bool = False


def selects(pairs: Pairs, build: Build) -> bool:
    """Whether a selector is for the nodes of this build, by either label that tells it."""
    return any(key in BUILD_LABELS and _is_build(value, build) for key, value in pairs)


def _is_build(text: str, build: Build) -> bool:
    try:
        return parse_build(text).base == build.base
    except InvalidInput:
        return False


def reselected(pairs: Pairs, old: Build, new_nodes: Sequence[Node]) -> Pairs:
    """The labels of a selector for old nodes as new ones have them; only those that change."""
    found = []
    for key, told in pairs:
        if key in BUILD_LABELS and _is_build(told, old):
            values = (node.label(key) for node in new_nodes)
            found += [(key, value) for value in values if value][:1]
    return tuple(found)


def reaches(one: RuntimeClass, nodes: Iterable[Node]) -> bool:
    return any(all(node.label(k) == v for k, v in one.node_selector) for node in nodes)


def target_classes(
    classes: Iterable[RuntimeClass],
    wanted: Collection[str],
    new: Build,
    new_nodes: Sequence[Node],
    handlers: Handlers,
) -> tuple[RuntimeClass, ...]:
    """Classes of the new nodes: process isolation first, then the newest guest.

    One that does not say the build counts only where it is of those that the nodes give reason for:
    others have a purpose that is not known here. So has a size of a guest.
    """

    def rank(one: RuntimeClass) -> tuple[bool, int, bool, str]:
        handler = handlers.told(one.handler)
        is_process = handler.isolation is Isolation.PROCESS
        return (not is_process, -(handler.guest or new).number, one.name not in wanted, one.name)

    def is_size(one: RuntimeClass) -> bool:
        is_guest = handlers.told(one.handler).isolation is Isolation.HYPERVISOR
        return is_guest and handlers.find(one.handler) is None

    found = (c for c in classes if selects(c.node_selector, new) or c.name in wanted)
    reached = (c for c in found if reaches(c, new_nodes) and not is_size(c))
    return tuple(sorted(reached, key=rank))


def judge_move(workload: Workload, after: After) -> Move:
    if workload.kind == _BARE:
        sentence = "it is a bare pod: nobody makes it again once it is evicted"
        return Move(workload, Fate.CANNOT, stays=True, reasons=(sentence,))
    refusals: list[Placement] = []
    for change in _changes(workload.pod, after):
        placement = after.cluster.place(change.made(workload.pod), workload.images)
        if placement.status is Status.RUNS:
            if workload.kind != DAEMON and (node := _returning(change.made(workload.pod), after)):
                sentence = f"it tolerates cordoned nodes, and would come back to {node}"
                return Move(workload, Fate.CANNOT, stays=True, reasons=(sentence,))
            return _moved(workload, change, placement, after)
        refusals.append(placement)
    reasons = (*_reasons(refusals, after), *workload.problems)
    return Move(workload, Fate.CANNOT, stays=workload.kind != DAEMON, reasons=reasons)


def _returning(pod: Pod, after: After) -> str:
    """An old node that the scheduler may choose again though it is cordoned, if it has room."""
    for verdict in after.cordoned.place(pod, {}).verdicts:
        kept_away = (r for r in verdict.reasons if r.stage is Stage.SCHEDULE)
        if all(reason.cause is Cause.RESOURCES for reason in kept_away):
            return verdict.nodes[0]
    return ""


def _changes(pod: Pod, after: After) -> Iterator[Change]:
    """From nothing on; a class that is not an old one was chosen for something else, and stays."""
    selector = reselected(pod.node_selector, after.old, after.new_nodes)
    yield Change()
    if selector:
        yield Change(node_selector=selector)
    if pod.runtime_class in after.old_classes | {""}:
        others = (one for one in after.targets if one.name != pod.runtime_class)
        yield from (Change(target.name, selector) for target in others)


def _moved(workload: Workload, change: Change, placement: Placement, after: After) -> Move:
    running = [v for v in placement.verdicts if v.outcome is Outcome.RUNS]
    in_guest = all(v.isolation is Isolation.HYPERVISOR for v in running)
    fate = Fate.HYPERVISOR if in_guest else Fate.NEW_IMAGE
    if not change:
        return Move(workload, fate)
    if workload.kind not in _CHANGEABLE:
        reason = f"a {workload.kind}'s template cannot be changed: it must end first, or be deleted"
    elif not after.may_change:
        reason = f"it must be changed first: {change}"
    else:
        return Move(workload, fate, change)
    return Move(workload, fate, change, workload.kind != DAEMON, (reason,))


def _reasons(placements: Sequence[Placement], after: After) -> tuple[str, ...]:
    """What speaks against the new nodes, of the attempt that came furthest."""
    names = {node.name for node in after.new_nodes}
    found = [tuple(_against(placement, names)) for placement in placements]
    best = max(found, key=lambda reasons: max(map(_furthest, reasons), default=0), default=())
    sentences = dict.fromkeys(reason.sentence for reason in best)
    if any(reason.cause is Cause.BUILD and reason.about for reason in best):
        handler = hypervisor_for(after.old).name
        sentences[
            f"it needs an image for {after.new.describe()}, or hypervisor isolation: nodes that "
            f"have the handler {handler}, and a class for it"
        ] = None
    return tuple(sentences) or (f"no node of {after.new.describe()} takes it",)


def _furthest(reason: Reason) -> int:
    if reason.stage is Stage.ADMIT or is_out_of_reach((reason,)):
        return 1
    return 3 if reason.stage is Stage.START else 2


def _against(placement: Placement, names: set[str]) -> Iterator[Reason]:
    yield from placement.refusals
    for verdict in placement.verdicts:
        if names.intersection(verdict.nodes) and verdict.outcome is not Outcome.RUNS:
            choices = [r for r in verdict.reasons if is_out_of_reach((r,))]
            yield from choices or verdict.reasons

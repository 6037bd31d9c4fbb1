"""Which class a pod gets whose author named none; or which nodes, where classes are switched off.

Each class that is for one Windows build is tried on the pod, by the rules of placement. Better is
where the pod runs now, process isolation, the image's own build, the newest build, less overhead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from weakref import WeakKeyDictionary

from winpod.cluster.admission.nodes_to_come import nodes_to_come
from winpod.cluster.classes import desired_classes
from winpod.cluster.node_labels import HANDLER_PREFIX
from winpod.cluster.settings import Settings
from winpod.windows.alike import Alike
from winpod.windows.builds import Build
from winpod.windows.handlers import PROCESS
from winpod.windows.isolation import Isolation
from winpod.windows.objects import (
    ARCH_LABEL,
    BUILD_LABEL,
    OS_LABEL,
    OSVERSION_LABEL,
    Pod,
    RuntimeClass,
    Toleration,
)
from winpod.windows.placement import Cluster, judge
from winpod.windows.reading import Pairs
from winpod.windows.scheduling import admit, is_out_of_reach
from winpod.windows.starting import Images
from winpod.windows.verdicts import Cause, Outcome, Placement, Status, Verdict

_BUILD_LABELS = frozenset((BUILD_LABEL, OSVERSION_LABEL))
_COMMON_LABELS = _BUILD_LABELS | {OS_LABEL, ARCH_LABEL}
_STATUSES = (Status.RUNS, Status.MAY_FAIL, Status.WAITS)
_LATER = len(_STATUSES)
"""The rank of a pod for whose class there is no node yet."""
_NEVER = _LATER + 1

_PASSING = frozenset((Cause.TAINT, Cause.CORDONED, Cause.RESOURCES))
"""What may change while a pod waits."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a pod meets. `retiring` are the classes that take no new pods, with why not."""

    cluster: Cluster
    settings: Settings
    retiring: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """The pod as it would be, where it would run, and what that adds to what its author wrote.

    `retiring` is the class that would have been chosen if it took new pods, where no other does.
    """

    pod: Pod
    placement: Placement
    runtime_class: str = ""
    node_selector: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()
    retiring: str = ""


_ANY_POD = Pod((), requests=(("cpu", Decimal(1)), ("memory", Decimal(1))))


def prepare(cluster: Cluster) -> None:
    """Find out beforehand which nodes are alike and how full they are, which takes a while."""
    cluster.place(_ANY_POD, {})


def as_written(pod: Pod, classes: Mapping[str, RuntimeClass]) -> Pod:
    """Without what the API server has merged in from the pod's RuntimeClass by now."""
    chosen = classes.get(pod.runtime_class)
    if chosen is None:
        return pod
    merged = set(chosen.node_selector)
    own = tuple(pair for pair in pod.node_selector if pair not in merged)
    overhead = () if pod.overhead == chosen.overhead else pod.overhead
    return replace(pod, node_selector=own, overhead=overhead)


def choose(pod: Pod, met: Circumstances, images: Images) -> Choice:
    """What fits best; the pod as it is where its author chose, or where nothing fits."""
    cluster = met.cluster
    if pod.every_node:
        return Choice(pod, _place_everywhere(pod, met, images))
    if pod.runtime_class or any(text not in images for text in pod.images):
        return Choice(pod, cluster.place(pod, images))
    offers = _classes if met.settings.classes else _nodes
    ranked = sorted(
        ((_rank(choice, cluster, images), choice) for choice in offers(pod, met, images)),
        key=lambda pair: pair[0],
    )
    fitting = [choice for rank, choice in ranked if rank[0] < _NEVER]
    for choice in fitting:
        if choice.runtime_class not in met.retiring:
            return choice
    wanted = fitting[0].runtime_class if fitting else ""
    return Choice(pod, cluster.place(pod, images), retiring=wanted)


def _place_everywhere(pod: Pod, met: Circumstances, images: Images) -> Placement:
    """Each node's pod is asked about for itself, since each gets its own class when it comes."""
    cluster = met.cluster
    placement = cluster.place(pod, images)
    if placement.refusals:
        return placement
    nodes = {node.name: node for node in cluster.nodes}
    verdicts = []
    for verdict in placement.verdicts:
        if verdict.outcome is Outcome.FAILS:
            alone = Cluster((nodes[verdict.nodes[0]],), cluster.classes.values(), cluster.handlers)
            choice = choose(replace(pod, every_node=False), replace(met, cluster=alone), images)
            if choice.placement.status is Status.RUNS:
                verdict = replace(choice.placement.verdicts[0], nodes=verdict.nodes)
        verdicts.append(verdict)
    outcomes = {verdict.outcome for verdict in verdicts}
    status = placement.status
    if Outcome.RUNS in outcomes:
        status = Status.MAY_FAIL if Outcome.FAILS in outcomes else Status.RUNS
    return replace(placement, status=status, verdicts=tuple(verdicts))


def _classes(pod: Pod, met: Circumstances, images: Images) -> Iterable[Choice]:
    cluster = met.cluster
    for name, known in cluster.classes.items():
        if _is_for_one_build(known) and cluster.handlers.find(known.handler):
            classed = replace(pod, runtime_class=name)
            yield Choice(classed, cluster.place(classed, images), runtime_class=name)


def _is_for_one_build(known: RuntimeClass) -> bool:
    """A class that selects by more than a build, or a handler, is for who asks for it by name."""
    keys = {key for key, _ in known.node_selector if not key.startswith(HANDLER_PREFIX)}
    by_handler = len(keys) < len(known.node_selector)
    return keys <= _COMMON_LABELS and (by_handler or bool(keys & _BUILD_LABELS))


def _nodes(pod: Pod, met: Circumstances, images: Images) -> Iterable[Choice]:
    """What the classes for process isolation would have said, said by the pod itself."""
    own = dict(pod.node_selector)
    for offered in _offered(met.cluster, met.settings):
        if any(own.get(key, value) != value for key, value in offered.node_selector):
            continue
        selector = tuple(pair for pair in offered.node_selector if pair[0] not in own)
        tolerations = tuple(t for t in offered.tolerations if t not in pod.tolerations)
        selecting = replace(
            pod,
            node_selector=tuple(sorted((*pod.node_selector, *selector))),
            tolerations=pod.tolerations + tolerations,
        )
        placement = met.cluster.place(selecting, images)
        yield Choice(selecting, placement, node_selector=selector, tolerations=tolerations)


_offers: WeakKeyDictionary[Alike, tuple[Settings, tuple[RuntimeClass, ...]]] = WeakKeyDictionary()


def _offered(cluster: Cluster, settings: Settings) -> tuple[RuntimeClass, ...]:
    """Found once for all pods that come while no node changes but in what is taken on it."""
    known_for, offered = _offers.get(cluster.alike, (None, ()))
    if known_for != settings:
        wanted = desired_classes(cluster.nodes, replace(settings, classes=True))
        classes = (one.runtime_class for one in wanted)
        offered = tuple(one for one in classes if one.handler == PROCESS.name)
        _offers[cluster.alike] = (settings, offered)
    return offered


_Rank = tuple[int, bool, bool, int, Decimal, str]


def _rank(choice: Choice, cluster: Cluster, images: Images) -> _Rank:
    """Smaller is better."""
    placement = choice.placement
    best = min((_quality(v) for v in placement.verdicts if _counts(v)), default=(True, True, 0))
    known = cluster.classes.get(choice.runtime_class)
    overhead = sum((amount for _, amount in known.overhead), Decimal(0)) if known else Decimal(0)
    return (_standing(choice, cluster, images), *best, overhead, choice.runtime_class)


def _standing(choice: Choice, cluster: Cluster, images: Images) -> int:
    if choice.placement.status in _STATUSES:
        return _STATUSES.index(choice.placement.status)
    if only_has_to_wait(choice.placement):
        return _STATUSES.index(Status.WAITS)
    return _LATER if may_come(choice.pod, cluster, images) else _NEVER


def _counts(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.RUNS or bool(verdict.manifests)


def _quality(verdict: Verdict) -> tuple[bool, bool, int]:
    kernel = verdict.kernel or Build(0, 0, 0)
    builds = [m.platform.build for _, m in verdict.manifests]
    is_own = all(build is not None and build.base == kernel.base for build in builds)
    return (verdict.isolation is Isolation.HYPERVISOR, not is_own, -kernel.number)


def only_has_to_wait(placement: Placement) -> bool:
    """Some node would run it, if it were not for a taint, a cordon, or a lack of room."""
    return not placement.refusals and any(
        verdict.outcome is Outcome.BLOCKED
        and not is_out_of_reach(verdict.reasons)
        and all(reason.cause in _PASSING for reason in verdict.reasons)
        for verdict in placement.verdicts
    )


def may_come(pod: Pod, cluster: Cluster, images: Images) -> bool:
    """Whether a node that is not there yet would run it: none has the labels that it selects."""
    placement = cluster.place(pod, images)
    if placement.refusals or not all(is_out_of_reach(v.reasons) for v in placement.verdicts):
        return False
    admitted, _ = admit(pod, cluster.classes)
    return any(
        judge(admitted, node, images, cluster.handlers).outcome in (Outcome.RUNS, Outcome.UNKNOWN)
        for node in nodes_to_come(admitted.pod, cluster, images)
    )

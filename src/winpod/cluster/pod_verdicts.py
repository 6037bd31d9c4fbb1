"""What becomes of pods that exist: where they are, where they may run, why they wait. Pure.

A pod that runs, runs. One that is bound is asked whether it can start there, and one that is not is
judged as admission judged it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from winpod.cluster.admission.choosing import Choice, as_written
from winpod.cluster.admission.deciding import Fate, judge
from winpod.cluster.seen import SeenPod
from winpod.windows.objects import Node, Pod
from winpod.windows.placement import Cluster, intended_os
from winpod.windows.scheduling import admit
from winpod.windows.starting import Images, start_on
from winpod.windows.verdicts import Outcome

RUNNING, PENDING = "Running", "Pending"


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """`nodes` are those where it may run, while it has none."""

    fate: Fate
    sentence: str = ""
    nodes: tuple[str, ...] = ()


NOT_WINDOWS = PodVerdict(Fate.NOT_WINDOWS)


def doubted(verdict: PodVerdict, doubts: Sequence[str]) -> PodVerdict:
    """`doubts` are why its images are known from before only: what was found may not hold."""
    if not doubts or verdict.fate is Fate.NOT_WINDOWS:
        return verdict
    sentence = f"by what its images were when they were last looked up: {verdict.sentence}"
    told = " ".join(doubts)
    return replace(verdict, fate=Fate.UNKNOWN, sentence=f"{sentence.rstrip('.')}. {told}")


def has_doubts(pod: SeenPod, nodes: Mapping[str, Node]) -> bool:
    """Whether its images decide: it has not started, and may be for Windows."""
    if pod.phase != PENDING or pod.is_leaving:
        return False
    node = nodes.get(pod.node)
    return node is None or node.os == "windows"


def judge_pod(
    pod: SeenPod, cluster: Cluster, nodes: Mapping[str, Node], images: Images
) -> PodVerdict:
    """`nodes` are the cluster's, by name. What is not known of images is not in `images`."""
    if pod.node:
        return _judge_bound(pod, nodes.get(pod.node), cluster, images)
    return _judge_unbound(as_written(pod.template, cluster.classes), cluster, images)


def _judge_bound(pod: SeenPod, node: Node | None, cluster: Cluster, images: Images) -> PodVerdict:
    if node is None:
        return PodVerdict(Fate.UNKNOWN, "its node is not there")
    if node.os != "windows" and not _is_for_windows(pod.template, cluster, images):
        return NOT_WINDOWS
    admitted, _ = admit(pod.template, cluster.classes)
    start = start_on(admitted, node, images, cluster.handlers)
    isolation = f"{start.handler.isolation} isolation" if start.handler else ""
    where = ", ".join(filter(None, (isolation, start.kernel.describe() if start.kernel else "")))
    if pod.phase == RUNNING:
        return PodVerdict(Fate.RUNS, where)
    if start.reasons:
        why = "; ".join(reason.sentence for reason in start.reasons)
        return PodVerdict(Fate.CANNOT_RUN, f"it cannot start there: {why}")
    if start.unknown:
        why = "; ".join(reason.sentence for reason in start.unknown)
        return PodVerdict(Fate.UNKNOWN, f"it is not sure to start there: {why}")
    return PodVerdict(Fate.RUNS, f"it starts there: {where}")


def _judge_unbound(template: Pod, cluster: Cluster, images: Images) -> PodVerdict:
    os = intended_os(template, cluster.classes, images, cluster.handlers)
    if os not in ("", "windows"):
        return NOT_WINDOWS
    if not os:
        return PodVerdict(Fate.UNKNOWN, "nothing says which operating system it is for")
    placement = cluster.place(template, images)
    answer = judge(Choice(template, placement), cluster, images, {})
    running = (verdict for verdict in placement.verdicts if verdict.outcome is Outcome.RUNS)
    nodes = tuple(name for verdict in running for name in verdict.nodes)
    sentence = answer.sentence or "it may run; the scheduler has not chosen a node yet"
    return PodVerdict(answer.fate, sentence, nodes)


def _is_for_windows(template: Pod, cluster: Cluster, images: Images) -> bool:
    return intended_os(template, cluster.classes, images, cluster.handlers) == "windows"

"""Which node a pod goes to, and in which words it goes to none: as `winpod check` decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
from lightkube.models import core_v1 as v1

from winpod.node.facts import NodeFacts
from winpod.node.play.templates import has_ended
from winpod.node.requests import spec_of
from winpod.windows import objects
from winpod.windows.advice import advise
from winpod.windows.builds import DEFAULT_HOST, RELEASES, Build, supported_ltsc
from winpod.windows.handlers import KNOWN, PROCESS, Handlers
from winpod.windows.objects import ARCH_LABEL, BUILD_LABEL, OS_LABEL, Node, RuntimeClass
from winpod.windows.placement import Cluster, best_nodes, intended_os, judge
from winpod.windows.platforms import Image
from winpod.windows.quantities import format_quantity
from winpod.windows.scheduling import admit, with_allocated
from winpod.windows.verdicts import Outcome, Placement, Status, Verdict

Images = Mapping[str, Image]
HandlersOn = Callable[[Build], frozenset[str]]
"""The handlers that a node of a build could start on this machine."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`node` is empty where there is none; then `lines` say why, and `advice` what to do.

    `unknown` is why images could not be looked up.
    """

    node: str
    handler: str = ""
    why: str = ""
    lines: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Choice:
        return msgspec.convert(document, cls)


def node_of(facts: NodeFacts) -> Node:
    """A node as placement knows it."""
    return Node(
        name=facts.name,
        labels=tuple(sorted(facts.all_labels.items())),
        taints=facts.taints,
        allocatable=tuple(sorted(facts.allocatable().items())),
        handlers=facts.handlers,
        runtime="winpod",
        kernel_version=str(facts.build),
    )


def place(
    pod: v1.Pod,
    others: Iterable[v1.Pod],
    nodes: Sequence[NodeFacts],
    classes: Sequence[RuntimeClass],
    images: Images,
    handlers_on: HandlersOn,
    handlers: Handlers = KNOWN,
) -> Choice:
    """The node for one pod beside the others, which have theirs."""
    bound = [read(other) for other in others if spec_of(other).nodeName and not has_ended(other)]
    cluster = Cluster(with_allocated(map(node_of, nodes), bound), classes, handlers)
    wanted = read(pod)
    placement = cluster.place(wanted, images)
    if intended_os(wanted, cluster.classes, images, handlers) == "linux":
        return Choice("", lines=("It is for Linux, and these nodes run Windows.",))
    chosen = _emptiest(best_nodes(placement.verdicts), bound) or _unknown(placement)
    if not chosen or placement.refusals:
        advice = advise(wanted, placement, cluster, images)
        more = _another_node(wanted, cluster, images, handlers_on)
        return Choice("", lines=tuple(_against(placement)), advice=(*more, *advice))
    verdict = next(v for v in placement.verdicts if chosen in v.nodes)
    return Choice(chosen, verdict.handler or PROCESS.name, _reason_for(chosen, verdict, placement))


def _emptiest(names: Sequence[str], bound: Iterable[objects.Pod]) -> str:
    """Of nodes that are equally good, the one with the fewest pods."""
    taken = Counter(pod.node_name for pod in bound)
    return min(names, key=lambda name: taken[name], default="")


def _another_node(
    pod: objects.Pod, cluster: Cluster, images: Images, handlers_on: HandlersOn
) -> tuple[str, ...]:
    """A node that can be had for the asking, where one of another build would run the pod."""
    admitted, refusals = admit(pod, cluster.classes)
    for build in known_builds(images.values()) if not refusals else ():
        node = _plain_node(build, handlers_on)
        verdict = judge(admitted, node, images, cluster.handlers)
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
    """Builds that a node can be of: those in support, and those of the images; the usual first."""
    known = {release.build for release in supported_ltsc()}
    stated = {m.platform.build.base for i in images for m in i.manifests if m.platform.build}
    known |= {r.build for r in RELEASES if r.runs_pods and r.build in stated}
    return sorted(known, key=lambda build: (build != DEFAULT_HOST, -build.number))


def read(pod: v1.Pod) -> objects.Pod:
    return objects.Pod.from_template(pod.to_dict())


def _unknown(placement: Placement) -> str:
    """A node of which something is not known, such as an image that could not be looked up: it is
    tried, and the pull says what is wrong."""
    return next((v.nodes[0] for v in placement.verdicts if v.outcome is Outcome.UNKNOWN), "")


def _against(placement: Placement) -> Iterable[str]:
    for refusal in placement.refusals:
        yield f"{refusal.sentence}{_symptom(refusal.symptom)}"
    for verdict in placement.verdicts:
        for reason in verdict.reasons:
            yield f"{', '.join(verdict.nodes)}: {reason.sentence}{_symptom(reason.symptom)}"


def _symptom(text: str) -> str:
    return f" [{text}]" if text else ""


def _reason_for(node: str, verdict: Verdict, placement: Placement) -> str:
    """Why here: by what fits, and what speaks against the others."""
    builds = dict.fromkeys(m.platform.os_version for _, m in verdict.manifests)
    image = ", ".join(build for build in builds if build)
    fits = f"image {image} fits" if image else "the image could not be looked up"
    others = [v for v in placement.verdicts if node not in v.nodes and v.reasons]
    if not others:
        return fits
    reasons = "; ".join(f"not {', '.join(v.nodes)}: {v.reasons[0].sentence}" for v in others[:2])
    return f"{fits}; {reasons}"


def possible(
    pod: v1.Pod,
    nodes: Sequence[NodeFacts],
    classes: Sequence[RuntimeClass],
    images: Images,
    handlers: Handlers = KNOWN,
) -> list[tuple[NodeFacts, str]]:
    """The nodes that a pod could go to if they were empty, each with the handler."""
    verdicts = Cluster(map(node_of, nodes), classes, handlers).place(read(pod), images).verdicts
    found = {n: v.handler for v in verdicts if v.outcome is Outcome.RUNS for n in v.nodes}
    return [(facts, found[facts.name]) for facts in nodes if facts.name in found]


def nodes_for(
    template: Mapping[str, Any],
    nodes: Sequence[NodeFacts],
    classes: Sequence[RuntimeClass],
    images: Images,
    handlers: Handlers = KNOWN,
) -> list[str]:
    """The nodes that a DaemonSet has a pod on: all that its pod can run on."""
    pod = objects.Pod.from_template(template, every_node=True)
    cluster = Cluster(map(node_of, nodes), classes, handlers)
    verdicts = cluster.place(pod, images).verdicts
    fitting = (Outcome.RUNS, Outcome.UNKNOWN)
    found = {name for v in verdicts if v.outcome in fitting for name in v.nodes}
    return [facts.name for facts in nodes if facts.name in found]


def merged(pod: v1.Pod, classes: Mapping[str, RuntimeClass]) -> v1.Pod:
    """The pod with what its RuntimeClass gives it, as the API server's admission writes it in."""
    admitted, _ = admit(read(pod), classes)
    spec = spec_of(pod)
    known = classes.get(spec.runtimeClassName or "")
    if known is None:
        return pod
    spec.nodeSelector = dict(admitted.pod.node_selector) or None
    spec.tolerations = [
        *(spec.tolerations or ()),
        *(
            v1.Toleration(
                key=t.key or None,
                operator=t.operator,
                value=t.value or None,
                effect=t.effect or None,
            )
            for t in known.tolerations
        ),
    ] or None
    if known.overhead:
        spec.overhead = {name: _quantity(name, amount) for name, amount in known.overhead}
    return pod


def _quantity(name: str, amount: Decimal) -> str:
    return format_quantity(name, amount)


def best_build(
    templates: Iterable[tuple[Mapping[str, Any], Images]],
    classes: Sequence[RuntimeClass],
    handlers_on: HandlersOn,
    handlers: Handlers = KNOWN,
) -> tuple[Build, int, int]:
    """The build on which the most of these pods run, and how many of how many do.

    The usual one goes before others, and then the newest.
    """
    pods = [(objects.Pod.from_template(template), images) for template, images in templates]
    known = known_builds(image for _, images in pods for image in images.values())

    def count(build: Build) -> int:
        cluster = Cluster((_plain_node(build, handlers_on),), classes, handlers)
        good = (Status.RUNS, Status.UNKNOWN)
        return sum(cluster.place(pod, images).status in good for pod, images in pods)

    best = max(known, key=count)
    return best, count(best), len(pods)

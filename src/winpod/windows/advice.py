"""The smallest change that makes a pod run.

A change is a sentence and the edit it stands for. The edit is really made, on a copy, and the rules
are asked again, so that advice is given only where following it helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from winpod.windows.builds import Build
from winpod.windows.handlers import (
    HYPERVISOR,
    KNOWN,
    PROCESS,
    Handler,
    Handlers,
    hypervisor_for,
)
from winpod.windows.isolation import Isolation
from winpod.windows.objects import (
    ARCH_LABEL,
    BUILD_LABEL,
    HOSTNAME_LABEL,
    OS_LABEL,
    Node,
    Pod,
    RuntimeClass,
    Taint,
    Toleration,
)
from winpod.windows.placement import Cluster, default_nodes, judge
from winpod.windows.platforms import Image, Manifest, Platform
from winpod.windows.quantities import format_quantity
from winpod.windows.scheduling import admit, needs
from winpod.windows.starting import Images
from winpod.windows.verdicts import Cause, Outcome, Placement, Reason, Status, Verdict


@dataclass(frozen=True, slots=True)
class Situation:
    """One pod before one node: what a change may edit."""

    pod: Pod
    node: Node
    classes: dict[str, RuntimeClass]
    images: Images
    handlers: Handlers = KNOWN

    def verdict(self) -> Verdict:
        admitted, refusals = admit(self.pod, self.classes)
        verdict = judge(admitted, self.node, self.images, self.handlers)
        if not refusals:
            return verdict
        return replace(verdict, outcome=Outcome.BLOCKED, reasons=refusals + verdict.reasons)


@dataclass(frozen=True, slots=True)
class Change:
    sentence: str
    cost: int
    after: Situation
    changes_class: bool = False


_EDIT, _NEW_CLASS, _NODE_WORK, _NEW_IMAGE = 1, 3, 5, 8
_TOO_MUCH = 30
_MOST_TRIES = 200


def advise(pod: Pod, placement: Placement, cluster: Cluster, images: Images) -> tuple[str, ...]:
    """What to change, the least of it; nothing where the pod runs and can run nowhere wrong."""
    if placement.status in (Status.RUNS, Status.UNKNOWN):
        return ()
    runs_somewhere = any(v.outcome is Outcome.RUNS for v in placement.verdicts)
    if runs_somewhere and not placement.refusals:
        return (_keep_off(placement, cluster),)
    return _make_fit(pod, placement, cluster, images)


_TELLING_LABELS = (OS_LABEL, BUILD_LABEL, ARCH_LABEL, HOSTNAME_LABEL)
_MOST_VALUES = 5


def _keep_off(placement: Placement, cluster: Cluster) -> str:
    """How to keep the scheduler from the nodes where the pod would fail."""
    nodes = {node.name: node for node in cluster.nodes}
    found: dict[Outcome, list[Node]] = {outcome: [] for outcome in Outcome}
    for verdict in placement.verdicts:
        found[verdict.outcome] += (nodes[name] for name in verdict.nodes)
    for key in _TELLING_LABELS:
        values = {node.label(key) or "" for node in found[Outcome.RUNS]}
        wrong = {node.label(key) for node in found[Outcome.FAILS]}
        if "" in values or values & wrong or len(values) > _MOST_VALUES:
            continue
        shown = [f'"{value}"' for value in sorted(values)]
        if len(shown) > 1:
            return f"add a required node affinity {key} In [{', '.join(shown)}]"
        return f"add nodeSelector {key}: {values.pop() if key == OS_LABEL else shown[0]}"
    return "give the nodes that run it a label of their own, and add it to nodeSelector"


def _make_fit(pod: Pod, placement: Placement, cluster: Cluster, images: Images) -> tuple[str, ...]:
    nodes = {node.name: node for node in cluster.nodes}
    best: tuple[Change, ...] = ()
    for verdict in sorted(placement.verdicts, key=lambda v: len(v.reasons)):
        node = nodes[verdict.nodes[0]]
        situation = Situation(pod, node, cluster.classes, images, cluster.handlers)
        best = repair(situation, below=_cost(best) if best else _TOO_MUCH) or best
    if not best:
        return _another_node(pod, cluster.classes, images)
    return tuple(change.sentence for change in best)


def _cost(changes: tuple[Change, ...]) -> int:
    return sum(change.cost for change in changes)


def _another_node(pod: Pod, classes: dict[str, RuntimeClass], images: Images) -> tuple[str, ...]:
    """A node of a build that the images have, with the labels that the pod asks for."""
    found = [image for text in pod.images if (image := images.get(text))]
    builds = {m.platform.build.base for i in found for m in i.manifests if m.platform.build}
    selector = admit(pod, classes)[0].pod.node_selector
    for build in sorted(builds, reverse=True):
        (like,) = default_nodes([build])
        labels = tuple(sorted((dict(selector) | dict(like.labels)).items()))
        node = Node(like.name, labels)
        if Situation(pod, node, classes, images).verdict().outcome is Outcome.RUNS:
            return (f"add a Windows node of build {build.describe()}",)
    return ()


def repair(situation: Situation, *, below: int = _TOO_MUCH) -> tuple[Change, ...]:
    """The cheapest changes that make the pod run on this node, none if that costs too much."""
    order = count()
    queue: list[tuple[int, int, tuple[Change, ...], Situation]] = [(0, next(order), (), situation)]
    for _ in range(_MOST_TRIES):
        if not queue:
            break
        cost, _, changes, here = heappop(queue)
        verdict = here.verdict()
        if verdict.outcome is Outcome.RUNS:
            return changes
        if verdict.outcome is Outcome.UNKNOWN:
            continue
        for change in _changes_for(verdict.reasons[0], here):
            again = change.changes_class and any(c.changes_class for c in changes)
            if cost + change.cost < below and not again:
                entry = (cost + change.cost, next(order), (*changes, change), change.after)
                heappush(queue, entry)
    return ()


def _changes_for(reason: Reason, situation: Situation) -> Iterator[Change]:
    if reason.cause in (Cause.BUILD, Cause.HANDLER, Cause.ISOLATION, Cause.SELECTOR):
        yield from _other_classes(situation)
    for find in _CHANGES.get(reason.cause, ()):
        if change := find(reason, situation):
            yield change


def _other_classes(situation: Situation) -> Iterator[Change]:
    """Every RuntimeClass there is, and none."""
    for name in ("", *sorted(situation.classes)):
        if name != situation.pod.runtime_class:
            sentence = f"set runtimeClassName: {name}" if name else "remove runtimeClassName"
            yield Change(sentence, _EDIT, _with_class(situation, name), changes_class=True)


def _with_class(situation: Situation, name: str, new: RuntimeClass | None = None) -> Situation:
    return replace(
        situation,
        pod=replace(situation.pod, runtime_class=name, overhead=()),
        classes={**situation.classes, name: new} if new else situation.classes,
    )


def _guest_class(_: Reason, situation: Situation) -> Change | None:
    """An older image on a newer node can have a guest of its own build."""
    node, host = situation.node, situation.node.build
    if host is None or node.os != "windows" or node.runtime in ("containerd", "docker"):
        return None
    for guest in _older_builds(situation.images, situation.pod, host):
        handler = hypervisor_for(guest)
        if node.handlers is not None and not _serves(node, handler, situation.handlers):
            continue
        name = f"windows-{guest.release.short_name if guest.release else guest.number}-hyperv"
        new = RuntimeClass(name, handler.name, ((BUILD_LABEL, str(host)), (OS_LABEL, "windows")))
        after = _with_class(situation, name, new)
        if not any(r.cause is Cause.BUILD for r in after.verdict().reasons):
            sentence = (
                f"add a RuntimeClass with handler {handler.name} for build {guest} "
                f"on node {node.name}, and set runtimeClassName to it"
            )
            return Change(sentence, _NEW_CLASS, after, changes_class=True)
    return None


def _serves(node: Node, handler: Handler, handlers: Handlers) -> bool:
    return any(handlers.find(name) == handler for name in node.handlers or ())


def _older_builds(images: Images, pod: Pod, host: Build) -> Iterator[Build]:
    found = {
        m.platform.build.base
        for text in pod.images
        if (image := images.get(text))
        for m in image.manifests
        if m.platform.build and m.platform.build.base < host
    }
    yield from sorted(found, reverse=True)


def _new_image(reason: Reason, situation: Situation) -> Change | None:
    image = situation.images.get(reason.about)
    node = situation.node
    if image is None:
        return None
    handler = situation.handlers.find(admit(situation.pod, situation.classes)[0].handler)
    kernel = (handler or PROCESS).kernel(node.build) if node.build else None
    version = str(kernel) if kernel and node.os == "windows" else ""
    platform = Platform(node.os, node.architecture, os_version=version)
    wanted = f"{node.os}/{node.architecture}"
    if kernel:
        wanted += f" {kernel.describe()}"
    better = Image(reason.about, "", (*image.manifests, Manifest("", platform, 0)))
    after = replace(situation, images={**situation.images, reason.about: better})
    sentence = f"use an image for {wanted}: {reason.sentence}"
    return Change(sentence, _NEW_IMAGE, after)


def _drop_class(reason: Reason, situation: Situation) -> Change | None:
    """The API server's refusal: the class is missing, or says something else than the pod."""
    pod = situation.pod
    if reason.about == "overhead":
        after = replace(situation, pod=replace(pod, overhead=()))
        return Change("remove spec.overhead, which only a RuntimeClass sets", _EDIT, after)
    if pod.runtime_class not in situation.classes:
        new = RuntimeClass(pod.runtime_class, PROCESS.name)
        after = replace(situation, classes={**situation.classes, new.name: new})
        return Change(
            f"create the RuntimeClass {new.name}, or give the file that has it too",
            _NEW_CLASS,
            after,
        )
    return Change(f"remove nodeSelector {reason.about}", _EDIT, _without_label(situation, reason))


def _without_label(situation: Situation, reason: Reason) -> Situation:
    kept = tuple(pair for pair in situation.pod.node_selector if pair[0] != reason.about)
    return replace(situation, pod=replace(situation.pod, node_selector=kept))


def _configure_handler(reason: Reason, situation: Situation) -> Change | None:
    node, handler = situation.node, situation.handlers.find(reason.about)
    if handler is None or node.handlers is None:
        return None
    name = handler.name if node.runtime == "winpod" else reason.about
    after = replace(situation, node=replace(node, handlers=node.handlers | {name}))
    sentence = f'configure handler "{name}" in the container runtime of node {node.name}'
    is_guest = handler.isolation is Isolation.HYPERVISOR
    if node.runtime == "winpod" and is_guest and HYPERVISOR.name not in node.handlers:
        sentence = (
            f"give node {node.name} hypervisor isolation: `winpod base build --with-hypervisor` "
            "there, and KVM, or leave to emulate (WINPOD_ALLOW_EMULATION=1)"
        )
    return Change(sentence, _NODE_WORK, after)


def _own_guest(reason: Reason, situation: Situation) -> Change | None:
    """No guest of that build: one of the node's own, where the node has such a handler."""
    node = situation.node
    if reason.about != "guest" or (node.handlers and HYPERVISOR.name not in node.handlers):
        return None
    new = RuntimeClass("windows-hyperv", HYPERVISOR.name)
    sentence = f"use a RuntimeClass with handler {HYPERVISOR.name}, whose guest is the node's build"
    after = _with_class(situation, new.name, new)
    return Change(sentence, _NEW_CLASS, after, changes_class=True)


def _tolerate(reason: Reason, situation: Situation) -> Change:
    taint = next(t for t in situation.node.taints if str(t) == reason.about)
    toleration = _toleration_of(taint)
    tolerations = (*situation.pod.tolerations, toleration)
    after = replace(situation, pod=replace(situation.pod, tolerations=tolerations))
    return Change(f"tolerate {taint}", _EDIT, after)


def _toleration_of(taint: Taint) -> Toleration:
    return Toleration(taint.key, "Equal" if taint.value else "Exists", taint.value, taint.effect)


def _select(reason: Reason, situation: Situation) -> Change | None:
    pod, node, key = situation.pod, situation.node, reason.about
    if key not in dict(pod.node_selector):
        return _reselect_class(reason, situation)
    found = node.label(key)
    if found is None:
        return Change(f"remove nodeSelector {key}", _EDIT, _without_label(situation, reason))
    selector = tuple(sorted({**dict(pod.node_selector), key: found}.items()))
    after = replace(situation, pod=replace(pod, node_selector=selector))
    return Change(f'set nodeSelector {key} to "{found}"', _EDIT, after)


def _reselect_class(reason: Reason, situation: Situation) -> Change | None:
    """The label is asked for by the RuntimeClass, which other pods may use too."""
    name, key = situation.pod.runtime_class, reason.about
    chosen, found = situation.classes[name], situation.node.label(key)
    kept = {k: v for k, v in chosen.node_selector if k != key}
    selector = tuple(sorted((kept | ({key: found} if found is not None else {})).items()))
    edited = replace(chosen, node_selector=selector)
    after = replace(situation, classes={**situation.classes, name: edited})
    what = f'set {key} to "{found}"' if found is not None else f"remove {key}"
    return Change(f"{what} in the nodeSelector of RuntimeClass {name}", _NEW_CLASS, after)


def _drop_affinity(_: Reason, situation: Situation) -> Change:
    after = replace(situation, pod=replace(situation.pod, affinity=None))
    sentence = f"widen the required node affinity so that it takes node {situation.node.name}"
    return Change(sentence, _EDIT, after)


def _free_node_name(_: Reason, situation: Situation) -> Change:
    after = replace(situation, pod=replace(situation.pod, node_name=""))
    return Change("remove spec.nodeName", _EDIT, after)


def _uncordon(_: Reason, situation: Situation) -> Change:
    node = situation.node
    after = replace(situation, node=replace(node, unschedulable=False))
    return Change(f"kubectl uncordon {node.name}", _EDIT, after)


def _ask_for_less(_: Reason, situation: Situation) -> Change | None:
    node, pod = situation.node, situation.pod
    size, taken = dict(node.allocatable or ()), dict(node.allocated)
    overhead = dict(admit(pod, situation.classes)[0].pod.overhead)
    lowered, words = dict(pod.requests), []
    for resource, amount in needs(admit(pod, situation.classes)[0].pod):
        free = size.get(resource, type(amount)(0)) - taken.get(resource, type(amount)(0))
        if resource == "pods" or amount <= free:
            continue
        room = free - overhead.get(resource, type(amount)(0))
        if room <= 0 or resource not in lowered:
            return _free_the_node(situation)
        lowered[resource] = room
        words.append(f"{resource} to {format_quantity(resource, room)}")
    if not words:
        return _free_the_node(situation)
    after = replace(situation, pod=replace(pod, requests=tuple(sorted(lowered.items()))))
    return Change(f"lower the requests for {' and '.join(words)}", _NEW_CLASS, after)


def _free_the_node(situation: Situation) -> Change | None:
    node = replace(situation.node, allocated=())
    sentence = f"move other pods away from node {node.name}, or add a node like it"
    return Change(sentence, _NODE_WORK, replace(situation, node=node))


_CHANGES: dict[Cause, tuple[Callable[[Reason, Situation], Change | None], ...]] = {
    Cause.RUNTIME_CLASS: (_drop_class,),
    Cause.BUILD: (_guest_class, _new_image),
    Cause.ARCHITECTURE: (_new_image,),
    Cause.OS: (_new_image,),
    Cause.HANDLER: (_configure_handler,),
    Cause.ISOLATION: (_own_guest,),
    Cause.TAINT: (_tolerate,),
    Cause.SELECTOR: (_select,),
    Cause.AFFINITY: (_drop_affinity,),
    Cause.NODE_NAME: (_free_node_name,),
    Cause.CORDONED: (_uncordon,),
    Cause.RESOURCES: (_ask_for_less,),
}

"""Advice: the cheapest set of changes that makes a pod run.

A change is a message and the edit it describes. Every edit is applied to a copy of the pod, node or
RuntimeClass and evaluated again, so advice is given only when following it helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from winpod.labels import ARCH_LABEL, BUILD_LABEL, HOSTNAME_LABEL, OS_LABEL
from winpod.placement.evaluator import Cluster, default_nodes, evaluate_node
from winpod.placement.model import Node, Pod, RuntimeClass, Taint, Toleration
from winpod.placement.predicates import admit_with_runtime_class, scheduling_requests
from winpod.placement.start_checks import ImagesByReference
from winpod.placement.verdicts import Cause, Outcome, Placement, Reason, Status, Verdict
from winpod.quantities import format_quantity
from winpod.windows.builds import Build
from winpod.windows.handlers import (
    BUILTIN_HANDLERS,
    HYPERVISOR_HANDLER,
    PROCESS_HANDLER,
    Handler,
    Handlers,
    hypervisor_handler,
)
from winpod.windows.isolation import Isolation
from winpod.windows.platforms import Image, Manifest, Platform


@dataclass(frozen=True, slots=True)
class FitScenario:
    """One pod on one node, with the objects that a change may edit."""

    pod: Pod
    node: Node
    classes: dict[str, RuntimeClass]
    images: ImagesByReference
    handlers: Handlers = BUILTIN_HANDLERS

    def verdict(self) -> Verdict:
        admitted, refusals = admit_with_runtime_class(self.pod, self.classes)
        verdict = evaluate_node(admitted, self.node, self.images, self.handlers)
        if not refusals:
            return verdict
        return replace(verdict, outcome=Outcome.BLOCKED, reasons=refusals + verdict.reasons)


@dataclass(frozen=True, slots=True)
class ProposedChange:
    message: str
    cost: int
    after: FitScenario
    changes_class: bool = False


_EDIT, _NEW_CLASS, _NODE_WORK, _NEW_IMAGE = 1, 3, 5, 8
_MAX_COST = 30
_MAX_EVALUATIONS = 200


def advise(
    pod: Pod, placement: Placement, cluster: Cluster, images: ImagesByReference
) -> tuple[str, ...]:
    """Return the cheapest changes that make the pod run; none if it runs on every eligible node."""
    if placement.status in (Status.RUNS, Status.UNKNOWN):
        return ()
    runs_somewhere = any(v.outcome is Outcome.RUNS for v in placement.verdicts)
    if runs_somewhere and not placement.refusals:
        return (_restrict_to_running_nodes(placement, cluster),)
    return _make_fit(pod, placement, cluster, images)


_DISTINGUISHING_LABELS = (OS_LABEL, BUILD_LABEL, ARCH_LABEL, HOSTNAME_LABEL)
_MAX_VALUES = 5


def _restrict_to_running_nodes(placement: Placement, cluster: Cluster) -> str:
    """Advise a node selector or affinity that excludes the nodes where the pod would fail."""
    nodes = {node.name: node for node in cluster.nodes}
    by_outcome: dict[Outcome, list[Node]] = {outcome: [] for outcome in Outcome}
    for verdict in placement.verdicts:
        by_outcome[verdict.outcome] += (nodes[name] for name in verdict.nodes)
    for key in _DISTINGUISHING_LABELS:
        values = {node.label(key) or "" for node in by_outcome[Outcome.RUNS]}
        failing = {node.label(key) for node in by_outcome[Outcome.FAILS]}
        if "" in values or values & failing or len(values) > _MAX_VALUES:
            continue
        shown = [f'"{value}"' for value in sorted(values)]
        if len(shown) > 1:
            return f"add a required node affinity {key} In [{', '.join(shown)}]"
        return f"add nodeSelector {key}: {values.pop() if key == OS_LABEL else shown[0]}"
    return "label the nodes that can run it, and add the label to nodeSelector"


def _make_fit(
    pod: Pod, placement: Placement, cluster: Cluster, images: ImagesByReference
) -> tuple[str, ...]:
    nodes = {node.name: node for node in cluster.nodes}
    best: tuple[ProposedChange, ...] = ()
    for verdict in sorted(placement.verdicts, key=lambda v: len(v.reasons)):
        node = nodes[verdict.nodes[0]]
        scenario = FitScenario(pod, node, cluster.classes, images, cluster.handlers)
        best = cheapest_fix(scenario, below=_cost(best) if best else _MAX_COST) or best
    if not best:
        return _advise_new_node(pod, cluster.classes, images)
    return tuple(change.message for change in best)


def _cost(changes: tuple[ProposedChange, ...]) -> int:
    return sum(change.cost for change in changes)


def _advise_new_node(
    pod: Pod, classes: dict[str, RuntimeClass], images: ImagesByReference
) -> tuple[str, ...]:
    """Advise a node of a build the images have, with the labels the pod selects."""
    resolved = [image for text in pod.images if (image := images.get(text))]
    builds = {m.platform.build.base for i in resolved for m in i.manifests if m.platform.build}
    selector = admit_with_runtime_class(pod, classes)[0].pod.node_selector
    for build in sorted(builds, reverse=True):
        (template,) = default_nodes([build])
        labels = tuple(sorted((dict(selector) | dict(template.labels)).items()))
        node = Node(template.name, labels)
        if FitScenario(pod, node, classes, images).verdict().outcome is Outcome.RUNS:
            return (f"add a Windows node of build {build.describe()}",)
    return ()


def cheapest_fix(scenario: FitScenario, *, below: int = _MAX_COST) -> tuple[ProposedChange, ...]:
    """Return the cheapest changes that make the pod run on this node; none if over `below`."""
    order = count()
    queue: list[tuple[int, int, tuple[ProposedChange, ...], FitScenario]] = [
        (0, next(order), (), scenario)
    ]
    for _ in range(_MAX_EVALUATIONS):
        if not queue:
            break
        cost, _, changes, current = heappop(queue)
        verdict = current.verdict()
        if verdict.outcome is Outcome.RUNS:
            return changes
        if verdict.outcome is Outcome.UNKNOWN:
            continue
        for change in _changes_for(verdict.reasons[0], current):
            second_class = change.changes_class and any(c.changes_class for c in changes)
            if cost + change.cost < below and not second_class:
                entry = (cost + change.cost, next(order), (*changes, change), change.after)
                heappush(queue, entry)
    return ()


def _changes_for(reason: Reason, scenario: FitScenario) -> Iterator[ProposedChange]:
    if reason.cause in (Cause.BUILD, Cause.HANDLER, Cause.ISOLATION, Cause.SELECTOR):
        yield from _switch_class(scenario)
    for find in _CHANGES.get(reason.cause, ()):
        if change := find(reason, scenario):
            yield change


def _switch_class(scenario: FitScenario) -> Iterator[ProposedChange]:
    """Propose every other RuntimeClass, and no RuntimeClass."""
    for name in ("", *sorted(scenario.classes)):
        if name != scenario.pod.runtime_class:
            message = f"set runtimeClassName: {name}" if name else "remove runtimeClassName"
            yield ProposedChange(message, _EDIT, _with_class(scenario, name), changes_class=True)


def _with_class(scenario: FitScenario, name: str, new: RuntimeClass | None = None) -> FitScenario:
    return replace(
        scenario,
        pod=replace(scenario.pod, runtime_class=name, overhead=()),
        classes={**scenario.classes, name: new} if new else scenario.classes,
    )


def _add_guest_class(_: Reason, scenario: FitScenario) -> ProposedChange | None:
    """Propose a hypervisor RuntimeClass whose guest matches an image older than the node."""
    node, host = scenario.node, scenario.node.build
    if host is None or node.os != "windows" or node.runtime in ("containerd", "docker"):
        return None
    for guest in _older_builds(scenario.images, scenario.pod, host):
        handler = hypervisor_handler(guest)
        if node.handlers is not None and not _serves(node, handler, scenario.handlers):
            continue
        name = f"windows-{guest.release.short_name if guest.release else guest.number}-hyperv"
        new = RuntimeClass(name, handler.name, ((BUILD_LABEL, str(host)), (OS_LABEL, "windows")))
        after = _with_class(scenario, name, new)
        if not any(r.cause is Cause.BUILD for r in after.verdict().reasons):
            message = (
                f"add a RuntimeClass with handler {handler.name} for build {guest} "
                f"on node {node.name}, and set runtimeClassName to it"
            )
            return ProposedChange(message, _NEW_CLASS, after, changes_class=True)
    return None


def _serves(node: Node, handler: Handler, handlers: Handlers) -> bool:
    return any(handlers.find(name) == handler for name in node.handlers or ())


def _older_builds(images: ImagesByReference, pod: Pod, host: Build) -> Iterator[Build]:
    older = {
        m.platform.build.base
        for text in pod.images
        if (image := images.get(text))
        for m in image.manifests
        if m.platform.build and m.platform.build.base < host
    }
    yield from sorted(older, reverse=True)


def _use_other_image(reason: Reason, scenario: FitScenario) -> ProposedChange | None:
    image = scenario.images.get(reason.subject)
    node = scenario.node
    if image is None:
        return None
    handler = scenario.handlers.find(
        admit_with_runtime_class(scenario.pod, scenario.classes)[0].handler
    )
    kernel = (handler or PROCESS_HANDLER).kernel_build(node.build) if node.build else None
    version = str(kernel) if kernel and node.os == "windows" else ""
    platform = Platform(node.os, node.architecture, os_version=version)
    target = f"{node.os}/{node.architecture}"
    if kernel:
        target += f" {kernel.describe()}"
    better = Image(reason.subject, "", (*image.manifests, Manifest("", platform, 0)))
    after = replace(scenario, images={**scenario.images, reason.subject: better})
    message = f"use an image for {target}: {reason.message}"
    return ProposedChange(message, _NEW_IMAGE, after)


def _fix_runtime_class(reason: Reason, scenario: FitScenario) -> ProposedChange | None:
    """Resolve an API server rejection: the class is missing or conflicts with the pod."""
    pod = scenario.pod
    if reason.subject == "overhead":
        after = replace(scenario, pod=replace(pod, overhead=()))
        return ProposedChange("remove spec.overhead, which only a RuntimeClass sets", _EDIT, after)
    if pod.runtime_class not in scenario.classes:
        new = RuntimeClass(pod.runtime_class, PROCESS_HANDLER.name)
        after = replace(scenario, classes={**scenario.classes, new.name: new})
        return ProposedChange(
            f"create the RuntimeClass {new.name}, or pass the file that defines it too",
            _NEW_CLASS,
            after,
        )
    return ProposedChange(
        f"remove nodeSelector {reason.subject}", _EDIT, _without_label(scenario, reason)
    )


def _without_label(scenario: FitScenario, reason: Reason) -> FitScenario:
    kept = tuple(pair for pair in scenario.pod.node_selector if pair[0] != reason.subject)
    return replace(scenario, pod=replace(scenario.pod, node_selector=kept))


def _configure_handler(reason: Reason, scenario: FitScenario) -> ProposedChange | None:
    node, handler = scenario.node, scenario.handlers.find(reason.subject)
    if handler is None or node.handlers is None:
        return None
    name = handler.name if node.runtime == "winpod" else reason.subject
    after = replace(scenario, node=replace(node, handlers=node.handlers | {name}))
    message = f'configure handler "{name}" in the container runtime of node {node.name}'
    is_guest = handler.isolation is Isolation.HYPERVISOR
    if node.runtime == "winpod" and is_guest and HYPERVISOR_HANDLER.name not in node.handlers:
        message = (
            f"enable hypervisor isolation on node {node.name}: run "
            "`winpod base build --with-hypervisor` there, and provide KVM or allow emulation "
            "(WINPOD_ALLOW_EMULATION=1)"
        )
    return ProposedChange(message, _NODE_WORK, after)


def _use_host_build_guest(reason: Reason, scenario: FitScenario) -> ProposedChange | None:
    """Propose a guest of the node's own build, if the node has the hypervisor handler."""
    node = scenario.node
    if reason.subject != "guest" or (
        node.handlers and HYPERVISOR_HANDLER.name not in node.handlers
    ):
        return None
    new = RuntimeClass("windows-hyperv", HYPERVISOR_HANDLER.name)
    message = (
        f"use a RuntimeClass with handler {HYPERVISOR_HANDLER.name}, "
        "whose guest is the node's build"
    )
    after = _with_class(scenario, new.name, new)
    return ProposedChange(message, _NEW_CLASS, after, changes_class=True)


def _tolerate(reason: Reason, scenario: FitScenario) -> ProposedChange:
    taint = next(t for t in scenario.node.taints if str(t) == reason.subject)
    toleration = _toleration_of(taint)
    tolerations = (*scenario.pod.tolerations, toleration)
    after = replace(scenario, pod=replace(scenario.pod, tolerations=tolerations))
    return ProposedChange(f"tolerate {taint}", _EDIT, after)


def _toleration_of(taint: Taint) -> Toleration:
    return Toleration(taint.key, "Equal" if taint.value else "Exists", taint.value, taint.effect)


def _select(reason: Reason, scenario: FitScenario) -> ProposedChange | None:
    pod, node, key = scenario.pod, scenario.node, reason.subject
    if key not in dict(pod.node_selector):
        return _reselect_class(reason, scenario)
    value = node.label(key)
    if value is None:
        return ProposedChange(f"remove nodeSelector {key}", _EDIT, _without_label(scenario, reason))
    selector = tuple(sorted({**dict(pod.node_selector), key: value}.items()))
    after = replace(scenario, pod=replace(pod, node_selector=selector))
    return ProposedChange(f'set nodeSelector {key} to "{value}"', _EDIT, after)


def _reselect_class(reason: Reason, scenario: FitScenario) -> ProposedChange | None:
    """Edit the selector of the RuntimeClass. Costs more, since other pods may use the class."""
    name, key = scenario.pod.runtime_class, reason.subject
    chosen, value = scenario.classes[name], scenario.node.label(key)
    kept = {k: v for k, v in chosen.node_selector if k != key}
    selector = tuple(sorted((kept | ({key: value} if value is not None else {})).items()))
    edited = replace(chosen, node_selector=selector)
    after = replace(scenario, classes={**scenario.classes, name: edited})
    edit = f'set {key} to "{value}"' if value is not None else f"remove {key}"
    return ProposedChange(f"{edit} in the nodeSelector of RuntimeClass {name}", _NEW_CLASS, after)


def _drop_affinity(_: Reason, scenario: FitScenario) -> ProposedChange:
    after = replace(scenario, pod=replace(scenario.pod, affinity=None))
    message = f"widen the required node affinity so that it includes node {scenario.node.name}"
    return ProposedChange(message, _EDIT, after)


def _free_node_name(_: Reason, scenario: FitScenario) -> ProposedChange:
    after = replace(scenario, pod=replace(scenario.pod, node_name=""))
    return ProposedChange("remove spec.nodeName", _EDIT, after)


def _uncordon(_: Reason, scenario: FitScenario) -> ProposedChange:
    node = scenario.node
    after = replace(scenario, node=replace(node, unschedulable=False))
    return ProposedChange(f"kubectl uncordon {node.name}", _EDIT, after)


def _lower_requests(_: Reason, scenario: FitScenario) -> ProposedChange | None:
    node, pod = scenario.node, scenario.pod
    size, allocated = dict(node.allocatable or ()), dict(node.allocated)
    overhead = dict(admit_with_runtime_class(pod, scenario.classes)[0].pod.overhead)
    lowered, limits = dict(pod.requests), []
    for resource, amount in scheduling_requests(
        admit_with_runtime_class(pod, scenario.classes)[0].pod
    ):
        free = size.get(resource, type(amount)(0)) - allocated.get(resource, type(amount)(0))
        if resource == "pods" or amount <= free:
            continue
        available = free - overhead.get(resource, type(amount)(0))
        if available <= 0 or resource not in lowered:
            return _free_node(scenario)
        lowered[resource] = available
        limits.append(f"{resource} to {format_quantity(resource, available)}")
    if not limits:
        return _free_node(scenario)
    after = replace(scenario, pod=replace(pod, requests=tuple(sorted(lowered.items()))))
    return ProposedChange(f"lower the requests for {' and '.join(limits)}", _NEW_CLASS, after)


def _free_node(scenario: FitScenario) -> ProposedChange | None:
    node = replace(scenario.node, allocated=())
    message = f"move other pods away from node {node.name}, or add a node like it"
    return ProposedChange(message, _NODE_WORK, replace(scenario, node=node))


_CHANGES: dict[Cause, tuple[Callable[[Reason, FitScenario], ProposedChange | None], ...]] = {
    Cause.RUNTIME_CLASS: (_fix_runtime_class,),
    Cause.BUILD: (_add_guest_class, _use_other_image),
    Cause.ARCHITECTURE: (_use_other_image,),
    Cause.OS: (_use_other_image,),
    Cause.HANDLER: (_configure_handler,),
    Cause.ISOLATION: (_use_host_build_guest,),
    Cause.TAINT: (_tolerate,),
    Cause.SELECTOR: (_select,),
    Cause.AFFINITY: (_drop_affinity,),
    Cause.NODE_NAME: (_free_node_name,),
    Cause.CORDONED: (_uncordon,),
    Cause.RESOURCES: (_lower_requests,),
}

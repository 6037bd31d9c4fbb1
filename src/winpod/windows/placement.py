"""Where a pod runs, and why not elsewhere.

Three questions are asked in the order a cluster asks them: does the API server admit the pod, would
the scheduler put it on a node, would it start there. A node that the scheduler may choose and where
the pod cannot start is the mistake that shows as a loop, so it is told apart from one that is
merely out of reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from winpod.windows.alike import Alike, Group, make_room
from winpod.windows.builds import Build
from winpod.windows.handlers import HYPERVISOR, KNOWN, PROCESS, Handlers
from winpod.windows.objects import (
    ARCH_LABEL,
    BUILD_LABEL,
    OS_LABEL,
    Node,
    Pod,
    RuntimeClass,
)
from winpod.windows.platforms import Manifest
from winpod.windows.reading import Pairs
from winpod.windows.room import Free, Room, room_on
from winpod.windows.scheduling import (
    Admitted,
    admit,
    is_out_of_reach,
    needs,
    scheduling_reasons,
)
from winpod.windows.starting import Images, start_on
from winpod.windows.verdicts import Outcome, Placement, Reason, Status, Verdict


def judge(admitted: Admitted, node: Node, images: Images, handlers: Handlers = KNOWN) -> Verdict:
    """One node's verdict, with every reason that speaks against it.

    A node that the pod itself does not select is asked nothing more.
    """
    verdict = _judge_apart_from_room(admitted, node, images, handlers)
    wanted = needs(admitted.pod)
    if is_out_of_reach(verdict.reasons):
        return verdict
    room = room_on(node)
    _, short = room.split(wanted)
    return _with_lack(verdict, room.lack(wanted, short)) if short else verdict


def _judge_apart_from_room(
    admitted: Admitted, node: Node, images: Images, handlers: Handlers
) -> Verdict:
    unscheduled = tuple(scheduling_reasons(admitted, node))
    if is_out_of_reach(unscheduled):
        return Verdict((node.name,), Outcome.BLOCKED, kernel=node.build, reasons=unscheduled)
    start = start_on(admitted, node, images, handlers)
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


def _with_lack(verdict: Verdict, lack: tuple[Reason, ...]) -> Verdict:
    known = () if verdict.outcome is Outcome.UNKNOWN else verdict.reasons
    return replace(verdict, outcome=Outcome.BLOCKED, reasons=known + lack)


_Judged = tuple[tuple[Verdict, ...], list[tuple[Verdict, Group]]]
"""Verdicts on nodes out of reach, and on groups within reach, where room is still to be asked."""


class Cluster:
    """Nodes and RuntimeClasses, kept so that nodes which are alike to a pod are judged once.

    `alike` is shared by clusters that differ only in what is taken on their nodes.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        classes: Iterable[RuntimeClass] = (),
        handlers: Handlers = KNOWN,
    ) -> None:
        self.nodes = tuple(nodes)
        self.handlers = handlers
        self.classes = {c.name: c for c in classes}
        self.alike = Alike(self.nodes)
        self._judged: dict[object, _Judged] = {}
        self._free = Free(self.nodes)
        self._rooms: dict[Group, Room] = {}

    def changed(self, nodes: Iterable[Node]) -> Cluster:
        """With these in place of the nodes of their names; all others are not looked at again."""
        by_name = {node.name: node for node in nodes}
        new = copy(self)
        new.nodes = tuple(by_name.get(node.name, node) for node in self.nodes)
        places = [place for place, node in enumerate(self.nodes) if node.name in by_name]
        new._free, new._rooms = self._free.changed(new.nodes, places), {}
        differ = [place for place in places if _differ(self.nodes[place], new.nodes[place])]
        if differ:
            new.alike, new._judged = self.alike.changed(new.nodes, differ), {}
        return new

    def place(self, pod: Pod, images: Images) -> Placement:
        admitted, refusals = admit(pod, self.classes)
        verdicts = self._verdicts(admitted, images)
        return Placement(
            status=_status(pod, verdicts, refusals),
            verdicts=verdicts,
            refusals=refusals,
            node="" if refusals else _choice(verdicts),
        )

    def _verdicts(self, admitted: Admitted, images: Images) -> tuple[Verdict, ...]:
        wanted = needs(admitted.pod)
        out_of_reach, reachable = self._judge(admitted, images)
        together: dict[Verdict, list[str]] = {}
        for verdict, group in reachable:
            room = self._room(group)
            enough, short = room.split(wanted)
            if enough:
                together.setdefault(verdict, []).extend(enough)
            if short:
                lacking = _with_lack(verdict, room.lack(wanted, short))
                names = (self.nodes[place].name for place in short)
                together.setdefault(lacking, []).extend(names)
        within = tuple(replace(v, nodes=tuple(names)) for v, names in together.items())
        return within + out_of_reach

    def _judge(self, admitted: Admitted, images: Images) -> _Judged:
        """Everything but room, which is all that pods of one kind usually differ in."""
        pod = replace(admitted.pod, requests=(), overhead=())
        key = (pod, admitted.handler, tuple(images.get(text) for text in pod.images))
        if key not in self._judged:
            far: dict[Verdict, list[str]] = {}
            reachable = []
            for group in self.alike.groups(pod):
                verdict = _judge_apart_from_room(admitted, group.example, images, self.handlers)
                verdict = replace(verdict, nodes=())
                if is_out_of_reach(verdict.reasons):
                    far.setdefault(verdict, []).extend(group.names)
                else:
                    reachable.append((verdict, group))
            out_of_reach = tuple(replace(v, nodes=tuple(names)) for v, names in far.items())
            make_room(self._judged)
            self._judged[key] = (out_of_reach, reachable)
        return self._judged[key]

    def _room(self, group: Group) -> Room:
        if group not in self._rooms:
            make_room(self._rooms)
            self._rooms[group] = Room(group, self._free)
        return self._rooms[group]


def _differ(node: Node, other: Node) -> bool:
    """In more than in what is taken on them."""
    return node != replace(other, allocated=node.allocated)


def _status(pod: Pod, verdicts: Sequence[Verdict], refusals: Sequence[Reason]) -> Status:
    outcomes = {verdict.outcome for verdict in verdicts}
    if refusals or (pod.every_node and Outcome.FAILS in outcomes):
        return Status.CANNOT_RUN
    if Outcome.RUNS in outcomes:
        return Status.MAY_FAIL if Outcome.FAILS in outcomes else Status.RUNS
    if Outcome.UNKNOWN in outcomes:
        return Status.UNKNOWN
    waiting = any(v.reasons and all(r.temporary for r in v.reasons) for v in verdicts)
    # The scheduler does not wait for a node that would do while there is one that would not.
    return Status.WAITS if waiting and Outcome.FAILS not in outcomes else Status.CANNOT_RUN


def _choice(verdicts: Iterable[Verdict]) -> str:
    return next(iter(best_nodes(verdicts)), "")


def best_nodes(verdicts: Iterable[Verdict]) -> list[str]:
    """The nodes to choose from: those of the image's own build, if there are such."""
    running = [v for v in verdicts if v.outcome is Outcome.RUNS]
    exact = [v for v in running if v.kernel and all(_is_own(m, v.kernel) for _, m in v.manifests)]
    return [node for verdict in exact or running for node in verdict.nodes]


def _is_own(manifest: Manifest, kernel: Build) -> bool:
    build = manifest.platform.build
    return build is not None and build.base == kernel.base


def intended_os(
    pod: Pod,
    classes: Mapping[str, RuntimeClass],
    images: Images,
    handlers: Handlers = KNOWN,
) -> str:
    """The operating system a pod is for: said by its author, else by its images, else unknown."""
    admitted, _ = admit(pod, classes)
    selector = dict(admitted.pod.node_selector)
    stated = pod.os or selector.get(OS_LABEL) or selector.get("beta.kubernetes.io/os")
    stated = stated or pod.narrowing.os or _os_of_affinity(pod)
    if stated or handlers.find(admitted.handler or " "):
        return stated or "windows"
    found = [image.operating_systems() for t in pod.images if (image := images.get(t))]
    common = frozenset.intersection(*found) if found else frozenset()
    return next(iter(common)) if len(common) == 1 else ""


def _os_of_affinity(pod: Pod) -> str:
    """Where every term asks for the same one; a node needs to hold one term only."""
    named = {
        frozenset(
            v for r in term.labels if r.key == OS_LABEL and r.operator == "In" for v in r.values
        )
        for term in pod.affinity or ()
    }
    only = named.pop() if len(named) == 1 else frozenset[str]()
    return next(iter(only)) if len(only) == 1 else ""


def default_nodes(builds: Iterable[Build]) -> tuple[Node, ...]:
    """One node for each build, as containerd makes it: no taint, its two handlers, size unknown."""
    return tuple(
        Node(
            name=f"windows-{build.release.short_name if build.release else build.number}",
            labels=_windows_labels(build),
            handlers=frozenset((PROCESS.name, HYPERVISOR.name)),
            runtime="containerd",
        )
        for build in builds
    )


def _windows_labels(build: Build) -> Pairs:
    return ((ARCH_LABEL, "amd64"), (OS_LABEL, "windows"), (BUILD_LABEL, str(build.base)))

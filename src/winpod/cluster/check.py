"""Whether manifests will run: every workload against every node, images looked up once.

Decides with `windows.placement`, `windows.advice` and `windows.pod_api`; the only thing that acts
here is the lookup of images.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from winpod.images.references import parse_reference
from winpod.images.source import ImageSources, guess_from_tag
from winpod.node.manifests import Manifests, Workload
from winpod.windows.advice import advise
from winpod.windows.builds import supported_ltsc
from winpod.windows.errors import InvalidInput, NotFound, WinpodError
from winpod.windows.handlers import KNOWN, Handlers
from winpod.windows.objects import OS_LABEL, Node, Pod, RuntimeClass
from winpod.windows.placement import Cluster, default_nodes, intended_os
from winpod.windows.platforms import Image
from winpod.windows.pod_api import Severity, lint_pod
from winpod.windows.reading import Path, show_path
from winpod.windows.verdicts import Outcome, Placement, Status


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a workload that is not a node's verdict, and the field it is about."""

    rule: str
    severity: Severity
    sentence: str
    path: Path
    instead: str = ""

    @property
    def field(self) -> str:
        return show_path(self.path)


@dataclass(frozen=True, slots=True)
class Checked:
    """One workload's answer. `placement` is None for a pod that is not meant for Windows."""

    workload: Workload
    os: str
    status: Status
    placement: Placement | None
    images: Mapping[str, Image]
    advice: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def has_doubts(self) -> bool:
        """A warning, or a node of which something is not known."""
        verdicts = self.placement.verdicts if self.placement else ()
        return any(problem.severity == "warning" for problem in self.problems) or any(
            verdict.outcome is Outcome.UNKNOWN for verdict in verdicts
        )


@dataclass(frozen=True, slots=True)
class Report:
    cluster: Cluster
    checked: tuple[Checked, ...]
    notes: tuple[str, ...] = ()

    def counts(self) -> Counter[Status]:
        return Counter(checked.status for checked in self.checked)

    def is_good(self, *, strict: bool = False) -> bool:
        """Everything runs; when strict, also nothing can go wrong or be ignored."""
        good = {Status.RUNS, Status.NOT_WINDOWS} | (set() if strict else {Status.MAY_FAIL})
        return all(c.status in good and not (strict and c.has_doubts()) for c in self.checked)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """What an image is, or why not; `missing` where nobody could ever pull it."""

    image: Image | None
    error: WinpodError | None
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes and RuntimeClasses to check against; not `real` where nobody named any."""

    nodes: tuple[Node, ...]
    classes: tuple[RuntimeClass, ...] = ()
    real: bool = True


def default_fleet() -> Fleet:
    """One node of each long-term release in support."""
    return Fleet(default_nodes(release.build for release in supported_ltsc()), real=False)


async def check(
    manifests: Manifests,
    fleet: Fleet,
    sources: ImageSources,
    *,
    on_image: Callable[[int, int], None],
    handlers: Handlers = KNOWN,
) -> Report:
    """Look the images up, then decide. `on_image` hears how many of how many are known.

    RuntimeClasses of the manifests take the place of the fleet's, as applying them would.
    """
    lookups = await _look_up(manifests, sources, on_image)
    cluster = Cluster(fleet.nodes, (*fleet.classes, *manifests.classes), handlers)
    checker = _Checker(cluster, lookups, fleet.real)
    return Report(
        cluster,
        tuple(checker.check(workload) for workload in manifests.workloads),
        tuple(_changed_handlers(manifests, fleet)),
    )


def _changed_handlers(manifests: Manifests, fleet: Fleet) -> Iterable[str]:
    there = {known.name: known.handler for known in fleet.classes}
    for known in manifests.classes:
        if there.get(known.name, known.handler) != known.handler:
            yield (
                f"RuntimeClass {known.name} has handler {there[known.name]} now and the field is "
                f"immutable: delete the class before you apply {known.handler}"
            )


_Key = tuple[str, str, tuple[str, ...]]
"""An image is looked up once for each namespace and set of pull secrets it is pulled with."""


def _key(workload: Workload, text: str) -> _Key:
    secrets = workload.pod.pull_secrets
    return (text, workload.namespace if secrets else "", secrets)


async def _look_up(
    manifests: Manifests, sources: ImageSources, on_image: Callable[[int, int], None]
) -> dict[_Key, _Lookup]:
    keys = dict.fromkeys(_key(w, text) for w in manifests.workloads for text in w.pod.images)
    done = 0

    async def look_up(key: _Key) -> _Lookup:
        nonlocal done
        text, namespace, names = key
        secrets = [s for name in names if (s := manifests.secret(namespace, name))]
        lookup = await _look_up_one(text, secrets, sources)
        done += 1
        on_image(done, len(keys))
        return lookup

    found = await asyncio.gather(*(look_up(key) for key in keys))
    return dict(zip(keys, found, strict=True))


async def _look_up_one(
    text: str, secrets: Sequence[Mapping[str, object]], sources: ImageSources
) -> _Lookup:
    try:
        reference = parse_reference(text)
    except InvalidInput as error:
        return _Lookup(None, error, missing=True)
    try:
        return _Lookup(await sources.describe(text, secrets), None)
    except NotFound as error:
        return _Lookup(None, error, missing=True)
    except WinpodError as error:
        return _Lookup(guess_from_tag(reference), error)


class _Checker:
    """Checks workloads one after another; equal pods with equal images are decided once."""

    def __init__(
        self, cluster: Cluster, lookups: Mapping[_Key, _Lookup], nodes_are_real: bool
    ) -> None:
        self._cluster = cluster
        self._lookups = lookups
        self._nodes_are_real = nodes_are_real
        self._decided: dict[object, tuple[str, Placement, tuple[str, ...]]] = {}

    def check(self, workload: Workload) -> Checked:
        pod = workload.pod
        keys = tuple(_key(workload, text) for text in pod.images)
        lookups = {key[0]: self._lookups[key] for key in keys}
        images = {text: found.image for text, found in lookups.items() if found.image}
        if (pod, keys) not in self._decided:
            self._decided[pod, keys] = self._decide(pod, images)
        os, placement, advice = self._decided[pod, keys]
        if os == "linux":
            problems = self._strays(workload, placement)
            return Checked(workload, os, Status.NOT_WINDOWS, None, images, problems=problems)
        problems = (
            *_image_problems(workload, lookups),
            *_field_problems(workload, placement),
            *_intent_problems(workload, os),
        )
        status = placement.status
        if any(problem.severity == "error" for problem in problems):
            status = Status.CANNOT_RUN
        return Checked(workload, os, status, placement, images, advice, problems)

    def _decide(
        self, pod: Pod, images: Mapping[str, Image]
    ) -> tuple[str, Placement, tuple[str, ...]]:
        os = intended_os(pod, self._cluster.classes, images, self._cluster.handlers)
        placement = self._cluster.place(pod, images)
        return os, placement, advise(pod, placement, self._cluster, images)

    def _strays(self, workload: Workload, placement: Placement) -> tuple[Problem, ...]:
        """A Linux pod that nothing keeps off the Windows nodes."""
        windows = {n.name for n in self._cluster.nodes if n.os == "windows"}
        strays = [
            name
            for verdict in placement.verdicts
            if verdict.outcome is Outcome.FAILS
            for name in verdict.nodes
            if name in windows
        ]
        if not strays or not self._nodes_are_real:
            return ()
        return (
            Problem(
                "placement/linux-pod-on-windows",
                "warning",
                f"This Linux pod may be scheduled on {name_nodes(strays)}, where it cannot start.",
                workload.spec_path,
                f"Add nodeSelector {OS_LABEL}: linux, or taint the Windows nodes.",
            ),
        )


def name_nodes(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _image_problems(workload: Workload, lookups: Mapping[str, _Lookup]) -> Iterable[Problem]:
    for container in workload.pod.containers:
        lookup, text = lookups[container.image], container.image
        if (error := lookup.error) is None:
            continue
        if lookup.image is not None:
            builds = ", ".join(lookup.image.builds())
            sentence = f"by its tag, {text} is taken to be for {builds}: {error.sentence}"
            yield Problem("image/guessed", "warning", sentence, container.path, error.advice)
            continue
        severity: Severity = "error" if lookup.missing else "warning"
        rule = "image/not-found" if lookup.missing else "image/unknown"
        yield Problem(rule, severity, error.sentence, container.path, error.advice)


def _field_problems(workload: Workload, placement: Placement) -> Iterable[Problem]:
    builds = {v.kernel for v in placement.verdicts if v.kernel and v.outcome is Outcome.RUNS}
    for finding in lint_pod(workload.spec, builds=builds):
        yield Problem(
            finding.rule.id,
            finding.severity,
            finding.sentence,
            (*workload.spec_path, *finding.path),
            finding.rule.instead,
        )


def _intent_problems(workload: Workload, os: str) -> Iterable[Problem]:
    if not os:
        yield Problem(
            "placement/os-not-stated",
            "note",
            "Nothing says that this pod is for Windows, and its images do not settle it.",
            workload.spec_path,
            f"Set spec.os.name: windows and nodeSelector {OS_LABEL}: windows.",
        )

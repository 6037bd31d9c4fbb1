"""Engine of `winpod check`: every workload against every node, each image resolved once.

The decisions are made by `winpod.placement` and `winpod.windows.pod_api`; the only I/O here is
resolving images.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from winpod.field_reader import FieldPath, format_path
from winpod.images.lookup import ImageLookup, ImageLookupResult
from winpod.images.resolver import ImageResolver
from winpod.k8s.manifests import Manifests, Workload
from winpod.labels import OS_LABEL
from winpod.placement.advice import advise
from winpod.placement.evaluator import Cluster, default_nodes, intended_os
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.placement.verdicts import Outcome, Placement, Status, format_node_names
from winpod.windows.builds import supported_ltsc
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers
from winpod.windows.platforms import Image
from winpod.windows.pod_api.linter import Severity, lint_pod


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a workload that does not depend on a node, and the field it concerns."""

    rule: str
    severity: Severity
    message: str
    path: FieldPath
    instead: str = ""

    @property
    def field(self) -> str:
        return format_path(self.path)


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """The result of one workload. `placement` is None for a pod that is not for Windows."""

    workload: Workload
    os: str
    status: Status
    placement: Placement | None
    images: Mapping[str, Image]
    advice: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def has_warnings(self) -> bool:
        """Whether there is a warning, or a node whose outcome is unknown."""
        verdicts = self.placement.verdicts if self.placement else ()
        return any(problem.severity == "warning" for problem in self.problems) or any(
            verdict.outcome is Outcome.UNKNOWN for verdict in verdicts
        )


@dataclass(frozen=True, slots=True)
class Report:
    cluster: Cluster
    checked: tuple[WorkloadReport, ...]
    notes: tuple[str, ...] = ()

    def counts(self) -> Counter[Status]:
        return Counter(checked.status for checked in self.checked)

    def passes(self, *, strict: bool = False) -> bool:
        """Whether everything runs; if strict, also without warnings and nodes that may fail."""
        good = {Status.RUNS, Status.NOT_WINDOWS} | (set() if strict else {Status.MAY_FAIL})
        return all(c.status in good and not (strict and c.has_warnings()) for c in self.checked)


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """The nodes and RuntimeClasses to check against; `real` is False for the default nodes."""

    nodes: tuple[Node, ...]
    classes: tuple[RuntimeClass, ...] = ()
    real: bool = True


def default_target() -> CheckTarget:
    """One node of each supported LTSC release."""
    return CheckTarget(default_nodes(release.build for release in supported_ltsc()), real=False)


async def check(
    manifests: Manifests,
    target: CheckTarget,
    resolver: ImageResolver,
    *,
    on_image: Callable[[int, int], None],
    handlers: Handlers = BUILTIN_HANDLERS,
) -> Report:
    """Resolve the images, then evaluate. `on_image` is called with (resolved, total).

    RuntimeClasses of the manifests replace those of the target, as applying them would.
    """
    lookups = await _resolve_images(manifests, resolver, on_image)
    cluster = Cluster(target.nodes, (*target.classes, *manifests.classes), handlers)
    checker = _Checker(cluster, lookups, target.real)
    return Report(
        cluster,
        tuple(checker.check(workload) for workload in manifests.workloads),
        tuple(_changed_handlers(manifests, target)),
    )


def _changed_handlers(manifests: Manifests, target: CheckTarget) -> Iterable[str]:
    current = {existing.name: existing.handler for existing in target.classes}
    for new in manifests.classes:
        if current.get(new.name, new.handler) != new.handler:
            yield (
                f"RuntimeClass {new.name} has handler {current[new.name]} now and the field is "
                f"immutable: delete the class before you apply {new.handler}"
            )


_LookupKey = tuple[str, str, tuple[str, ...]]
"""Image, namespace and pull secrets: an image is resolved once for each set of credentials."""


def _lookup_key(workload: Workload, text: str) -> _LookupKey:
    secrets = workload.pod.pull_secrets
    return (text, workload.namespace if secrets else "", secrets)


async def _resolve_images(
    manifests: Manifests, resolver: ImageResolver, on_image: Callable[[int, int], None]
) -> dict[_LookupKey, ImageLookupResult]:
    keys = dict.fromkeys(_lookup_key(w, text) for w in manifests.workloads for text in w.pod.images)
    images = ImageLookup(resolver.describe)
    done = 0

    async def resolve(key: _LookupKey) -> ImageLookupResult:
        nonlocal done
        text, namespace, names = key
        secrets = [s for name in names if (s := manifests.secret(namespace, name))]
        lookup = await images.describe(text, secrets)
        done += 1
        on_image(done, len(keys))
        return lookup

    try:
        results = await asyncio.gather(*(resolve(key) for key in keys))
    finally:
        await images.close()
    return dict(zip(keys, results, strict=True))


class _Checker:
    """Checks workloads; equal pods with equal images are evaluated once."""

    def __init__(
        self,
        cluster: Cluster,
        lookups: Mapping[_LookupKey, ImageLookupResult],
        nodes_are_real: bool,
    ) -> None:
        self._cluster = cluster
        self._lookups = lookups
        self._nodes_are_real = nodes_are_real
        self._cache: dict[object, tuple[str, Placement, tuple[str, ...]]] = {}

    def check(self, workload: Workload) -> WorkloadReport:
        pod = workload.pod
        keys = tuple(_lookup_key(workload, text) for text in pod.images)
        lookups = {key[0]: self._lookups[key] for key in keys}
        images = {text: results.image for text, results in lookups.items() if results.image}
        if (pod, keys) not in self._cache:
            self._cache[pod, keys] = self._decide(pod, images)
        os, placement, advice = self._cache[pod, keys]
        if os == "linux":
            problems = self._linux_pods_on_windows(workload, placement)
            return WorkloadReport(workload, os, Status.NOT_WINDOWS, None, images, problems=problems)
        problems = (
            *_image_problems(workload, lookups),
            *_field_problems(workload, placement),
            *_intent_problems(workload, os),
        )
        status = placement.status
        if any(problem.severity == "error" for problem in problems):
            status = Status.CANNOT_RUN
        return WorkloadReport(workload, os, status, placement, images, advice, problems)

    def _decide(
        self, pod: Pod, images: Mapping[str, Image]
    ) -> tuple[str, Placement, tuple[str, ...]]:
        os = intended_os(pod, self._cluster.classes, images, self._cluster.handlers)
        placement = self._cluster.place(pod, images)
        return os, placement, advise(pod, placement, self._cluster, images)

    def _linux_pods_on_windows(
        self, workload: Workload, placement: Placement
    ) -> tuple[Problem, ...]:
        """Warn about a Linux pod that may be scheduled on Windows nodes."""
        windows = {n.name for n in self._cluster.nodes if n.os == "windows"}
        affected = [
            name
            for verdict in placement.verdicts
            if verdict.outcome is Outcome.FAILS
            for name in verdict.nodes
            if name in windows
        ]
        if not affected or not self._nodes_are_real:
            return ()
        return (
            Problem(
                "placement/linux-pod-on-windows",
                "warning",
                f"This Linux pod may be scheduled on {format_node_names(affected)}, "
                "where it cannot start.",
                workload.spec_path,
                f"Add nodeSelector {OS_LABEL}: linux, or taint the Windows nodes.",
            ),
        )


def _image_problems(
    workload: Workload, lookups: Mapping[str, ImageLookupResult]
) -> Iterable[Problem]:
    for container in workload.pod.containers:
        lookup, text = lookups[container.image], container.image
        if lookup.is_certain:
            continue
        if lookup.image is not None:
            builds = ", ".join(lookup.image.builds())
            message = f"{text} is assumed to be for {builds}, from its tag: {lookup.problem}"
            yield Problem("image/guessed", "warning", message, container.path, lookup.hint)
            continue
        severity: Severity = "error" if lookup.is_missing else "warning"
        rule = "image/not-found" if lookup.is_missing else "image/unknown"
        yield Problem(rule, severity, lookup.problem, container.path, lookup.hint)


def _field_problems(workload: Workload, placement: Placement) -> Iterable[Problem]:
    builds = {v.kernel for v in placement.verdicts if v.kernel and v.outcome is Outcome.RUNS}
    for finding in lint_pod(workload.spec, builds=builds):
        yield Problem(
            finding.rule.id,
            finding.severity,
            finding.message,
            (*workload.spec_path, *finding.path),
            finding.rule.alternative,
        )


def _intent_problems(workload: Workload, os: str) -> Iterable[Problem]:
    if not os:
        yield Problem(
            "placement/os-not-stated",
            "note",
            "Neither the pod nor its images state that it is for Windows.",
            workload.spec_path,
            f"Set spec.os.name: windows and nodeSelector {OS_LABEL}: windows.",
        )

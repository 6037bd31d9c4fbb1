"""Admission decisions on pods and workloads: patches, warnings or a rejection. Pure.

Whether a pod runs is decided by `winpod.placement`; this module decides what to do about it.
Patches only add fields and never change what the user wrote. A pod is rejected only if it is
certain that no node can ever run it; anything unknown or temporary causes a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from winpod.errors import InvalidInput
from winpod.field_reader import Field, FieldPath, format_path
from winpod.images.lookup import ImageLookupResult
from winpod.k8s.manifests import template_path
from winpod.labels import CONFIG_MIRROR_ANNOTATION, UNCHECKED_ANNOTATION
from winpod.operator.admission.class_selection import (
    ClassSelection,
    SelectionContext,
    is_pending_only,
    may_be_provisioned,
    select_class,
    without_runtime_class,
)
from winpod.operator.admission.conflicts import find_conflict
from winpod.operator.cached_objects import exceeded_size_limit
from winpod.placement.advice import advise
from winpod.placement.evaluator import Cluster, intended_os
from winpod.placement.model import Pod, Toleration
from winpod.placement.predicates import is_excluded_by_pod
from winpod.placement.start_checks import ImagesByReference
from winpod.placement.verdicts import Outcome, Placement, Stage, Status, Verdict, format_node_names
from winpod.windows.pod_api.linter import Behaviour, lint_pod

Patch = Mapping[str, Any]


def patches_for(
    obj: Mapping[str, Any], choice: ClassSelection, problems: Sequence[str]
) -> tuple[Patch, ...]:
    """Return the JSON Patch; `problems` are why images could not be resolved."""
    spec, metadata = obj["spec"], obj.get("metadata") or {}
    return (
        *((_add("/spec/runtimeClassName", choice.runtime_class),) if choice.runtime_class else ()),
        *_add_members(spec, "/spec/nodeSelector", dict(choice.node_selector)),
        *_add_tolerations(spec, choice.tolerations),
        *_add_members(
            metadata,
            "/metadata/annotations",
            {UNCHECKED_ANNOTATION: " ".join(problems)} if problems else {},
        ),
    )


def _add(path: str, value: Any) -> Patch:
    return {"op": "add", "path": path, "value": value}


def _add_members(
    parent: Mapping[str, Any], path: str, members: Mapping[str, str]
) -> Iterator[Patch]:
    if not parent.get(path.rpartition("/")[2]):
        if members:
            yield _add(path, dict(members))
        return
    for key, value in members.items():
        yield _add(f"{path}/{key.replace('~', '~0').replace('/', '~1')}", value)


def _add_tolerations(spec: Mapping[str, Any], tolerations: Sequence[Toleration]) -> Iterator[Patch]:
    added = [toleration.to_object() for toleration in tolerations]
    if spec.get("tolerations"):
        yield from (_add("/spec/tolerations/-", toleration) for toleration in added)
    elif added:
        yield _add("/spec/tolerations", added)


_MAX_VERDICTS = 4


def describe_placement(placement: Placement, cluster: Cluster) -> str:
    """Describe why the pod does not run, the nodes it selects and that are closest first."""
    if placement.refusals:
        return _with_period("; ".join(reason.message for reason in placement.refusals))
    blocking = [v for v in placement.verdicts if v.outcome is not Outcome.RUNS]
    if not blocking:
        return "the cluster has no nodes."
    first = {verdict.nodes[0] for verdict in blocking}
    windows = {n.name for n in cluster.nodes if n.name in first and n.os == "windows"}
    ordered = sorted(
        blocking,
        key=lambda v: (is_excluded_by_pod(v.reasons), v.nodes[0] not in windows, len(v.reasons)),
    )
    described = "; ".join(_describe(verdict) for verdict in ordered[:_MAX_VERDICTS])
    others = sum(len(verdict.nodes) for verdict in ordered[_MAX_VERDICTS:])
    return _with_period(f"{described}; and {others} other nodes" if others else described)


def describe_misplacement(placement: Placement) -> str:
    """Describe the nodes that the scheduler may choose but where the pod cannot start."""
    failing = [verdict for verdict in placement.verdicts if verdict.outcome is Outcome.FAILS]
    described = "; ".join(_describe(verdict) for verdict in failing[:_MAX_VERDICTS])
    return _with_period(f"it may be scheduled where it cannot start: {described}")


def _describe(verdict: Verdict) -> str:
    """Describe a verdict; scheduling reasons are omitted if the pod could not start anyway."""
    start_reasons = [reason for reason in verdict.reasons if reason.stage is Stage.START]
    reasons = ", ".join(
        dict.fromkeys(reason.message for reason in start_reasons or verdict.reasons)
    )
    return f"{format_node_names(verdict.nodes)}: {reasons}"


def _with_period(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


_MAX_WARNINGS = 10
ImageLookups = Mapping[str, ImageLookupResult]
"""Lookup results by image reference."""


class ReviewOutcome(StrEnum):
    NOT_WINDOWS = "not-windows"
    RUNS = "runs"
    WAITS = "waits"
    UNKNOWN = "unknown"
    MAY_FAIL = "may-fail"
    CANNOT_RUN = "cannot-run"
    CONFLICTS = "contradicts"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class ReviewDecision:
    """The decision; a pod with a `refusal` is rejected."""

    outcome: ReviewOutcome = ReviewOutcome.NOT_WINDOWS
    warnings: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """The outcome and its message; `is_fatal` if no node can ever run the pod."""

    outcome: ReviewOutcome
    message: str = ""
    is_fatal: bool = False


def read_pod(obj: Mapping[str, Any]) -> Pod | None:
    """Decode a pod; None for mirror pods, invalid pods and oversized pods.

    Invalid annotations are ignored, as nodes do.
    """
    try:
        if Field(obj).get(
            "metadata", "annotations", CONFIG_MIRROR_ANNOTATION
        ) or exceeded_size_limit(obj):
            return None
    except InvalidInput:
        return None
    for template in (obj, {"spec": obj.get("spec")}):
        try:
            return Pod.from_template(template)
        except InvalidInput:
            continue
    return None


def read_template(obj: Mapping[str, Any]) -> tuple[Mapping[str, Any], FieldPath, Pod] | None:
    """Return a workload's pod template, its path and its pod; None if there is none."""
    try:
        path = template_path(Field(obj).get("apiVersion").text(), Field(obj).get("kind").text())
        if not path:
            return None
        template = Field(obj).get(*map(str, path))
        if exceeded_size_limit(template.value):
            return None
        every_node = obj.get("kind") == "DaemonSet"
        pod = Pod.from_template(template.value, path, every_node=every_node)
    except InvalidInput:
        return None
    return template.value, path, pod


def stated_os(pod: Pod, cluster: Cluster) -> str:
    """Return the OS stated in the pod's spec; empty if it depends on its images."""
    return intended_os(pod, cluster.classes, {}, cluster.handlers)


@dataclass(frozen=True, slots=True)
class _ReviewedPod:
    """A pod as the user wrote it, and its images; `images` includes guesses.

    `caveats` are why stale results could not be refreshed.
    """

    pod: Pod
    os: str
    certain: ImagesByReference
    images: ImagesByReference
    problems: tuple[str, ...]
    caveats: tuple[str, ...]


def _reviewed_pod(pod: Pod, cluster: Cluster, lookups: ImageLookups) -> _ReviewedPod:
    pod = without_runtime_class(pod, cluster.classes)
    certain = {text: f.image for text, f in lookups.items() if f.image and f.is_certain}
    return _ReviewedPod(
        pod,
        intended_os(pod, cluster.classes, certain, cluster.handlers),
        certain,
        {text: f.image for text, f in lookups.items() if f.image},
        tuple(dict.fromkeys(f.problem for f in lookups.values() if f.problem)),
        tuple(dict.fromkeys(f.caveat for f in lookups.values() if f.caveat)),
    )


def mutate_pod(
    obj: Mapping[str, Any], context: SelectionContext, lookups: ImageLookups
) -> tuple[Patch, ...]:
    """Return the JSON Patch for what the user left open; `review_pod` validates the result."""
    pod = read_pod(obj)
    reviewed = _reviewed_pod(pod, context.cluster, lookups) if pod else None
    if reviewed is None or reviewed.os != "windows":
        return ()
    choice = select_class(reviewed.pod, context, reviewed.images)
    return patches_for(obj, choice, reviewed.problems)


def review_pod(
    obj: Mapping[str, Any], context: SelectionContext, lookups: ImageLookups
) -> ReviewDecision:
    """Review a Pod object that is to be created."""
    if excess := exceeded_size_limit(obj):
        message = _unchecked_message((excess,))
        if context.settings.admission.fail_open:
            return ReviewDecision(ReviewOutcome.UNKNOWN, warnings=(message,))
        return ReviewDecision(ReviewOutcome.UNKNOWN, refusal=message)
    pod = read_pod(obj)
    if pod is None:
        return ReviewDecision()
    return _decide(obj, ("spec",), pod, context, lookups)


def review_template(
    obj: Mapping[str, Any], context: SelectionContext, lookups: ImageLookups
) -> ReviewDecision:
    """Review a workload's pods. Only causes warnings; workloads are never rejected."""
    workload = read_template(obj)
    if workload is None:
        return ReviewDecision()
    template, path, pod = workload
    decision = _decide(template, (*path, "spec"), pod, context, lookups)
    rejection = f"pods of this {obj['kind']} will be rejected: {decision.refusal}"
    warnings = (rejection, *decision.warnings) if decision.refusal else decision.warnings
    return replace(decision, warnings=warnings, refusal="")


def _decide(
    obj: Mapping[str, Any],
    spec_path: FieldPath,
    pod: Pod,
    context: SelectionContext,
    lookups: ImageLookups,
) -> ReviewDecision:
    cluster, admission = context.cluster, context.settings.admission
    reviewed = _reviewed_pod(pod, cluster, lookups)
    problems = reviewed.problems
    if conflict := find_conflict(reviewed.pod, cluster, reviewed.certain):
        return ReviewDecision(ReviewOutcome.CONFLICTS, refusal=conflict)
    if message := context.retiring.get(pod.runtime_class):
        return ReviewDecision(
            ReviewOutcome.RETIRED, refusal=_retired_message(pod.runtime_class, message)
        )
    if reviewed.os != "windows":
        return ReviewDecision(
            warnings=tuple(f"image not checked: {problem}" for problem in problems)
        )
    if problems and not admission.fail_open:
        return ReviewDecision(ReviewOutcome.UNKNOWN, refusal=_unchecked_message(problems))
    choice = select_class(reviewed.pod, context, reviewed.images)
    answer = review_selection(choice, cluster, reviewed.images, context.retiring)
    may_refuse = admission.refuse_unplaceable or answer.outcome is ReviewOutcome.RETIRED
    if answer.is_fatal and may_refuse and not problems:
        return ReviewDecision(answer.outcome, refusal=answer.message)
    reports = answer.message and not (problems and answer.outcome is ReviewOutcome.UNKNOWN)
    warnings = (
        *((_unchecked_message(problems),) if problems else ()),
        *(f"its images could not be refreshed: {caveat}" for caveat in reviewed.caveats),
        *((answer.message,) if reports else ()),
        *_field_warnings(obj, spec_path, choice.placement),
    )
    return ReviewDecision(
        ReviewOutcome.UNKNOWN if problems else answer.outcome, warnings[:_MAX_WARNINGS]
    )


def _retired_message(name: str, message: str) -> str:
    return f"RuntimeClass {name} accepts no new pods: {message}"


def _unchecked_message(problems: Iterable[str]) -> str:
    return f"whether this pod fits a node could not be checked: {' '.join(problems)}"


def review_selection(
    choice: ClassSelection, cluster: Cluster, images: ImagesByReference, retiring: Mapping[str, str]
) -> ReviewAnswer:
    pod, placement = choice.pod, choice.placement
    if choice.retiring:
        message = _retired_message(choice.retiring, retiring[choice.retiring])
        return ReviewAnswer(ReviewOutcome.RETIRED, message, is_fatal=True)
    if placement.status is Status.RUNS:
        return ReviewAnswer(ReviewOutcome.RUNS)
    reasons = describe_placement(placement, cluster)
    if placement.refusals:  # not fatal: the API server may have a class that is not cached yet
        return ReviewAnswer(ReviewOutcome.UNKNOWN, f"it may not be admitted: {reasons}")
    match placement.status:
        case Status.UNKNOWN:
            return ReviewAnswer(ReviewOutcome.UNKNOWN, f"it may not run: {reasons}")
        case Status.WAITS:
            return ReviewAnswer(ReviewOutcome.WAITS, f"it must wait: {reasons}")
        case Status.MAY_FAIL:
            advice = _advice(pod, placement, cluster, images)
            return ReviewAnswer(
                ReviewOutcome.MAY_FAIL, f"{describe_misplacement(placement)}{advice}"
            )
    if may_be_provisioned(pod, cluster, images):
        return ReviewAnswer(
            ReviewOutcome.WAITS, f"it must wait for a node that does not exist yet: {reasons}"
        )
    advice = _advice(pod, placement, cluster, images)
    if is_pending_only(placement):
        return ReviewAnswer(ReviewOutcome.WAITS, f"no node accepts it now: {reasons}{advice}")
    message = f"no node can run this pod: {reasons}{advice}"
    return ReviewAnswer(ReviewOutcome.CANNOT_RUN, message, is_fatal=True)


def _advice(pod: Pod, placement: Placement, cluster: Cluster, images: ImagesByReference) -> str:
    changes = advise(pod, placement, cluster, images)
    return f" To run it: {'; '.join(changes)}." if changes else ""


def _field_warnings(
    obj: Mapping[str, Any], spec_path: FieldPath, placement: Placement
) -> Iterable[str]:
    """Warn about fields that the API server accepts but Windows ignores or fails on."""
    builds = {v.kernel for v in placement.verdicts if v.kernel and v.outcome is Outcome.RUNS}
    for finding in lint_pod(obj["spec"], builds=builds):
        if finding.behaviour in (Behaviour.IGNORED, Behaviour.FAILS):
            yield f"{format_path(spec_path)}.{finding.message}"

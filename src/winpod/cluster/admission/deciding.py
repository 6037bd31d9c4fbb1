"""What becomes of a pod that somebody wants to create: what is added, what is said, or a refusal.

Pure. Whether a pod runs is `windows.placement`'s to say; here is decided what to do about it.
Nothing that the author wrote is changed. A pod is refused only where no node can ever run it, on
facts: what is not known, or may change by itself, gives a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from winpod.cluster.admission.choosing import (
    Choice,
    Circumstances,
    as_written,
    choose,
    may_come,
    only_has_to_wait,
)
from winpod.cluster.admission.contradictions import find_contradiction
from winpod.cluster.admission.looking_up import Found
from winpod.cluster.admission.patches import Patch, patches_for
from winpod.cluster.admission.reasons import describe_placement, describe_stray
from winpod.cluster.limits import too_much
from winpod.node.manifests import template_path
from winpod.windows.advice import advise
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Pod
from winpod.windows.placement import Cluster, intended_os
from winpod.windows.pod_api import Behaviour, lint_pod
from winpod.windows.reading import At, Path, show_path
from winpod.windows.starting import Images
from winpod.windows.verdicts import Outcome, Placement, Status

_MIRROR = "kubernetes.io/config.mirror"
_MOST_WARNINGS = 10
Looked = Mapping[str, Found]
"""What each image of a pod was found to be."""


class Fate(StrEnum):
    NOT_WINDOWS = "not-windows"
    RUNS = "runs"
    WAITS = "waits"
    UNKNOWN = "unknown"
    MAY_FAIL = "may-fail"
    CANNOT_RUN = "cannot-run"
    CONTRADICTS = "contradicts"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Decision:
    """A pod with a `refusal` is not let in."""

    fate: Fate = Fate.NOT_WINDOWS
    warnings: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be said of a pod; `is_fatal` where it is a refusal."""

    fate: Fate
    sentence: str = ""
    is_fatal: bool = False


def read_pod(obj: Mapping[str, Any]) -> Pod | None:
    """None for what is not ours to judge: a node's own pod, or one that the API server refuses.

    Nor for one that says too much. An annotation that cannot be read is as if it were not there, as
    it is to nodes.
    """
    try:
        if At(obj).get("metadata", "annotations", _MIRROR) or too_much(obj):
            return None
    except InvalidInput:
        return None
    for told in (obj, {"spec": obj.get("spec")}):
        try:
            return Pod.from_template(told)
        except InvalidInput:
            continue
    return None


def read_template(obj: Mapping[str, Any]) -> tuple[Mapping[str, Any], Path, Pod] | None:
    """The template of a workload, where it stands, and its pod; None where there is none."""
    try:
        path = template_path(At(obj).get("apiVersion").text(), At(obj).get("kind").text())
        if not path:
            return None
        template = At(obj).get(*map(str, path))
        if too_much(template.value):
            return None
        every_node = obj.get("kind") == "DaemonSet"
        pod = Pod.from_template(template.value, path, every_node=every_node)
    except InvalidInput:
        return None
    return template.value, path, pod


def stated_os(pod: Pod, cluster: Cluster) -> str:
    """What its author says a pod is for; empty where only its images can tell."""
    return intended_os(pod, cluster.classes, {}, cluster.handlers)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pod as its author wrote it, and what is known of its images; `images` has guesses too.

    `doubts` are why some are known from before only.
    """

    pod: Pod
    os: str
    certain: Images
    images: Images
    problems: tuple[str, ...]
    doubts: tuple[str, ...]


def _read_question(pod: Pod, cluster: Cluster, looked: Looked) -> _Asked:
    pod = as_written(pod, cluster.classes)
    certain = {text: f.image for text, f in looked.items() if f.image and f.is_certain}
    return _Asked(
        pod,
        intended_os(pod, cluster.classes, certain, cluster.handlers),
        certain,
        {text: f.image for text, f in looked.items() if f.image},
        tuple(dict.fromkeys(f.problem for f in looked.values() if f.problem)),
        tuple(dict.fromkeys(f.doubt for f in looked.values() if f.doubt)),
    )


def fill_in(obj: Mapping[str, Any], met: Circumstances, looked: Looked) -> tuple[Patch, ...]:
    """What the author of a Pod object left open, as JSON Patch; `decide` is about the result."""
    pod = read_pod(obj)
    asked = _read_question(pod, met.cluster, looked) if pod else None
    if asked is None or asked.os != "windows":
        return ()
    choice = choose(asked.pod, met, asked.images)
    return patches_for(obj, choice, asked.problems)


def decide(obj: Mapping[str, Any], met: Circumstances, looked: Looked) -> Decision:
    """About a Pod object that is to be created."""
    if excess := too_much(obj):
        told = _unchecked((excess,))
        is_let_in = met.settings.admission.fail_open
        return Decision(Fate.UNKNOWN, *(((told,), "") if is_let_in else ((), told)))
    pod = read_pod(obj)
    if pod is None:
        return Decision()
    return _decide(obj, ("spec",), pod, met, looked)


def decide_template(obj: Mapping[str, Any], met: Circumstances, looked: Looked) -> Decision:
    """About a workload: what its pods would meet, as warnings. It is never refused."""
    found = read_template(obj)
    if found is None:
        return Decision()
    template, path, pod = found
    decision = _decide(template, (*path, "spec"), pod, met, looked)
    refused = f"pods of this {obj['kind']} will be refused: {decision.refusal}"
    told = (refused, *decision.warnings) if decision.refusal else decision.warnings
    return replace(decision, warnings=told, refusal="")


def _decide(
    obj: Mapping[str, Any], spec_path: Path, pod: Pod, met: Circumstances, looked: Looked
) -> Decision:
    cluster, admission = met.cluster, met.settings.admission
    asked = _read_question(pod, cluster, looked)
    problems = asked.problems
    if contradiction := find_contradiction(asked.pod, cluster, asked.certain):
        return Decision(Fate.CONTRADICTS, refusal=contradiction)
    if sentence := met.retiring.get(pod.runtime_class):
        return Decision(Fate.RETIRED, refusal=_retired(pod.runtime_class, sentence))
    if asked.os != "windows":
        return Decision(warnings=tuple(f"this was not looked at: {one}" for one in problems))
    if problems and not admission.fail_open:
        return Decision(Fate.UNKNOWN, refusal=_unchecked(problems))
    choice = choose(asked.pod, met, asked.images)
    answer = judge(choice, cluster, asked.images, met.retiring)
    may_refuse = admission.refuse_unplaceable or answer.fate is Fate.RETIRED
    if answer.is_fatal and may_refuse and not problems:
        return Decision(answer.fate, refusal=answer.sentence)
    is_told = answer.sentence and not (problems and answer.fate is Fate.UNKNOWN)
    warnings = (
        *((_unchecked(problems),) if problems else ()),
        *(f"its images are known from before only: {doubt}" for doubt in asked.doubts),
        *((answer.sentence,) if is_told else ()),
        *_field_warnings(obj, spec_path, choice.placement),
    )
    return Decision(Fate.UNKNOWN if problems else answer.fate, warnings[:_MOST_WARNINGS])


def _retired(name: str, sentence: str) -> str:
    return f"RuntimeClass {name} takes no new pods: {sentence}"


def _unchecked(problems: Iterable[str]) -> str:
    return f"whether this pod fits a node could not be checked: {' '.join(problems)}"


def judge(choice: Choice, cluster: Cluster, images: Images, retiring: Mapping[str, str]) -> Answer:
    pod, placement = choice.pod, choice.placement
    if choice.retiring:
        sentence = _retired(choice.retiring, retiring[choice.retiring])
        return Answer(Fate.RETIRED, sentence, is_fatal=True)
    if placement.status is Status.RUNS:
        return Answer(Fate.RUNS)
    why_not = describe_placement(placement, cluster)
    if placement.refusals:  # the API server's to say, which may know a class that is not seen yet
        return Answer(Fate.UNKNOWN, f"it is not sure to be admitted: {why_not}")
    match placement.status:
        case Status.UNKNOWN:
            return Answer(Fate.UNKNOWN, f"it is not sure to run: {why_not}")
        case Status.WAITS:
            return Answer(Fate.WAITS, f"it has to wait: {why_not}")
        case Status.MAY_FAIL:
            advice = _advice(pod, placement, cluster, images)
            return Answer(Fate.MAY_FAIL, f"{describe_stray(placement)}{advice}")
    if may_come(pod, cluster, images):
        return Answer(Fate.WAITS, f"it has to wait for a node that is not there: {why_not}")
    advice = _advice(pod, placement, cluster, images)
    if only_has_to_wait(placement):
        return Answer(Fate.WAITS, f"no node takes it now: {why_not}{advice}")
    sentence = f"no node can run this pod: {why_not}{advice}"
    return Answer(Fate.CANNOT_RUN, sentence, is_fatal=True)


def _advice(pod: Pod, placement: Placement, cluster: Cluster, images: Images) -> str:
    changes = advise(pod, placement, cluster, images)
    return f" To run it: {'; '.join(changes)}." if changes else ""


def _field_warnings(obj: Mapping[str, Any], spec_path: Path, placement: Placement) -> Iterable[str]:
    """Fields that the API server lets through and Windows does not know."""
    builds = {v.kernel for v in placement.verdicts if v.kernel and v.outcome is Outcome.RUNS}
    for finding in lint_pod(obj["spec"], builds=builds):
        if finding.behaviour in (Behaviour.IGNORED, Behaviour.FAILS):
            yield f"{show_path(spec_path)}.{finding.sentence}"

"""An upgrade told to people: what was asked, who moves and who cannot, what was done, what is left.

One form for a plan, an upgrade under way and one that is over, as Markdown that reads as plain text
too, and as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from winpod.cluster.upgrade.asked import Way, read_asked
from winpod.cluster.upgrade.moves import Fate
from winpod.cluster.upgrade.progress import BLOCKED, DONE, RUNNING, UNDOING, UNDONE, counts
from winpod.cluster.upgrade.resource import Status, WorkloadRecord
from winpod.windows.builds import Build

_FATES = {
    Fate.NEW_IMAGE: "Move with the image for the new Windows",
    Fate.HYPERVISOR: "Need hypervisor isolation",
    Fate.CANNOT: "Cannot move",
}
_PHASES = {
    "": "This is a plan. Nothing was changed.",
    RUNNING: "The upgrade is under way.",
    BLOCKED: "The upgrade has stopped and waits for people.",
    UNDOING: "The upgrade is being undone.",
    UNDONE: "The upgrade was undone.",
    DONE: "The upgrade is complete.",
}
_WAYS = {
    Way.NEW_CLASS: "a new RuntimeClass beside the old one, which takes no new pods",
    Way.SAME_CLASS: "the same RuntimeClass, made anew for guests of the old Windows on new nodes",
    Way.NODE_SELECTOR: "the same RuntimeClasses, with the node selector of the new nodes",
}
_MOST_STEPS = 40


def to_markdown(name: str, spec: Mapping[str, Any], status: Status) -> str:
    return "\n".join(_lines(name, spec, status)) + "\n"


def to_json(name: str, spec: Mapping[str, Any], status: Status) -> dict[str, Any]:
    """The resource's own form, with the counts that people ask for first."""
    return {
        "name": name,
        "spec": dict(spec),
        "summary": {str(fate): count for fate, count in counts(status.workloads).items()},
        "staying": [str(workload) for workload in status.workloads if workload.stays],
        "status": status.to_dict(),
    }


def _lines(name: str, spec: Mapping[str, Any], status: Status) -> Iterator[str]:
    asked = read_asked(spec)
    yield f"# From {_title(asked.old)} to {_title(asked.new)}"
    yield ""
    yield f"{_PHASES.get(status.phase, status.phase)} ({name})"
    if status.message and status.phase != DONE:
        yield f"{_sentence(status.message)}"
    if times := _times(status):
        yield times
    yield ""
    yield from _summary(status)
    yield f"- Way: {_WAYS[asked.way]}."
    for note in status.notes:
        yield f"- Note: {_sentence(note)}"
    yield ""
    for fate, title in _FATES.items():
        yield from _workloads(title, [w for w in status.workloads if w.fate == fate])
    yield from _to_do(status)
    yield from _nodes(status)
    yield from _steps(status)


def _title(build: Build) -> str:
    return build.release.name if build.release else str(build)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _times(status: Status) -> str:
    if not status.started_at:
        return ""
    if not status.finished_at:
        return f"Begun {status.started_at}."
    began, ended = map(datetime.fromisoformat, (status.started_at, status.finished_at))
    minutes, seconds = divmod(int((ended - began).total_seconds()), 60)
    return f"Begun {status.started_at}, ended {status.finished_at}: {minutes} min {seconds} s."


def _summary(status: Status) -> Iterator[str]:
    old = [node for node in status.nodes if node.role == "old"]
    new = [node for node in status.nodes if node.role == "new"]
    pods = sum(workload.pods for workload in status.workloads)
    yield (
        f"- {_count(len(status.workloads), 'workload')} with {_count(pods, 'pod')}, on "
        f"{_count(len(old), 'old node')}; {_count(len(new), 'new node')} to move to."
    )
    for fate, count in counts(status.workloads).items():
        if count:
            yield f"- {_FATES[fate]}: {count}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _workloads(title: str, workloads: list[WorkloadRecord]) -> Iterator[str]:
    if not workloads:
        return
    yield f"## {title}"
    yield ""
    for workload in sorted(workloads, key=str):
        change = f" Changes to {workload.change}." if workload.change else ""
        stays = " It stays where it is." if workload.stays else ""
        why = " ".join(_sentence(reason) for reason in workload.reasons)
        told = f"{_count(workload.pods, 'pod')}.{change}{stays} {why}".rstrip()
        yield f"- **{workload}**: {told}"
    yield ""


def _to_do(status: Status) -> Iterator[str]:
    """What only people can do."""
    staying = [str(workload) for workload in status.workloads if workload.stays]
    failed = [step for step in status.steps if step.state == "Failed"]
    removed = [node.name for node in status.nodes if node.state == "removed"]
    if not (staying or failed or removed):
        return
    yield "## Left to people"
    yield ""
    for name in staying:
        yield f"- {name} keeps its old nodes: give it what is said above, or do without it."
    for step in failed:
        yield f"- {step.do} {step.target}: {_sentence(step.message)}"
    if removed:
        yield f"- Switch off {', '.join(removed)}: a node whose agent goes on registers again."
    yield ""


def _nodes(status: Status) -> Iterator[str]:
    if not status.nodes:
        return
    yield "## Nodes"
    yield ""
    yield "| node | Windows | state |"
    yield "|---|---|---|"
    for node in status.nodes:
        yield f"| {node.name} | {node.role} | {node.state} |"
    yield ""


def _steps(status: Status) -> Iterator[str]:
    if not status.steps:
        return
    yield "## Steps"
    yield ""
    yield "| step | what | state | |"
    yield "|---|---|---|---|"
    shown = status.steps[:_MOST_STEPS]
    for step in shown:
        yield f"| {step.do} | {step.target} | {step.state} | {step.message} |"
    if len(status.steps) > len(shown):
        yield f"| | {len(status.steps) - len(shown)} more | | |"
    yield ""

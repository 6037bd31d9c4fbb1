"""Reports of an upgrade: the request, how workloads move, what was done and what is left.

Plans, upgrades in progress and completed ones have the same format, in Markdown or JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from winpod.operator.upgrade.moves import MoveOutcome
from winpod.operator.upgrade.progress import BLOCKED, DONE, RUNNING, UNDOING, UNDONE, counts
from winpod.operator.upgrade.resource import UpgradeStatus, WorkloadRecord
from winpod.operator.upgrade.spec import UpgradeStrategy, read_spec
from winpod.windows.builds import Build

_OUTCOMES = {
    MoveOutcome.NEW_IMAGE: "Move with the image for the new Windows",
    MoveOutcome.HYPERVISOR: "Need hypervisor isolation",
    MoveOutcome.CANNOT: "Cannot move",
}
_PHASES = {
    "": "This is a plan. Nothing was changed.",
    RUNNING: "The upgrade is in progress.",
    BLOCKED: "The upgrade is blocked and needs attention.",
    UNDOING: "The upgrade is being undone.",
    UNDONE: "The upgrade was undone.",
    DONE: "The upgrade is complete.",
}
_STRATEGIES = {
    UpgradeStrategy.NEW_CLASS: "a new RuntimeClass beside the old one, which accepts no new pods",
    UpgradeStrategy.SAME_CLASS: (
        "the same RuntimeClass, recreated for guests of the old Windows on new nodes"
    ),
    UpgradeStrategy.NODE_SELECTOR: (
        "the same RuntimeClasses, with the node selector of the new nodes"
    ),
}
_MAX_STEPS = 40


def to_markdown(name: str, spec: Mapping[str, Any], status: UpgradeStatus) -> str:
    return "\n".join(_lines(name, spec, status)) + "\n"


def to_json(name: str, spec: Mapping[str, Any], status: UpgradeStatus) -> dict[str, Any]:
    """Return the resource with a summary."""
    return {
        "name": name,
        "spec": dict(spec),
        "summary": {str(outcome): count for outcome, count in counts(status.workloads).items()},
        "staying": [str(workload) for workload in status.workloads if workload.stays],
        "status": status.to_dict(),
    }


def _lines(name: str, spec: Mapping[str, Any], status: UpgradeStatus) -> Iterator[str]:
    upgrade_spec = read_spec(spec)
    yield f"# From {_title(upgrade_spec.old)} to {_title(upgrade_spec.new)}"
    yield ""
    yield f"{_PHASES.get(status.phase, status.phase)} ({name})"
    if status.message and status.phase != DONE:
        yield f"{_with_period(status.message)}"
    if times := _times(status):
        yield times
    yield ""
    yield from _summary(status)
    yield f"- Strategy: {_STRATEGIES[upgrade_spec.strategy]}."
    for note in status.notes:
        yield f"- Note: {_with_period(note)}"
    yield ""
    for outcome, title in _OUTCOMES.items():
        yield from _workloads(title, [w for w in status.workloads if w.fate == outcome])
    yield from _to_do(status)
    yield from _nodes(status)
    yield from _steps(status)


def _title(build: Build) -> str:
    return build.release.name if build.release else str(build)


def _with_period(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _times(status: UpgradeStatus) -> str:
    if not status.started_at:
        return ""
    if not status.finished_at:
        return f"Started {status.started_at}."
    started, ended = map(datetime.fromisoformat, (status.started_at, status.finished_at))
    minutes, seconds = divmod(int((ended - started).total_seconds()), 60)
    return f"Started {status.started_at}, finished {status.finished_at}: {minutes} min {seconds} s."


def _summary(status: UpgradeStatus) -> Iterator[str]:
    old = [node for node in status.nodes if node.role == "old"]
    new = [node for node in status.nodes if node.role == "new"]
    pods = sum(workload.pods for workload in status.workloads)
    yield (
        f"- {_count(len(status.workloads), 'workload')} with {_count(pods, 'pod')}, on "
        f"{_count(len(old), 'old node')}; {_count(len(new), 'new node')} to move to."
    )
    for outcome, count in counts(status.workloads).items():
        if count:
            yield f"- {_OUTCOMES[outcome]}: {count}."


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
        reasons = " ".join(_with_period(reason) for reason in workload.reasons)
        description = f"{_count(workload.pods, 'pod')}.{change}{stays} {reasons}".rstrip()
        yield f"- **{workload}**: {description}"
    yield ""


def _to_do(status: UpgradeStatus) -> Iterator[str]:
    """List what has to be done manually."""
    staying = [str(workload) for workload in status.workloads if workload.stays]
    failed = [step for step in status.steps if step.state == "Failed"]
    removed = [node.name for node in status.nodes if node.state == "removed"]
    if not (staying or failed or removed):
        return
    yield "## Left to do"
    yield ""
    for name in staying:
        yield f"- {name} stays on its old nodes: resolve the reasons above, or remove it."
    for step in failed:
        yield f"- {step.do} {step.target}: {_with_period(step.message)}"
    if removed:
        yield f"- Shut down {', '.join(removed)}: a node whose kubelet runs registers again."
    yield ""


def _nodes(status: UpgradeStatus) -> Iterator[str]:
    if not status.nodes:
        return
    yield "## Nodes"
    yield ""
    yield "| node | Windows | state |"
    yield "|---|---|---|"
    for node in status.nodes:
        yield f"| {node.name} | {node.role} | {node.state} |"
    yield ""


def _steps(status: UpgradeStatus) -> Iterator[str]:
    if not status.steps:
        return
    yield "## Steps"
    yield ""
    yield "| step | what | state | |"
    yield "|---|---|---|---|"
    shown = status.steps[:_MAX_STEPS]
    for step in shown:
        yield f"| {step.do} | {step.target} | {step.state} | {step.message} |"
    if len(status.steps) > len(shown):
        yield f"| | {len(status.steps) - len(shown)} more | | |"
    yield ""

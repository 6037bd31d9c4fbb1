"""The dashboard's state as JSON data: nodes, classes, pods, rejections and upgrades. Pure.

Its size is bounded: nodes are grouped, and of many pods those that need attention come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from winpod.clock import format_timestamp
from winpod.labels import ABOUT_ANNOTATION
from winpod.operator.admission.review import ReviewOutcome
from winpod.operator.cached_objects import CachedNode, CachedPod, CachedRuntimeClass
from winpod.operator.pod_evaluator import PodVerdict
from winpod.operator.runtimeclasses.node_labels import isolation_of
from winpod.operator.upgrade.resource import StepRecord, WindowsUpgrade
from winpod.windows.handlers import BUILTIN_HANDLERS

MAX_PODS = 500
MAX_NAMES = 5
MAX_UPGRADES = 10
MAX_STEPS = 50
_CONTEXT_STEPS = 10
_OPEN = ("Pending", "Running", "Failed", "Undoing")
_NEEDS_ATTENTION = (
    ReviewOutcome.CANNOT_RUN,
    ReviewOutcome.RETIRED,
    ReviewOutcome.CONFLICTS,
    ReviewOutcome.MAY_FAIL,
)
_ORDER = (
    *_NEEDS_ATTENTION,
    ReviewOutcome.WAITS,
    ReviewOutcome.UNKNOWN,
    ReviewOutcome.RUNS,
    ReviewOutcome.NOT_WINDOWS,
)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    at: datetime
    namespace: str
    name: str
    message: str
    count: int = 1


def node_groups(nodes: Iterable[CachedNode]) -> list[dict[str, Any]]:
    """Group nodes by OS, build, isolation and runtime, Windows first."""
    groups: dict[tuple[str, str, str, str], list[CachedNode]] = {}
    for cached in nodes:
        node = cached.node
        build = str(node.build) if node.build and node.os == "windows" else ""
        key = (node.os, build, isolation_of(node), node.runtime)
        groups.setdefault(key, []).append(cached)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0] != "windows", group[0]))
    return [_group(key, members) for key, members in ordered]


def _group(key: tuple[str, str, str, str], members: Sequence[CachedNode]) -> dict[str, Any]:
    os, build, isolation, runtime = key
    host_build = members[0].node.build if build else None
    names = sorted(cached.node.name for cached in members)
    return {
        "os": os,
        "build": build,
        "release": host_build.release.name if host_build and host_build.release else "",
        "isolation": isolation,
        "runtime": runtime,
        "count": len(members),
        "ready": sum(cached.is_ready for cached in members),
        "cordoned": sum(cached.node.unschedulable for cached in members),
        "names": names[:MAX_NAMES],
    }


def class_rows(
    classes: Iterable[CachedRuntimeClass],
    users: Callable[[str], int],
    nodes: Collection[CachedNode],
) -> list[dict[str, Any]]:
    labels = [dict(cached.node.labels) for cached in nodes]
    rows = [_class(cached, users(cached.name), labels) for cached in classes]
    return sorted(rows, key=lambda row: row["name"])


def _class(
    cached: CachedRuntimeClass, users: int, labels: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    runtime_class = cached.runtime_class
    selector = runtime_class.node_selector
    handler = BUILTIN_HANDLERS.find(runtime_class.handler)
    matching = sum(
        all(node_labels.get(key) == value for key, value in selector) for node_labels in labels
    )
    return {
        "name": cached.name,
        "handler": runtime_class.handler,
        "isolation": str(handler.isolation) if handler else "",
        "about": dict(cached.annotations).get(ABOUT_ANNOTATION, ""),
        "ours": cached.is_managed,
        "retiring": cached.retiring,
        "users": users,
        "nodes": matching,
        "selector": [f"{key}={value}" for key, value in selector],
    }


def pod_rows(
    pods: Iterable[CachedPod],
    verdicts: Mapping[tuple[str, str], PodVerdict],
    query: str = "",
) -> dict[str, Any]:
    """Return the Windows pods whose namespace, name, node, class or verdict contains the query."""
    counts: Counter[ReviewOutcome] = Counter()
    chosen: list[tuple[int, CachedPod, PodVerdict]] = []
    query = query.strip().lower()
    for pod in pods:
        verdict = verdicts.get((pod.namespace, pod.name))
        if verdict is None:
            continue
        counts[verdict.outcome] += 1
        if verdict.outcome is not ReviewOutcome.NOT_WINDOWS and (
            not query or _matches(query, pod, verdict)
        ):
            chosen.append((_ORDER.index(verdict.outcome), pod, verdict))
    chosen.sort(key=lambda row: (row[0], row[1].namespace, row[1].name))
    return {
        "counts": {str(outcome): counts[outcome] for outcome in _ORDER if counts[outcome]},
        "matching": len(chosen),
        "shown": [_pod(pod, verdict) for _, pod, verdict in chosen[:MAX_PODS]],
    }


def _matches(query: str, pod: CachedPod, verdict: PodVerdict) -> bool:
    texts = (f"{pod.namespace}/{pod.name}", pod.node, pod.runtime_class, verdict.outcome)
    return any(query in text.lower() for text in texts)


def _pod(pod: CachedPod, verdict: PodVerdict) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "owner": " ".join(filter(None, pod.owner)),
        "class": pod.runtime_class,
        "node": pod.node,
        "phase": "Ending" if pod.is_deleting else pod.phase,
        "fate": str(verdict.outcome),
        "sentence": verdict.message,
        "nodes": list(verdict.nodes[:MAX_NAMES]),
        "more": max(0, len(verdict.nodes) - MAX_NAMES),
    }


def refused_rows(refused: Iterable[RefusedPod]) -> list[dict[str, Any]]:
    """Return rejections, the newest first, without duplicates from several sources."""
    latest: dict[tuple[str, str, str], RefusedPod] = {}
    for one in refused:
        key = (one.namespace, one.name.rstrip("-."), one.message)
        if key not in latest or latest[key].at < one.at:
            latest[key] = one
    newest = sorted(latest.values(), key=lambda one: one.at, reverse=True)
    return [
        {
            "at": format_timestamp(one.at),
            "namespace": one.namespace,
            "name": one.name,
            "sentence": one.message,
            "count": one.count,
        }
        for one in newest[:MAX_PODS]
    ]


def upgrade_rows(upgrades: Iterable[WindowsUpgrade]) -> dict[str, Any]:
    newest = sorted(upgrades, key=lambda u: u.metadata.creation_timestamp, reverse=True)
    return {
        "shown": [_upgrade(one) for one in newest[:MAX_UPGRADES]],
        "more": max(0, len(newest) - MAX_UPGRADES),
    }


def _upgrade(upgrade: WindowsUpgrade) -> dict[str, Any]:
    spec, status = upgrade.spec, upgrade.status
    staying = [workload for workload in status.workloads if workload.stays]
    return {
        "name": upgrade.name,
        "from": spec.get("from", ""),
        "to": spec.get("to", ""),
        "way": spec.get("way", ""),
        "phase": status.phase,
        "message": status.failure or status.message,
        "done": sum(step.state == "Done" for step in status.steps),
        "total": len(status.steps),
        **_steps(status.steps),
        "staying": [
            {"workload": str(one), "reasons": list(one.reasons)} for one in staying[:MAX_STEPS]
        ],
        "more_staying": max(0, len(staying) - MAX_STEPS),
    }


def _steps(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Return the steps around the current one, and how many come before and after."""
    first_open = next((i for i, step in enumerate(steps) if step.state in _OPEN), len(steps))
    first = max(0, min(first_open - _CONTEXT_STEPS, len(steps) - MAX_STEPS))
    shown = steps[first : first + MAX_STEPS]
    return {
        "earlier": first,
        "steps": [
            {"do": step.do, "target": step.target, "state": step.state, "message": step.message}
            for step in shown
        ],
        "later": len(steps) - first - len(shown),
    }

"""What the page shows, as plain data for JSON: nodes, classes, pods, refusals, upgrades. Pure.

It is bounded: of many nodes there are groups, of many pods those that need somebody come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from winpod.cluster.admission.deciding import Fate
from winpod.cluster.classes import ABOUT
from winpod.cluster.node_labels import isolation_of
from winpod.cluster.pod_verdicts import PodVerdict
from winpod.cluster.seen import SeenClass, SeenNode, SeenPod
from winpod.cluster.upgrade.resource import StepRecord, WindowsUpgrade
from winpod.windows.handlers import KNOWN

MOST_PODS = 500
MOST_NAMES = 5
MOST_UPGRADES = 10
MOST_STEPS = 50
_STEPS_BACK = 10
_OPEN = ("Pending", "Running", "Failed")
_NEEDS_SOMEBODY = (Fate.CANNOT_RUN, Fate.RETIRED, Fate.CONTRADICTS, Fate.MAY_FAIL)
_ORDER = (*_NEEDS_SOMEBODY, Fate.WAITS, Fate.UNKNOWN, Fate.RUNS, Fate.NOT_WINDOWS)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    at: datetime
    namespace: str
    name: str
    sentence: str
    count: int = 1


def node_groups(nodes: Iterable[SeenNode]) -> list[dict[str, Any]]:
    """Nodes of one system, build, runtime and isolation together, Windows first."""
    groups: dict[tuple[str, str, str, str], list[SeenNode]] = {}
    for seen in nodes:
        node = seen.node
        build = str(node.build) if node.build and node.os == "windows" else ""
        key = (node.os, build, isolation_of(node), node.runtime)
        groups.setdefault(key, []).append(seen)
    found = sorted(groups.items(), key=lambda group: (group[0][0] != "windows", group[0]))
    return [_group(key, members) for key, members in found]


def _group(key: tuple[str, str, str, str], members: Sequence[SeenNode]) -> dict[str, Any]:
    os, build, isolation, runtime = key
    known = members[0].node.build if build else None
    names = sorted(seen.node.name for seen in members)
    return {
        "os": os,
        "build": build,
        "release": known.release.name if known and known.release else "",
        "isolation": isolation,
        "runtime": runtime,
        "count": len(members),
        "ready": sum(seen.is_ready for seen in members),
        "cordoned": sum(seen.node.unschedulable for seen in members),
        "names": names[:MOST_NAMES],
    }


def class_rows(
    classes: Iterable[SeenClass], users: Callable[[str], int], nodes: Collection[SeenNode]
) -> list[dict[str, Any]]:
    labels = [dict(seen.node.labels) for seen in nodes]
    rows = [_class(seen, users(seen.name), labels) for seen in classes]
    return sorted(rows, key=lambda row: row["name"])


def _class(seen: SeenClass, users: int, labels: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    made = seen.runtime_class
    selector = made.node_selector
    handler = KNOWN.find(made.handler)
    reached = sum(all(has.get(key) == value for key, value in selector) for has in labels)
    return {
        "name": seen.name,
        "handler": made.handler,
        "isolation": str(handler.isolation) if handler else "",
        "about": dict(seen.annotations).get(ABOUT, ""),
        "ours": seen.is_ours,
        "retiring": seen.retiring,
        "users": users,
        "nodes": reached,
        "selector": [f"{key}={value}" for key, value in selector],
    }


def pod_rows(
    pods: Iterable[SeenPod],
    verdicts: Mapping[tuple[str, str], PodVerdict],
    wanted: str = "",
) -> dict[str, Any]:
    """Windows pods whose namespace, name, node, class or verdict has the wanted text in it."""
    counts: Counter[Fate] = Counter()
    chosen: list[tuple[int, SeenPod, PodVerdict]] = []
    wanted = wanted.strip().lower()
    for pod in pods:
        verdict = verdicts.get((pod.namespace, pod.name))
        if verdict is None:
            continue
        counts[verdict.fate] += 1
        if verdict.fate is not Fate.NOT_WINDOWS and (not wanted or _has(wanted, pod, verdict)):
            chosen.append((_ORDER.index(verdict.fate), pod, verdict))
    chosen.sort(key=lambda row: (row[0], row[1].namespace, row[1].name))
    return {
        "counts": {str(fate): counts[fate] for fate in _ORDER if counts[fate]},
        "matching": len(chosen),
        "shown": [_pod(pod, verdict) for _, pod, verdict in chosen[:MOST_PODS]],
    }


def _has(wanted: str, pod: SeenPod, verdict: PodVerdict) -> bool:
    texts = (f"{pod.namespace}/{pod.name}", pod.node, pod.runtime_class, verdict.fate)
    return any(wanted in text.lower() for text in texts)


def _pod(pod: SeenPod, verdict: PodVerdict) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "owner": " ".join(filter(None, pod.owner)),
        "class": pod.runtime_class,
        "node": pod.node,
        "phase": "Ending" if pod.is_leaving else pod.phase,
        "fate": str(verdict.fate),
        "sentence": verdict.sentence,
        "nodes": list(verdict.nodes[:MOST_NAMES]),
        "more": max(0, len(verdict.nodes) - MOST_NAMES),
    }


def refused_rows(refused: Iterable[RefusedPod]) -> list[dict[str, Any]]:
    """The newest first; the same one of several tellers once."""
    once: dict[tuple[str, str, str], RefusedPod] = {}
    for one in refused:
        key = (one.namespace, one.name.rstrip("-."), one.sentence)
        if key not in once or once[key].at < one.at:
            once[key] = one
    newest = sorted(once.values(), key=lambda one: one.at, reverse=True)
    return [
        {
            "at": stamp(one.at),
            "namespace": one.namespace,
            "name": one.name,
            "sentence": one.sentence,
            "count": one.count,
        }
        for one in newest[:MOST_PODS]
    ]


def upgrade_rows(upgrades: Iterable[WindowsUpgrade]) -> dict[str, Any]:
    newest = sorted(upgrades, key=lambda one: one.metadata.creation_timestamp, reverse=True)
    return {
        "shown": [_upgrade(one) for one in newest[:MOST_UPGRADES]],
        "more": max(0, len(newest) - MOST_UPGRADES),
    }


def _upgrade(upgrade: WindowsUpgrade) -> dict[str, Any]:
    spec, status = upgrade.spec, upgrade.status
    staying = [one for one in status.workloads if one.stays]
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
            {"workload": str(one), "reasons": list(one.reasons)} for one in staying[:MOST_STEPS]
        ],
        "more_staying": max(0, len(staying) - MOST_STEPS),
    }


def _steps(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Of many those around the one that is being taken, and how many come before and after."""
    first_open = next((i for i, step in enumerate(steps) if step.state in _OPEN), len(steps))
    first = max(0, min(first_open - _STEPS_BACK, len(steps) - MOST_STEPS))
    shown = steps[first : first + MOST_STEPS]
    return {
        "earlier": first,
        "steps": [
            {"do": step.do, "target": step.target, "state": step.state, "message": step.message}
            for step in shown
        ],
        "later": len(steps) - first - len(shown),
    }


def stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

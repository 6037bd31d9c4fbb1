"""What to tell the API server so that a status becomes another: a strategic merge patch.

Conditions merge by their type, so those of others stay. Lists that would merge by address or by
type, and have to become exactly ours, are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPLACED = frozenset(("podIPs", "hostIPs", "addresses"))
OURS = frozenset(
    (
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
        "PodResizePending",
        "PodResizeInProgress",
        "AllContainersRestarting",
    )
)
"""Conditions that a kubelet writes, and that go when it no longer does. Others are of somebody."""

THEIRS = frozenset(
    (
        "conditions",
        "nominatedNodeName",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
        "volumeHealth",
        "volumesAttached",
        "config",
    )
)
"""What others write; it stays where a new status does not have it."""

Status = Mapping[str, Any]


def status_patch(old: Status, new: Status) -> dict[str, Any]:
    """Empty where there is nothing to tell."""
    patch: dict[str, Any] = {name: None for name in old if name not in new and name not in THEIRS}
    for name, value in new.items():
        if name != "conditions" and value != old.get(name):
            patch[name] = [{"$patch": "replace"}, *value] if name in REPLACED else value
            if isinstance(value, Mapping):
                patch[name] = _merged(old.get(name) or {}, value)
    if changed := _conditions(old.get("conditions") or [], new.get("conditions") or []):
        patch["conditions"] = changed
    return patch


def as_told(has: Status, told: Status) -> dict[str, Any]:
    """What the server has of a pod, with the conditions of others as we have repeated them."""
    ours = [c for c in has.get("conditions") or () if c["type"] in OURS]
    theirs = [c for c in told.get("conditions") or () if c["type"] not in OURS]
    return {**has, "conditions": [*ours, *theirs]}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = _merged(before, value)
        else:
            merged[name] = value
    return merged


def _conditions(old: list[Status], new: list[Status]) -> list[dict[str, Any]]:
    before = {condition["type"]: condition for condition in old}
    after = {condition["type"]: condition for condition in new}
    changed = [
        _merged(before.get(kind, {}), condition)
        for kind, condition in after.items()
        if condition != before.get(kind)
    ]
    gone = [
        {"$patch": "delete", "type": kind} for kind in before if kind in OURS and kind not in after
    ]
    return [*changed, *gone]

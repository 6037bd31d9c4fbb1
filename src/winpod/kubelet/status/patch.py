"""Strategic merge patches that turn one status into another.

Conditions merge by type, so conditions of other writers stay. Lists that would merge by address or
type but must match exactly are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPLACED = frozenset(("podIPs", "hostIPs", "addresses"))
KUBELET_CONDITIONS = frozenset(
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
"""Conditions owned by the kubelet: it also deletes them. Others belong to other controllers."""

FOREIGN_FIELDS = frozenset(
    (
        "conditions",
        "nominatedNodeName",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
        "volumesAttached",
        "config",
    )
)
"""Fields written by others; they stay if the new status does not have them."""

Status = Mapping[str, Any]


def status_patch(old: Status, new: Status) -> dict[str, Any]:
    """Return the patch, empty if the statuses are equal."""
    patch: dict[str, Any] = {
        name: None for name in old if name not in new and name not in FOREIGN_FIELDS
    }
    for name, value in new.items():
        if name != "conditions" and value != old.get(name):
            patch[name] = [{"$patch": "replace"}, *value] if name in REPLACED else value
            if isinstance(value, Mapping):
                patch[name] = _merged(old.get(name) or {}, value)
    if changed := _conditions(old.get("conditions") or [], new.get("conditions") or []):
        patch["conditions"] = changed
    return patch


def with_foreign_conditions(server: Status, reported: Status) -> dict[str, Any]:
    """Return the server's status with the foreign conditions of the reported status."""
    own = [c for c in server.get("conditions") or () if c["type"] in KUBELET_CONDITIONS]
    foreign = [c for c in reported.get("conditions") or () if c["type"] not in KUBELET_CONDITIONS]
    return {**server, "conditions": [*own, *foreign]}


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
    deleted = [
        {"$patch": "delete", "type": kind}
        for kind in before
        if kind in KUBELET_CONDITIONS and kind not in after
    ]
    return [*changed, *deleted]

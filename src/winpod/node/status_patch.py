"""What to tell the API server so that a status becomes another: a strategic merge patch.

Conditions merge by their type, so those of others stay. Lists that would merge by address or by
type, and have to become exactly ours, are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPLACED = frozenset(("podIPs", "hostIPs", "addresses"))
OURS = frozenset(("PodResizePending", "PodResizeInProgress"))
"""Conditions that go when they no longer hold; others are of somebody else, or stay."""

THEIRS = frozenset(
    (
        "conditions",
        "nominatedNodeName",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
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
        if name == "conditions":
            if changed := _conditions(old.get(name) or [], value):
                patch[name] = changed
        elif value != old.get(name):
            patch[name] = [{"$patch": "replace"}, *value] if name in REPLACED else value
            if isinstance(value, Mapping):
                patch[name] = _merged(old.get(name) or {}, value)
    return patch


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None for name in old if name not in new} | dict(new)


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

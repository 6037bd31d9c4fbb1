"""What the API server is told so that a status becomes another."""

from typing import Any

import pytest

from winpod.node.status_patch import as_told, status_patch

READY = {"type": "Ready", "status": "True"}
GATE = {"type": "example.test/gate", "status": "True"}
PENDING = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing new is not told": ({"phase": "Running"}, {"phase": "Running"}, {}),
    "a field that changed": ({"phase": "Pending"}, {"phase": "Running"}, {"phase": "Running"}),
    "a field that is gone": ({"reason": "Evicted"}, {}, {"reason": None}),
    "what others wrote stays": ({"nominatedNodeName": "a", "conditions": [GATE]}, {}, {}),
    "only the condition that changed": (
        {"conditions": [READY, GATE]},
        {"conditions": [{"type": "Ready", "status": "False"}, GATE]},
        {"conditions": [{"type": "Ready", "status": "False"}]},
    ),
    "a part of a condition that is gone": (
        {"conditions": [{**READY, "reason": "NotYet"}]},
        {"conditions": [READY]},
        {"conditions": [{**READY, "reason": None}]},
    ),
    "a condition of ours that no longer holds": (
        {"conditions": [READY, PENDING, GATE]},
        {"conditions": [READY]},
        {"conditions": [{"$patch": "delete", "type": "PodResizePending"}]},
    ),
    "addresses become exactly ours": (
        {"podIPs": [{"ip": "10.0.0.1"}]},
        {"podIPs": [{"ip": "10.0.0.2"}]},
        {"podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]},
    ),
    "all of a status that was never ours to begin with": (
        {"conditions": [{"type": "PodScheduled", "status": "True"}, GATE]},
        {"phase": "Failed"},
        {
            "phase": "Failed",
            "conditions": [{"$patch": "delete", "type": "PodScheduled"}],
        },
    ),
    "a map in a map loses what it no longer has": (
        {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
        {"resources": {"limits": {"cpu": "1"}}},
        {"resources": {"limits": {"cpu": "1", "memory": None}}},
    ),
    "a map loses what it no longer has": (
        {"capacity": {"cpu": "1", "example.test/gpu": "1"}},
        {"capacity": {"cpu": "2"}},
        {"capacity": {"cpu": "2", "example.test/gpu": None}},
    ),
}


@pytest.mark.parametrize(("old", "new", "patch"), CASES.values(), ids=CASES.keys())
def test_a_patch_has_what_changed_and_nothing_else(
    old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert status_patch(old, new) == patch


def test_what_others_wrote_over_ours_is_told_again_and_what_is_theirs_is_not() -> None:
    told = {"phase": "Running", "conditions": [READY, GATE]}
    has = {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": GATE["type"], "status": "False"},
            {"type": "example.test/new", "status": "True"},
        ],
    }
    assert status_patch(as_told(has, told), told) == {"conditions": [READY]}

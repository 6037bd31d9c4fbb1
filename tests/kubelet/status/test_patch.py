"""Status patches."""

from typing import Any

import pytest

from winpod.kubelet.status.patch import status_patch, with_foreign_conditions

READY = {"type": "Ready", "status": "True"}
GATE = {"type": "example.test/gate", "status": "True"}
PENDING = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "no change": ({"phase": "Running"}, {"phase": "Running"}, {}),
    "changed field": ({"phase": "Pending"}, {"phase": "Running"}, {"phase": "Running"}),
    "removed field": ({"reason": "Evicted"}, {}, {"reason": None}),
    "foreign fields stay": ({"nominatedNodeName": "a", "conditions": [GATE]}, {}, {}),
    "changed condition": (
        {"conditions": [READY, GATE]},
        {"conditions": [{"type": "Ready", "status": "False"}, GATE]},
        {"conditions": [{"type": "Ready", "status": "False"}]},
    ),
    "removed part of a condition": (
        {"conditions": [{**READY, "reason": "NotYet"}]},
        {"conditions": [READY]},
        {"conditions": [{**READY, "reason": None}]},
    ),
    "removed kubelet condition": (
        {"conditions": [READY, PENDING, GATE]},
        {"conditions": [READY]},
        {"conditions": [{"$patch": "delete", "type": "PodResizePending"}]},
    ),
    "addresses are replaced": (
        {"podIPs": [{"ip": "10.0.0.1"}]},
        {"podIPs": [{"ip": "10.0.0.2"}]},
        {"podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]},
    ),
    "status without previous kubelet fields": (
        {"conditions": [{"type": "PodScheduled", "status": "True"}, GATE]},
        {"phase": "Failed"},
        {
            "phase": "Failed",
            "conditions": [{"$patch": "delete", "type": "PodScheduled"}],
        },
    ),
    "removed key of a nested map": (
        {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
        {"resources": {"limits": {"cpu": "1"}}},
        {"resources": {"limits": {"cpu": "1", "memory": None}}},
    ),
    "removed key of a map": (
        {"capacity": {"cpu": "1", "example.test/gpu": "1"}},
        {"capacity": {"cpu": "2"}},
        {"capacity": {"cpu": "2", "example.test/gpu": None}},
    ),
}


@pytest.mark.parametrize(("old", "new", "patch"), CASES.values(), ids=CASES.keys())
def test_patch_contains_only_changes(
    old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert status_patch(old, new) == patch


def test_overwritten_fields_are_resent_and_foreign_ones_kept() -> None:
    reported = {"phase": "Running", "conditions": [READY, GATE]}
    on_server = {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": GATE["type"], "status": "False"},
            {"type": "example.test/new", "status": "True"},
        ],
    }
    assert status_patch(with_foreign_conditions(on_server, reported), reported) == {
        "conditions": [READY]
    }

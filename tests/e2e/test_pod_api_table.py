"""The Pod API table is correct: a real API server reviews the example of every row."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from tests.e2e.controlplane import Answer, ControlPlane

from winpod.windows.pod_api.linter import FIELD_RULES, Behaviour, FieldRule

NAMESPACE = "pod-api"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRY_RUN = "dryRun=All&fieldValidation=Strict"
CREATED, OK, REJECTIONS = 201, 200, (400, 403, 422)


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> ControlPlane:
    control_plane.create_namespace(NAMESPACE)
    control_plane.apply(
        *(_runtime_class_for(rule.example) for rule in FIELD_RULES if _has_runtime_class(rule))
    )
    return control_plane


@pytest.mark.parametrize("os_stated", [True, False], ids=["os-stated", "os-unstated"])
@pytest.mark.parametrize("rule", FIELD_RULES, ids=[rule.id for rule in FIELD_RULES])
def test_api_server_rejects_exactly_what_the_table_reports(
    api: ControlPlane, rule: FieldRule, os_stated: bool
) -> None:
    answer = _submit(api, rule.example_spec(os_stated=os_stated))

    if rule.behaviour(os_stated=os_stated) is Behaviour.REJECTED:
        assert answer.status in REJECTIONS, (
            "the API server accepts an example that the table reports as rejected"
        )
        assert _is_caused_by(rule, answer), answer.message
    else:
        assert answer.status in (OK, CREATED), answer.message


def _submit(api: ControlPlane, spec: Mapping[str, Any]) -> Answer:
    """Submit a pod of this spec to the API server without persisting it."""
    ephemeral = spec.get("ephemeralContainers")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "example-"},
        "spec": {key: value for key, value in spec.items() if key != "ephemeralContainers"},
    }
    if ephemeral is None:
        return api.request("POST", f"{PODS}?{DRY_RUN}", pod)
    created = api.request("POST", f"{PODS}?fieldValidation=Strict", pod)
    if created.status != CREATED:
        return created
    path = f"{PODS}/{created.body['metadata']['name']}"
    created.body["spec"]["ephemeralContainers"] = ephemeral
    del created.body["metadata"]["resourceVersion"]
    answer = api.request("PUT", f"{path}/ephemeralcontainers?{DRY_RUN}", created.body)
    api.request("DELETE", f"{path}?gracePeriodSeconds=0")
    return answer


def _is_caused_by(rule: FieldRule, answer: Answer) -> bool:
    """Whether the rejection is caused by the row's field, not by the rest of the example."""
    paths = [_without_indices(path) for path in rule.fields]
    for cause in answer.body["details"]["causes"]:
        field = _without_indices(cause["field"])
        if any(field.startswith(path) or path.startswith(field) for path in paths):
            return True
        if any(path.rsplit(".", 1)[-1] in cause["message"] for path in paths):
            return True
    return False


def _without_indices(path: str) -> str:
    return re.sub(r"\[[*\d]+\]", "", path)


def _has_runtime_class(rule: FieldRule) -> bool:
    return "runtimeClassName" in rule.example


def _runtime_class_for(example: Mapping[str, Any]) -> dict[str, Any]:
    name = example["runtimeClassName"]
    runtime_class = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": name,
    }
    overhead = example.get("overhead")
    return runtime_class | ({"overhead": {"podFixed": overhead}} if overhead else {})

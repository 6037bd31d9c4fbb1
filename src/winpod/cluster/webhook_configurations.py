"""What the API server is told about the webhook: whom to ask, about what, and for how long.

A webhook that does not answer stops nobody: then pods are created as if there were none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winpod.cluster.seen import MANAGED_BY, OURS
from winpod.cluster.webhook import MUTATE_PODS, VALIDATE_PODS, WARN_WORKLOADS

NAME = "winpod"
SERVICE = "winpod-webhook"
TIMEOUT_SECONDS = 10
_WORKLOADS = {
    "apps": ("deployments", "statefulsets", "daemonsets", "replicasets"),
    "batch": ("jobs", "cronjobs"),
}


def by_service(namespace: str) -> Callable[[str], dict[str, Any]]:
    """How the webhook of a cluster's own Service is reached."""
    return lambda path: {"service": {"name": SERVICE, "namespace": namespace, "path": path}}


def webhook_configurations(
    reach: Callable[[str], Mapping[str, Any]], exempt_namespaces: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mutating and the validating one. `reach` gives the `clientConfig` for a path."""
    pods = [_rule("", ("pods",), "CREATE")]
    workloads = [_rule(group, kinds, "CREATE", "UPDATE") for group, kinds in _WORKLOADS.items()]

    def webhook(name: str, path: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "name": f"{name}.winpod.dev",
            "clientConfig": dict(reach(path)),
            "rules": rules,
            "namespaceSelector": _all_but(exempt_namespaces),
            "failurePolicy": "Ignore",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }

    mutating = webhook("place", MUTATE_PODS, pods) | {"reinvocationPolicy": "IfNeeded"}
    validating = [
        webhook("pods", VALIDATE_PODS, pods),
        webhook("workloads", WARN_WORKLOADS, workloads),
    ]
    return (
        _configuration("MutatingWebhookConfiguration", [mutating]),
        _configuration("ValidatingWebhookConfiguration", validating),
    )


def _configuration(kind: str, webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME, "labels": {MANAGED_BY: OURS}},
        "webhooks": webhooks,
    }


def _rule(group: str, resources: Sequence[str], *operations: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "Namespaced",
    }


def _all_but(namespaces: Sequence[str]) -> dict[str, Any]:
    key = "kubernetes.io/metadata.name"
    return {
        "matchExpressions": [{"key": key, "operator": "NotIn", "values": sorted(set(namespaces))}]
    }

"""Bootstrap tokens of test clusters, with the roles that kubeadm binds for joining nodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.waiting import eventually

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN_ID, TOKEN_SECRET = "abc123", "0123456789abcdef"


@contextmanager
def bootstrap_token_of(plane: ControlPlane) -> Iterator[str]:
    """Create a token and role bindings like kubeadm; nodes may also renew their certificates."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{TOKEN_ID}", "namespace": "kube-system"},
        "stringData": {
            "token-id": TOKEN_ID,
            "token-secret": TOKEN_SECRET,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
        },
    }
    info = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": plane.public_kubeconfig()},
    }
    roles = [
        _binding("e2e:bootstrap", "system:node-bootstrapper", "system:bootstrappers"),
        _binding(
            "e2e:approve",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            "system:bootstrappers",
        ),
        _binding(
            "e2e:renew",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:nodes",
        ),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "e2e:cluster-info", "namespace": "kube-public"},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": ["cluster-info"],
                    "verbs": ["get"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "e2e:cluster-info", "namespace": "kube-public"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "e2e:cluster-info",
            },
            "subjects": [
                {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "User",
                    "name": "system:anonymous",
                }
            ],
        },
    ]
    plane.apply(secret, info, *roles)
    path = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
    eventually(lambda: f"jws-kubeconfig-{TOKEN_ID}" in plane.request("GET", path).body["data"])
    try:
        yield f"{TOKEN_ID}.{TOKEN_SECRET}"
    finally:
        secrets = "/api/v1/namespaces/kube-system/secrets"
        plane.request("DELETE", f"{secrets}/bootstrap-token-{TOKEN_ID}")


def requests_of(plane: ControlPlane, user: str) -> list[dict[str, Any]]:
    """Return the certificate signing requests of a user."""
    items = plane.request("GET", REQUESTS).body["items"]
    return [item for item in items if item["spec"]["username"] == user]


def _binding(name: str, role: str, group: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    }

"""Eviction of a pod through the API, which respects disruption budgets."""

from __future__ import annotations

from winpod.errors import Unavailable
from winpod.k8s.client import ApiClient, ApiError


async def evict_pod(api: ApiClient, namespace: str, name: str, uid: str) -> str:
    """Evict a pod; return why it cannot be evicted now, or "".

    A pod that is gone, or was replaced by another of its name, counts as evicted.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    try:
        await api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
    except Unavailable as error:
        return error.message
    except ApiError as error:
        if not (error.is_not_found or error.is_conflict):
            raise
    return ""

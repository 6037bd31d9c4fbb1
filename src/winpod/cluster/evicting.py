"""Sending a pod away from its node, as far as disruption budgets let it go."""

from __future__ import annotations

from winpod.node.api import ApiServer, Refused
from winpod.windows.errors import Unavailable


async def evict(api: ApiServer, namespace: str, name: str, uid: str) -> str:
    """Why not now, or nothing; a pod that is gone, or another of its name, is not in the way."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    try:
        await api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
    except Unavailable as error:
        return error.sentence
    except Refused as error:
        if not (error.is_missing or error.is_conflict):
            raise
    return ""

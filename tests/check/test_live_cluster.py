"""Reading nodes, bound pods and RuntimeClasses of a running cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.registries import Handler, serve
from winpod.check.live_cluster import LiveCluster, read_live_cluster
from winpod.errors import PermissionDenied, Unavailable


def _pod(name: str, phase: str, node: str | None) -> dict[str, Any]:
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": "500m"}}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


_OBJECTS: dict[str, Sequence[dict[str, Any]]] = {
    "/api/v1/nodes": [
        {"metadata": {"name": name, "labels": {"kubernetes.io/os": "windows"}}}
        for name in ("first", "second", "third")
    ],
    "/api/v1/pods": [
        _pod("bound", "Running", "second"),
        _pod("also-bound", "Pending", "second"),
        _pod("ended", "Succeeded", "second"),
        _pod("pending", "Pending", None),
    ],
    "/apis/node.k8s.io/v1/runtimeclasses": [
        {"metadata": {"name": "windows-2022"}, "handler": "runhcs-wcow-process"}
    ],
}


async def _paged(request: web.Request) -> web.StreamResponse:
    """A stand-in for an API server that has one object on a page."""
    assert request.query["limit"]
    at = int(request.query.get("continue", "0"))
    items = _OBJECTS[request.path]
    rest = str(at + 1) if at + 1 < len(items) else ""
    return web.json_response({"metadata": {"continue": rest}, "items": [items[at]]})


async def _read(handler: Handler, folder: Path, **options: Any) -> LiveCluster:
    async with serve(handler) as address:
        kubeconfig = folder / "config"
        clusters = {"good": f"http://{address}", "bad": "http://127.0.0.1:1"}
        document = {
            "current-context": "good",
            "contexts": [{"name": n, "context": {"cluster": n}} for n in clusters],
            "clusters": [{"name": n, "cluster": {"server": url}} for n, url in clusters.items()],
        }
        kubeconfig.write_text(json.dumps(document))
        return await read_live_cluster(kubeconfig, **options)


async def test_every_page_is_read(tmp_path: Path) -> None:
    live = await _read(_paged, tmp_path)
    assert {node.name: node.allocated for node in live.nodes} == {
        "first": (),
        "second": (("cpu", Decimal("1.0")), ("pods", Decimal(2))),
        "third": (),
    }
    assert [known.name for known in live.classes] == ["windows-2022"]


async def test_context_selects_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"config did not respond: .*127\.0\.0\.1:1.*--nodes"):
        await _read(_paged, tmp_path, context="bad")


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (401, PermissionDenied, "Unauthorized.*Allow the user of the kubeconfig to list nodes"),
        (403, PermissionDenied, "Unauthorized.*Allow the user of the kubeconfig to list nodes"),
        (503, Unavailable, "temporarily unavailable: Unauthorized"),
    ],
)
async def test_rejected_request_is_reported(
    tmp_path: Path, status: int, error: type[Exception], message: str
) -> None:
    async def rejects(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=status)

    with pytest.raises(error, match=message):
        await _read(rejects, tmp_path)

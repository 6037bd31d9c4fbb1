"""Reads the nodes of a running cluster, with what is allocated on them, and its RuntimeClasses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.errors import PermissionDenied, Unavailable
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.placement.predicates import TERMINAL_PHASES, with_allocated

_NODES, _PODS, _CLASSES = "/api/v1/nodes", "/api/v1/pods", "/apis/node.k8s.io/v1/runtimeclasses"


@dataclass(frozen=True, slots=True)
class LiveCluster:
    nodes: tuple[Node, ...]
    classes: tuple[RuntimeClass, ...]


async def read_live_cluster(kubeconfig: Path, *, context: str | None = None) -> LiveCluster:
    """Read nodes, bound pods and RuntimeClasses from the cluster of a kubeconfig."""
    api = ApiClient(read_kubeconfig(kubeconfig, context=context))
    try:
        with _translate_errors(kubeconfig):
            nodes = [Node.from_object(obj) async for obj in _objects(api, _NODES)]
            classes = [RuntimeClass.from_object(obj) async for obj in _objects(api, _CLASSES)]
            pods = [pod async for pod in _bound_pods(api)]
    finally:
        await api.close()
    return LiveCluster(with_allocated(nodes, pods), tuple(classes))


async def _objects(api: ApiClient, path: str) -> AsyncIterator[dict[str, Any]]:
    async for page in api.list_pages(dict[str, Any], path, {}):
        for obj in page.items:
            yield obj


async def _bound_pods(api: ApiClient) -> AsyncIterator[Pod]:
    async for pod in _objects(api, _PODS):
        is_terminal = pod.get("status", {}).get("phase") in TERMINAL_PHASES
        if pod["spec"].get("nodeName") and not is_terminal:
            yield Pod.from_template(pod)


@contextmanager
def _translate_errors(kubeconfig: Path) -> Iterator[None]:
    """Add what to do to errors of the API server."""
    try:
        yield
    except ApiError as error:
        raise _denied(error) from error
    except Unavailable as error:
        match error.__cause__:
            case ApiError(is_unauthorized=True) as denial:
                raise _denied(denial) from error
            case None | ApiError():
                raise
            case cause:
                raise Unavailable(
                    f"the API server of {kubeconfig} did not respond: {str(cause) or 'timeout'}.",
                    "Check its address, or describe the nodes in a file and pass it with --nodes.",
                ) from error


def _denied(error: ApiError) -> PermissionDenied:
    return PermissionDenied(
        error.message, "Allow the user of the kubeconfig to list nodes, pods and runtimeclasses."
    )

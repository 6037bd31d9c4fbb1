"""Reads the nodes of a running cluster, with what is allocated on them, and its RuntimeClasses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from winpod.errors import PermissionDenied, Unavailable
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.objects import NodeObject, PodObject, RuntimeClassObject
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
            nodes = await api.list(NodeObject, _NODES, {})
            classes = await api.list(RuntimeClassObject, _CLASSES, {})
            pods = [pod async for pod in _bound_pods(api)]
    finally:
        await api.close()
    return LiveCluster(
        with_allocated((Node.from_object(node.to_dict()) for node in nodes.items), pods),
        tuple(RuntimeClass.from_object(known.to_dict()) for known in classes.items),
    )


async def _bound_pods(api: ApiClient) -> AsyncIterator[Pod]:
    async for page in api.list_pages(PodObject, _PODS, {}):
        for pod in page.items:
            if pod.spec.node_name and pod.status.phase not in TERMINAL_PHASES:
                yield Pod.from_template(pod.to_dict())


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

"""Reads the nodes of a running cluster, with what is allocated on them, and its RuntimeClasses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.resources import core_v1, node_v1

from winpod.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.placement.predicates import TERMINAL_PHASES, with_allocated

_PAGE = 500


@dataclass(frozen=True, slots=True)
class LiveCluster:
    nodes: tuple[Node, ...]
    classes: tuple[RuntimeClass, ...]


def read_live_cluster(
    kubeconfig: Path, *, context: str | None = None, timeout: float = 30
) -> LiveCluster:
    """Read nodes, bound pods and RuntimeClasses from the cluster of a kubeconfig."""
    with _translate_errors(kubeconfig):
        config = KubeConfig.from_file(kubeconfig).get(context_name=context)
        if config is None:
            raise InvalidInput(f"{kubeconfig} has no such context, or no cluster.")
        client = Client(config=config, timeout=httpx2.Timeout(timeout))
        nodes = [Node.from_object(n.to_dict()) for n in client.list(core_v1.Node, chunk_size=_PAGE)]
        classes = [RuntimeClass.from_object(c.to_dict()) for c in client.list(node_v1.RuntimeClass)]
        return LiveCluster(with_allocated(nodes, _bound_pods(client)), tuple(classes))


def _bound_pods(client: Client) -> Iterator[Pod]:
    for pod in client.list(core_v1.Pod, namespace="*", chunk_size=_PAGE):
        ended = pod.status is not None and pod.status.phase in TERMINAL_PHASES
        if pod.spec is not None and pod.spec.nodeName and not ended:
            yield Pod.from_template(pod.to_dict())


@contextmanager
def _translate_errors(kubeconfig: Path) -> Iterator[None]:
    try:
        yield
    except WinpodError:
        raise
    except ApiError as error:
        raise PermissionDenied(
            f"the API server denied the request: {error.status.message}.",
            "Allow the user of the kubeconfig to list nodes, pods and runtimeclasses.",
        ) from error
    except httpx2.HTTPError as error:
        raise Unavailable(
            f"the API server of {kubeconfig} did not respond: {error}.",
            "Check its address, or describe the nodes in a file and pass it with --nodes.",
        ) from error
    except (ConfigError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidInput(f"{kubeconfig} is not a valid kubeconfig: {error}.") from error

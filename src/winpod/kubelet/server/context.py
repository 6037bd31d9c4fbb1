"""Dependencies of the kubelet API's handlers, and how requests are resolved to pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from winpod.errors import NotFound
from winpod.k8s.pods import all_containers, uid_of
from winpod.kubelet.interfaces import ObjectSource
from winpod.kubelet.kubelet import PodEntry
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.runtime_client import RuntimeClient

POD = "{namespace}/{pod}"
POD_UID = "{namespace}/{pod}/{uid}"
CONTAINER = f"{POD}/{{container}}"
CONTAINER_UID = f"{POD_UID}/{{container}}"


class PodProvider(Protocol):
    @property
    def metrics(self) -> KubeletMetrics: ...

    def pods(self) -> Sequence[PodEntry]: ...

    def find_pod(self, namespace: str, name: str) -> PodEntry | None: ...


@dataclass(frozen=True, slots=True)
class ServerContext:
    node_config: NodeConfig
    runtime: RuntimeClient
    pods: PodProvider
    objects: ObjectSource


def pod_of(request: web.Request, pods: PodProvider) -> PodEntry:
    """Return the pod that the path names, checking its UID if the path has one."""
    names = request.match_info
    entry = pods.find_pod(names["namespace"], names["pod"])
    if entry is None or names.get("uid", uid_of(entry.pod)) != uid_of(entry.pod):
        raise NotFound("pod does not exist")
    return entry


def container_of(request: web.Request, entry: PodEntry) -> str:
    name = request.match_info["container"]
    if name not in {container.name for container in all_containers(entry.pod)}:
        raise NotFound(f'container "{name}" not found in pod "{request.match_info["pod"]}"')
    return name


def query_flag(request: web.Request, parameter: str) -> bool:
    """Parse a boolean as Kubernetes does: everything but `false` and `0` is true."""
    return request.query.get(parameter, "false").lower() not in ("false", "0")

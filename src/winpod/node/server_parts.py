"""What the node's API is about: the node's pods, its runtime, and how a request finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from winpod.cri.rpc import Client
from winpod.node.engine import PodFound
from winpod.node.facts import NodeFacts
from winpod.node.pods import all_containers, uid_of
from winpod.node.sources import Objects
from winpod.node.timings import Timings
from winpod.windows.errors import NotFound

POD = "{namespace}/{pod}"
POD_UID = "{namespace}/{pod}/{uid}"
CONTAINER = f"{POD}/{{container}}"
CONTAINER_UID = f"{POD_UID}/{{container}}"


class Pods(Protocol):
    @property
    def timings(self) -> Timings: ...

    def pods(self) -> Sequence[PodFound]: ...

    def find(self, namespace: str, name: str) -> PodFound | None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    facts: NodeFacts
    client: Client
    pods: Pods
    objects: Objects


def pod_of(request: web.Request, pods: Pods) -> PodFound:
    """The pod that a path names, by its uid too if there is one in it."""
    names = request.match_info
    found = pods.find(names["namespace"], names["pod"])
    if found is None or names.get("uid", uid_of(found.pod)) != uid_of(found.pod):
        raise NotFound("pod does not exist")
    return found


def container_of(request: web.Request, found: PodFound) -> str:
    name = request.match_info["container"]
    if name not in {container.name for container in all_containers(found.pod)}:
        raise NotFound(f'container "{name}" not found in pod "{request.match_info["pod"]}"')
    return name


def says_yes(request: web.Request, parameter: str) -> bool:
    """As Kubernetes reads a yes or no in a query: everything but `false` and `0` is a yes."""
    return request.query.get(parameter, "false").lower() not in ("false", "0")

"""What the engine asks and tells: the cluster's objects in, statuses and events out.

An API server is behind both, or manifest files. An object that does not exist is None; a server
that cannot be reached raises `Unavailable`, and the engine asks again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from lightkube.models import core_v1 as v1

Kind = Literal["Normal", "Warning"]


class Objects(Protocol):
    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None: ...

    async def secret(self, namespace: str, name: str) -> v1.Secret | None: ...

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None: ...

    async def volume(self, name: str) -> v1.PersistentVolume | None: ...

    async def services(self, namespace: str) -> list[v1.Service]: ...

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        """A token of the service account that is bound to the pod."""

    async def runtime_handler(self, runtime_class: str) -> str | None:
        """The handler that a RuntimeClass names; None where there is no such class."""

    async def node(self) -> v1.Node | None:
        """The node as others see it, with the labels and taints they gave it."""


class Reporter(Protocol):
    """No call waits for a server: what cannot be told now is told later, the newest first."""

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None: ...

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        """What there is to know of a pod beside its status."""

    async def event(
        self, pod: v1.Pod, kind: Kind, reason: str, message: str, container: str = ""
    ) -> None:
        """`container` is the name of the one that it is about, if it is about one."""

    async def gone(self, pod: v1.Pod) -> None:
        """The last trace of a deleted pod is away from this node."""

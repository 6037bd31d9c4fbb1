"""Interfaces between the kubelet and its pod source: API objects in, statuses and events out.

Implemented for an API server and for manifest files. An object that does not exist is None; an
unreachable server raises `Unavailable`, and the kubelet retries later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from winpod.k8s.models import core_v1 as v1

EventType = Literal["Normal", "Warning"]


class ObjectSource(Protocol):
    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None: ...

    async def secret(self, namespace: str, name: str) -> v1.Secret | None: ...

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None: ...

    async def volume(self, name: str) -> v1.PersistentVolume | None: ...

    async def services(self, namespace: str) -> list[v1.Service]: ...

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        """Return a service account token bound to the pod."""

    async def runtime_handler(self, runtime_class: str) -> str | None:
        """Return the handler of a RuntimeClass, or None if the class does not exist."""

    async def node(self) -> v1.Node | None:
        """Return the Node object with the labels and taints set by others."""


class StatusReporter(Protocol):
    """Asynchronous reports to the API server.

    Calls do not wait for the server. Reports are queued while it is unreachable; of several
    statuses of a pod only the newest is sent.
    """

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None: ...

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        """Set annotations on the pod."""

    async def event(
        self, pod: v1.Pod, kind: EventType, reason: str, message: str, container: str = ""
    ) -> None:
        """Record an event; `container` names the container it is about, if any."""

    async def pod_deleted(self, pod: v1.Pod) -> None:
        """Report that nothing of the deleted pod is left on this node."""

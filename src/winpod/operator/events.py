"""Events that the operator records on the objects it manages.

The rate limit is per reason, so the many step events of an upgrade do not suppress the event of its
completion.
"""

from __future__ import annotations

from dataclasses import replace

from winpod.k8s.client import ApiClient
from winpod.k8s.crd import API_VERSION
from winpod.k8s.event_recorder import (
    Event,
    EventCorrelator,
    EventRecorder,
    ObjectReference,
    by_reason,
)
from winpod.labels import OPERATOR_COMPONENT
from winpod.operator.upgrade.resource import KIND

REFUSED, UNPLACEABLE = "PodRefused", "PodUnplaceable"
_API_VERSIONS = {
    "RuntimeClass": "node.k8s.io/v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    KIND: API_VERSION,
}
_MAX_MESSAGE = 1024
"""Maximum length of an event message."""


class OperatorEventRecorder:
    def __init__(self, api: ApiClient, identity: str) -> None:
        self._events = EventRecorder(
            api, OPERATOR_COMPONENT, identity, series=EventCorrelator(limited_by=by_reason)
        )

    async def run(self) -> None:
        await self._events.run()

    def record(self, event: Event) -> None:
        api_version = _API_VERSIONS.get(event.subject.kind, event.subject.api_version)
        message = truncate_message(event.message)
        subject = replace(event.subject, api_version=api_version)
        self._events.record(replace(event, subject=subject, message=message))


def refused_event(namespace: str, name: str, message: str) -> Event:
    """Build the event of a rejected pod, which does not exist; `name` may be a generateName."""
    subject = ObjectReference("Pod", namespace, name.rstrip("-."), "")
    return Event(subject, "Warning", REFUSED, message)


def unplaceable_event(namespace: str, name: str, uid: str, message: str) -> Event:
    return Event(ObjectReference("Pod", namespace, name, uid), "Warning", UNPLACEABLE, message)


def truncate_message(message: str) -> str:
    if len(message) <= _MAX_MESSAGE:
        return message
    return f"{message[: _MAX_MESSAGE - 1]}…"

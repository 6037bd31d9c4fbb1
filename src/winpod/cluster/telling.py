"""What the operator does and finds, told as events of the objects that it is about.

Those of one reason are limited, never those of others by them: the steps of an upgrade, however
many, do not keep its end from being told.
"""

from __future__ import annotations

from dataclasses import replace

from winpod.cluster.custom_resources import API_VERSION
from winpod.cluster.upgrade.resource import KIND
from winpod.node.api import ApiServer
from winpod.node.event_series import Event, EventSeries, Subject, by_reason
from winpod.node.event_telling import EventTelling

COMPONENT = "winpod-operator"
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
_MOST_CHARACTERS = 1024
"""That an event's message may have."""


class Telling:
    def __init__(self, api: ApiServer, identity: str) -> None:
        self._events = EventTelling(
            api, COMPONENT, identity, series=EventSeries(limited_by=by_reason)
        )

    async def run(self) -> None:
        await self._events.run()

    def tell(self, event: Event) -> None:
        api_version = _API_VERSIONS.get(event.subject.kind, event.subject.api_version)
        message = shorten(event.message)
        subject = replace(event.subject, api_version=api_version)
        self._events.tell(replace(event, subject=subject, message=message))


def refused(namespace: str, name: str, sentence: str) -> Event:
    """About a pod that does not exist; its workload may have left its name open, with a dash."""
    subject = Subject("Pod", namespace, name.rstrip("-."), "")
    return Event(subject, "Warning", REFUSED, sentence)


def unplaceable(namespace: str, name: str, uid: str, sentence: str) -> Event:
    return Event(Subject("Pod", namespace, name, uid), "Warning", UNPLACEABLE, sentence)


def shorten(message: str) -> str:
    if len(message) <= _MOST_CHARACTERS:
        return message
    return f"{message[: _MOST_CHARACTERS - 1]}…"

"""Events, told to the API server in their order; nobody waits for it.

While the server does not answer they wait here, and the oldest are lost where there are too many.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime

from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.api import ApiServer, Refused
from winpod.node.event_series import Event, EventSeries, Telling
from winpod.node.means import utc_now
from winpod.node.pods import whole_seconds
from winpod.windows.errors import Unavailable, WinpodError

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0
_MOST_EVENTS = 1000
_log = logging.getLogger(__name__)


class EventTelling:
    """`component` is who tells, and `instance` which one of them."""

    def __init__(
        self,
        api: ApiServer,
        component: str,
        instance: str,
        clock: Callable[[], datetime] = utc_now,
        series: EventSeries | None = None,
    ) -> None:
        self._api = api
        self._component = component
        self._instance = instance
        self._clock = clock
        self._series = series or EventSeries()
        self._waiting: deque[Telling] = deque(maxlen=_MOST_EVENTS)
        self._has_some = asyncio.Event()

    def tell(self, event: Event) -> None:
        if telling := self._series.take(event, self._clock()):
            self._waiting.append(telling)
            self._has_some.set()

    async def run(self) -> None:
        wait = _FIRST_WAIT
        while True:
            await self._has_some.wait()
            while self._waiting:
                telling = self._waiting[0]
                try:
                    async with self._api.event_turns:
                        await self._tell(telling)
                    wait = _FIRST_WAIT
                except Unavailable:
                    is_back = await self._api.pause(wait)
                    wait = _FIRST_WAIT if is_back else min(wait * 2, _LONGEST_WAIT)
                    continue
                except WinpodError as error:
                    _log.info("the event %s was not taken: %s", telling.event.reason, error)
                if self._waiting and self._waiting[0] is telling:
                    self._waiting.popleft()
            self._has_some.clear()

    async def _tell(self, telling: Telling) -> None:
        namespace = telling.event.subject.namespace or "default"
        path = f"/api/v1/namespaces/{namespace}/events"
        if telling.count > 1:
            counted = {
                "count": telling.count,
                "lastTimestamp": whole_seconds(telling.last),
                "message": telling.event.message,
            }
            try:
                await self._api.patch(v1.Event, f"{path}/{telling.name}", counted)
            except Refused as error:
                if not error.is_missing:
                    raise
            else:
                return
        await self._api.create(path, self._object(telling, namespace))

    def _object(self, telling: Telling, namespace: str) -> v1.Event:
        event, subject = telling.event, telling.event.subject
        return v1.Event(
            metadata=ObjectMeta(name=telling.name, namespace=namespace),
            involvedObject=v1.ObjectReference(
                apiVersion=subject.api_version,
                kind=subject.kind,
                namespace=subject.namespace or None,
                name=subject.name,
                uid=subject.uid,
                resourceVersion=subject.version or None,
                fieldPath=subject.field or None,
            ),
            type=event.kind,
            reason=event.reason,
            message=event.message,
            count=telling.count,
            firstTimestamp=whole_seconds(telling.first),
            lastTimestamp=whole_seconds(telling.last),
            source=v1.EventSource(component=self._component, host=self._instance),
            reportingComponent=self._component,
            reportingInstance=self._instance,
        )

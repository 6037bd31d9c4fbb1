"""Watches the operator's settings in its ConfigMap.

Invalid settings are reported and the last valid ones stay in effect. Without earlier valid ones the
operator stays unsynced: defaults apply only if there is no ConfigMap, never if it is invalid.
Deleting the ConfigMap changes nothing, since that also happens when the operator is uninstalled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from winpod.errors import InvalidInput
from winpod.k8s.client import ApiClient
from winpod.k8s.event_recorder import Event, ObjectReference
from winpod.k8s.informer import Reflector
from winpod.k8s.models import core_v1 as v1
from winpod.labels import OPERATOR_CONFIG_MAP
from winpod.operator.settings import CONFIG_KEY, OperatorSettings, read_settings

_log = logging.getLogger(__name__)


class SettingsWatcher:
    """`now` is valid once synced. `problem` is what is wrong with the latest settings, or empty."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.now = OperatorSettings()
        self.problem = ""
        self.namespace = namespace
        self._synced = asyncio.Event()
        self._existed = False
        self._subscribers: list[asyncio.Event] = []
        self._reflector = Reflector(
            api,
            v1.ConfigMap,
            f"/api/v1/namespaces/{namespace}/configmaps",
            self,
            {"fieldSelector": f"metadata.name={OPERATOR_CONFIG_MAP}"},
        )

    async def run(self) -> None:
        await self._reflector.run()

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def is_unusable(self) -> bool:
        """Whether the settings are invalid and there are no earlier valid ones."""
        return bool(self.problem) and not self.is_synced

    async def wait_read(self) -> None:
        """Wait until the settings were read, valid or not."""
        await self._reflector.is_known.wait()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def subscribe(self, wake: asyncio.Event | None = None) -> asyncio.Event:
        """Return an event that is set when settings or problem change; the waiter clears it."""
        self._subscribers.append(event := wake or asyncio.Event())
        return event

    async def on_list(self, objects: Sequence[v1.ConfigMap]) -> None:
        for config_map in objects:
            self.on_change(config_map)
        if objects:
            return
        if self._existed:
            self._reject_deleted()
        else:
            self._apply("")

    def on_change(self, obj: v1.ConfigMap) -> None:
        self._existed = True
        self._apply((obj.data or {}).get(CONFIG_KEY, ""))

    def on_delete(self, obj: v1.ConfigMap) -> None:
        del obj
        self._reject_deleted()

    def _apply(self, text: str) -> None:
        try:
            new = read_settings(text)
        except InvalidInput as error:
            self._reject(f"{CONFIG_KEY}: {error}")
            return
        if self.is_synced and not self.problem and new == self.now:
            return
        if new != self.now:
            _log.info("Settings changed")
        self.now, self.problem = new, ""
        self._synced.set()
        self._wake()

    def _reject_deleted(self) -> None:
        self._reject(
            f"The ConfigMap {OPERATOR_CONFIG_MAP} was deleted; create an empty one for defaults."
        )

    def _reject(self, reason: str) -> None:
        effect = (
            "The previous settings stay in effect."
            if self.is_synced
            else "The operator does nothing until they are valid."
        )
        self.problem = f"{reason} {effect}"
        _log.warning("Invalid settings: %s", self.problem)
        self._wake()

    def _wake(self) -> None:
        for event in self._subscribers:
            event.set()


class SettingsEventReporter:
    """Records invalid settings as events of the ConfigMap.

    Run by the leader, and by replicas that cannot lead because they have no valid settings.
    """

    def __init__(self, settings: SettingsWatcher, record_event: Callable[[Event], None]) -> None:
        self._settings = settings
        self._record_event = record_event
        self._reported = ""
        self._changed = settings.subscribe()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            problem = self._settings.problem
            if problem and problem != self._reported:
                subject = ObjectReference(
                    "ConfigMap", self._settings.namespace, OPERATOR_CONFIG_MAP, ""
                )
                self._record_event(Event(subject, "Warning", "SettingsNotUsed", problem))
            self._reported = problem
            await self._changed.wait()

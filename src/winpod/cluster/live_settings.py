"""The settings as they are now: of the operator's ConfigMap, as people change it.

Settings that cannot be used are told, and those that were good last stay. Where none were, nothing
is known: the defaults are for a cluster without the ConfigMap, never for one with a mistake in it.
One that is deleted changes nothing either, since that is also how an operator is taken away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from lightkube.models import core_v1 as v1

from winpod.cluster.settings import CONFIG_KEY, CONFIG_MAP, Settings, read_settings
from winpod.node.api import ApiServer
from winpod.node.event_series import Event, Subject
from winpod.node.following import Following
from winpod.windows.errors import InvalidInput

_log = logging.getLogger(__name__)


class LiveSettings:
    """`now` counts once they are known. `problem` is what is wrong with the newest, or empty."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self.now = Settings()
        self.problem = ""
        self.namespace = namespace
        self._known = asyncio.Event()
        self._was_there = False
        self._subscribers: list[asyncio.Event] = []
        self._following = Following(
            api,
            v1.ConfigMap,
            f"/api/v1/namespaces/{namespace}/configmaps",
            self,
            {"fieldSelector": f"metadata.name={CONFIG_MAP}"},
        )

    async def run(self) -> None:
        await self._following.run()

    @property
    def is_known(self) -> bool:
        return self._known.is_set()

    @property
    def is_unusable(self) -> bool:
        """There are some, and none that were good: somebody has to write them first."""
        return bool(self.problem) and not self.is_known

    async def until_read(self) -> None:
        """Whether they can be used or not."""
        await self._following.is_known.wait()

    async def until_known(self) -> None:
        await self._known.wait()

    def subscribe(self, wake: asyncio.Event | None = None) -> asyncio.Event:
        """Set whenever they have changed, or cannot; whoever waits for it clears it."""
        self._subscribers.append(event := wake or asyncio.Event())
        return event

    async def listed(self, objects: Sequence[v1.ConfigMap]) -> None:
        for config_map in objects:
            self.changed(config_map)
        if objects:
            return
        if self._was_there:
            self._miss()
        else:
            self._take("")

    def changed(self, obj: v1.ConfigMap) -> None:
        self._was_there = True
        self._take((obj.data or {}).get(CONFIG_KEY, ""))

    def deleted(self, obj: v1.ConfigMap) -> None:
        del obj
        self._miss()

    def _take(self, text: str) -> None:
        try:
            new = read_settings(text)
        except InvalidInput as error:
            self._refuse(f"{CONFIG_KEY}: {error}")
            return
        if self.is_known and not self.problem and new == self.now:
            return
        if new != self.now:
            _log.info("the settings have changed")
        self.now, self.problem = new, ""
        self._known.set()
        self._wake()

    def _miss(self) -> None:
        self._refuse(f"The ConfigMap {CONFIG_MAP} was deleted; an empty one has the defaults.")

    def _refuse(self, why: str) -> None:
        until = "The settings before it stay." if self.is_known else "Nothing is done until then."
        self.problem = f"{why} {until}"
        _log.warning("the settings cannot be used: %s", self.problem)
        self._wake()

    def _wake(self) -> None:
        for event in self._subscribers:
            event.set()


class SettingsProblems:
    """Told as events of the ConfigMap, by who leads, and by who cannot for want of settings."""

    def __init__(self, settings: LiveSettings, tell: Callable[[Event], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._told = ""
        self._changed = settings.subscribe()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            problem = self._settings.problem
            if problem and problem != self._told:
                subject = Subject("ConfigMap", self._settings.namespace, CONFIG_MAP, "")
                self._tell(Event(subject, "Warning", "SettingsNotUsed", problem))
            self._told = problem
            await self._changed.wait()

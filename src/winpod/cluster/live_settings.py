"""The settings as they are now: of the operator's ConfigMap, as people change it, or of a file.

Settings that cannot be used are told, and those that were good last stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from lightkube.models import core_v1 as v1

from winpod.cluster.settings import CONFIG_KEY, CONFIG_MAP, Settings, read_settings
from winpod.node.api import ApiServer
from winpod.node.following import Following
from winpod.windows.errors import InvalidInput

_log = logging.getLogger(__name__)


class LiveSettings:
    """`problem` is what is wrong with the newest ones, empty where nothing is."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self.now = Settings()
        self.problem = ""
        self.namespace = namespace
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
        return self._following.is_known.is_set()

    async def until_known(self) -> None:
        await self._following.is_known.wait()

    def subscribe(self, wake: asyncio.Event | None = None) -> asyncio.Event:
        """Set whenever they have changed, or cannot; whoever waits for it clears it."""
        self._subscribers.append(event := wake or asyncio.Event())
        return event

    async def listed(self, objects: Sequence[v1.ConfigMap]) -> None:
        if not objects:
            self._take("")
        for config_map in objects:
            self.changed(config_map)

    def changed(self, obj: v1.ConfigMap) -> None:
        self._take((obj.data or {}).get(CONFIG_KEY, ""))

    def deleted(self, obj: v1.ConfigMap) -> None:
        del obj
        self._take("")

    def _take(self, text: str) -> None:
        try:
            new = read_settings(text)
        except InvalidInput as error:
            self.problem = f"{CONFIG_KEY}: {error} The settings before it stay."
            _log.warning("the settings cannot be used: %s", self.problem)
        else:
            self.problem = ""
            if new == self.now:
                return
            self.now = new
            _log.info("the settings have changed")
        for event in self._subscribers:
            event.set()

"""The cluster as one look finds it: read once for all the steps that are taken together."""

from __future__ import annotations

import asyncio

from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.plan import Plan, Scene
from winpod.cluster.upgrade.survey import Survey


class Look:
    def __init__(self, survey: Survey, asked: Asked) -> None:
        self._survey = survey
        self._asked = asked
        self._lock = asyncio.Lock()
        self._scene: Scene | None = None
        self._plan: Plan | None = None

    async def scene(self) -> Scene:
        async with self._lock:
            return await self._scene_once()

    async def plan(self) -> tuple[Scene, Plan]:
        async with self._lock:
            scene = await self._scene_once()
            if self._plan is None:
                self._plan = await self._survey.plan(self._asked, scene)
            return scene, self._plan

    async def _scene_once(self) -> Scene:
        if self._scene is None:
            self._scene = await self._survey.scene(self._asked)
        return self._scene

"""Objects of the API server as plain data; what is gone is None, and nobody's fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from winpod.node.api import ApiServer, Refused

MERGE = "application/merge-patch+json"


class Objects:
    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def get(self, path: str) -> dict[str, Any] | None:
        return await self._asked("GET", path)

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is there then."""
        return await self._asked("PATCH", path, body)

    async def merge_into(
        self, path: str, there: Mapping[str, Any], body: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Only if it is still as it was read; else the API server refuses with a conflict."""
        metadata = body.get("metadata", {})
        version = {"resourceVersion": there["metadata"]["resourceVersion"]}
        return await self.merge(path, {**body, "metadata": {**metadata, **version}})

    async def create(self, path: str, obj: Mapping[str, Any]) -> None:
        await self._api.request("POST", path, obj)

    async def replace(self, path: str, obj: Mapping[str, Any]) -> None:
        await self._api.request("PUT", path, obj)

    async def delete(self, path: str, there: Mapping[str, Any]) -> None:
        """This one, and none of its name that was made since."""
        try:
            await self._api.delete(path, {"preconditions": {"uid": there["metadata"]["uid"]}})
        except Refused as error:
            if not error.is_missing:
                raise

    async def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        content = MERGE if method == "PATCH" else "application/json"
        try:
            answer = await self._api.request(method, path, body, content=content)
        except Refused as error:
            if error.is_missing:
                return None
            raise
        found: dict[str, Any] = json.loads(answer)
        return found

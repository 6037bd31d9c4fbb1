"""Pull secrets of pods: read on demand and cached for a minute, never watched."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.models import core_v1 as v1

_TTL_SECONDS = 60.0
_MAX_CACHED = 1000
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class PullSecrets:
    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._cache: dict[str, tuple[float, asyncio.Future[msgspec.Struct | None]]] = {}

    async def find(
        self, namespace: str, names: Sequence[str], service_account: str = ""
    ) -> list[Mapping[str, Any]]:
        """Return the secrets a pod names, else those of its service account; skip missing ones.

        Names are unvalidated user input: one that is not a valid object name could escape the
        namespace in the request path, so it is ignored.
        """
        if not _NAME.fullmatch(namespace):
            return []
        if not names and _NAME.fullmatch(service_account):
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}"
            account = await self._get(v1.ServiceAccount, path)
            if isinstance(account, v1.ServiceAccount):
                names = [ref.name for ref in account.imagePullSecrets or () if ref.name]
        paths = [
            f"/api/v1/namespaces/{namespace}/secrets/{name}"
            for name in names
            if _NAME.fullmatch(name)
        ]
        secrets = await asyncio.gather(*(self._get(v1.Secret, path) for path in paths))
        return [secret.to_dict() for secret in secrets if isinstance(secret, v1.Secret)]

    async def _get(self, kind: type[msgspec.Struct], path: str) -> msgspec.Struct | None:
        """Get an object. Concurrent requests share one call, also if it fails."""
        now = time.monotonic()
        cached_at, future = self._cache.get(path, (now, None))
        if future is None or now > cached_at + _TTL_SECONDS:
            future = asyncio.ensure_future(self._fetch(kind, path))
            self._cache.pop(path, None)
            self._cache[path] = (now, future)
            if len(self._cache) > _MAX_CACHED:
                del self._cache[next(iter(self._cache))]
        return await asyncio.shield(future)

    async def _fetch(self, kind: type[msgspec.Struct], path: str) -> msgspec.Struct | None:
        try:
            obj = await self._api.get(kind, path)
        except WinpodError:
            obj = None
        if obj is None:
            self._cache.pop(path, None)
        return obj

"""Pull secrets of pods: read when somebody asks, kept for a minute, never followed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lightkube.core.dictmixin import DictMixin
from lightkube.models import core_v1 as v1

from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError

_KEPT_SECONDS = 60.0
_REMEMBERED = 1000
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class PullSecrets:
    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._kept: dict[str, tuple[float, asyncio.Future[DictMixin | None]]] = {}

    async def of(
        self, namespace: str, names: Sequence[str], service_account: str = ""
    ) -> list[Mapping[str, Any]]:
        """Those that a pod names, else its service account's; those that are not there are not.

        Names come from whoever writes pods, before anybody has looked at them: what is not the name
        of an object could lead out of the namespace, and is no name.
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
        found = await asyncio.gather(*(self._get(v1.Secret, path) for path in paths))
        return [secret.to_dict() for secret in found if isinstance(secret, v1.Secret)]

    async def _get(self, kind: type[DictMixin], path: str) -> DictMixin | None:
        """Those who ask for the same at once wait for one answer, and share it if it is a no."""
        now = time.monotonic()
        kept_at, answer = self._kept.get(path, (now, None))
        if answer is None or now > kept_at + _KEPT_SECONDS:
            answer = asyncio.ensure_future(self._asked(kind, path))
            self._kept.pop(path, None)
            self._kept[path] = (now, answer)
            if len(self._kept) > _REMEMBERED:
                del self._kept[next(iter(self._kept))]
        return await asyncio.shield(answer)

    async def _asked(self, kind: type[DictMixin], path: str) -> DictMixin | None:
        try:
            found = await self._api.get(kind, path)
        except WinpodError:
            found = None
        if found is None:
            self._kept.pop(path, None)
        return found

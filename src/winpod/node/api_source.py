"""The cluster's objects for one node, from its API server: pods bound to it, and what they need.

Config maps and secrets are asked for and kept for a while, and asked for again when a pod comes
that may need newer ones; a node may read only those that its pods name. What there is little of
and every pod needs (services, runtime classes, the node itself) is followed. While the server does
not answer, what it answered last stays, so that containers can be started again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from lightkube.core.dictmixin import DictMixin
from lightkube.models import authentication_v1 as authentication
from lightkube.models import core_v1 as v1
from lightkube.models import node_v1

from winpod.node.api import ApiServer, Refused
from winpod.node.following import Known
from winpod.node.requests import metadata_of
from winpod.windows.errors import Unavailable

T = TypeVar("T", bound=DictMixin)
_Answer = TypeVar("_Answer")
_KEPT_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
_TOKEN_SHARE = 0.8
_DAY = 24 * 3600.0
_REMEMBERED = 1000


def of_node(name: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={name}"}


class ClusterWide:
    """What is the same for every node, followed once for all nodes of a process."""

    def __init__(self, api: ApiServer) -> None:
        self.services = Known(api, v1.Service, "/api/v1/services")
        self.classes = Known(api, node_v1.RuntimeClass, "/apis/node.k8s.io/v1/runtimeclasses")

    async def run(self) -> None:
        await asyncio.gather(self.services.run(), self.classes.run())

    async def services_in(self, namespace: str) -> list[v1.Service]:
        await self.services.wait(_PATIENCE_SECONDS)
        return self.services.of_namespace(namespace)

    async def runtime_handler(self, runtime_class: str) -> str | None:
        await self.classes.wait(_PATIENCE_SECONDS)
        found = self.classes.get("", runtime_class)
        return found.handler if found else None


Clocks = tuple[float, float]
"""One that stands still while the machine sleeps, and one that people may put forward or back."""


@dataclass(frozen=True, slots=True)
class _Token:
    """As old as the clock says by which it is older."""

    text: str
    asked_at: Clocks
    life: float

    def age(self, now: Clocks) -> float:
        return max(at - asked for at, asked in zip(now, self.asked_at, strict=True))

    def is_fresh(self, now: Clocks) -> bool:
        return self.age(now) < min(self.life * _TOKEN_SHARE, _DAY)

    def is_good(self, now: Clocks) -> bool:
        return self.age(now) < self.life


def _clocks() -> Clocks:
    return time.monotonic(), time.time()


class ApiObjects:
    def __init__(
        self,
        api: ApiServer,
        name: str,
        cluster: ClusterWide,
        clocks: Callable[[], Clocks] = _clocks,
    ) -> None:
        self._api = api
        self._clocks = clocks
        self._name = name
        self._cluster = cluster
        self._node = Known(
            api, v1.Node, "/api/v1/nodes", {"fieldSelector": f"metadata.name={name}"}
        )
        self._kept: dict[str, tuple[float, Awaitable[DictMixin | None]]] = {}
        self._last: dict[str, DictMixin] = {}
        self._tokens: dict[tuple[str, ...], _Token] = {}

    async def run(self) -> None:
        await self._node.run()

    def forget(self, namespace: str) -> None:
        """A pod has come, and may name what has changed since it was asked for."""
        prefix = f"/api/v1/namespaces/{namespace}/"
        for path in [path for path in self._kept if path.startswith(prefix)]:
            del self._kept[path]

    def forget_pod(self, uid: str) -> None:
        for key in [key for key in self._tokens if key[-1] == uid]:
            del self._tokens[key]

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        return await self._kept_or(path, v1.ConfigMap)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return await self._kept_or(f"/api/v1/namespaces/{namespace}/secrets/{name}", v1.Secret)

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None:
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        return await self._get(path, v1.PersistentVolumeClaim)

    async def volume(self, name: str) -> v1.PersistentVolume | None:
        return await self._get(f"/api/v1/persistentvolumes/{name}", v1.PersistentVolume)

    async def services(self, namespace: str) -> list[v1.Service]:
        return await self._cluster.services_in(namespace)

    async def runtime_handler(self, runtime_class: str) -> str | None:
        return await self._cluster.runtime_handler(runtime_class)

    async def node(self) -> v1.Node | None:
        await self._node.wait(_PATIENCE_SECONDS)
        return self._node.get("", self._name)

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        """Kept until most of its life is over, or a day; longer only if there is no other."""
        uid = metadata_of(pod).uid or ""
        key = (namespace, service_account, audience, str(seconds), uid)
        known = self._tokens.get(key)
        if known and known.is_fresh(self._clocks()):
            return known.text
        try:
            new = await self._new_token(namespace, service_account, audience, seconds, pod)
        except Unavailable:
            if known and known.is_good(self._clocks()):
                return known.text
            raise
        self._tokens[key] = new
        return new.text

    async def _new_token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> _Token:
        metadata = metadata_of(pod)
        asked = authentication.TokenRequest(
            spec=authentication.TokenRequestSpec(
                audiences=[audience] if audience else [],
                expirationSeconds=seconds,
                boundObjectRef=authentication.BoundObjectReference(
                    apiVersion="v1", kind="Pod", name=metadata.name, uid=metadata.uid
                ),
            )
        )
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        asked_at = self._clocks()
        answer = await self._unless_forbidden(lambda: self._api.create(path, asked))
        if answer.status is None or not answer.status.token:
            raise Unavailable(f"{path} was answered with no token.")
        life = (answer.spec and answer.spec.expirationSeconds) or seconds
        return _Token(answer.status.token, asked_at, float(life))

    async def _kept_or(self, path: str, kind: type[T]) -> T | None:
        """Those who ask for the same at once wait for one answer; only what is there is kept."""
        kept_at, answer = self._kept.get(path, (0.0, None))
        if answer is None or time.monotonic() > kept_at + _KEPT_SECONDS:
            answer = asyncio.ensure_future(self._get(path, kind))
            self._kept[path] = (time.monotonic(), answer)
        found = None
        try:
            found = await asyncio.shield(answer)
        finally:
            if found is None and self._kept.get(path, (0.0, None))[1] is answer:
                del self._kept[path]
        return found if isinstance(found, kind) else None

    async def _get(self, path: str, kind: type[T]) -> T | None:
        return await self._unless_forbidden(lambda: self._asked(path, kind))

    async def _asked(self, path: str, kind: type[T]) -> T | None:
        try:
            found = await self._api.get(kind, path)
        except Unavailable:
            last = self._last.get(path)
            if not isinstance(last, kind):
                raise
            found = last
        self._last.pop(path, None)
        if found is not None:
            self._last[path] = found
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        return found

    async def _unless_forbidden(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The server learns a moment after us which objects a new pod of ours names."""
        try:
            return await ask()
        except Refused as error:
            if error.is_forbidden:
                raise Unavailable(error.sentence) from None
            raise

"""API objects that a node needs: pods bound to it, and the objects they refer to.

ConfigMaps and Secrets are fetched on demand and cached briefly, since a node may read only those
its pods refer to; the cache is invalidated when a new pod arrives. Services, RuntimeClasses and the
Node itself are watched. While the server is unreachable, the last answer is used, so that
containers can be restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from winpod.errors import Unavailable
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.informer import Informer
from winpod.k8s.models import authentication_v1 as authentication
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models import node_v1
from winpod.k8s.pods import metadata_of

T = TypeVar("T", bound=msgspec.Struct)
_Answer = TypeVar("_Answer")
_CACHE_SECONDS = 60.0
_SYNC_TIMEOUT = 10.0
_TOKEN_SHARE = 0.8
_DAY = 24 * 3600.0
_MAX_REMEMBERED = 1000


def pods_of_node_selector(name: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={name}"}


class ClusterInformers:
    """Informers for objects that all nodes of a process share."""

    def __init__(self, api: ApiClient) -> None:
        self.services = Informer(api, v1.Service, "/api/v1/services")
        self.classes = Informer(api, node_v1.RuntimeClass, "/apis/node.k8s.io/v1/runtimeclasses")

    async def run(self) -> None:
        await asyncio.gather(self.services.run(), self.classes.run())

    async def services_in(self, namespace: str) -> list[v1.Service]:
        await self.services.wait_synced(_SYNC_TIMEOUT)
        return self.services.list_namespace(namespace)

    async def runtime_handler(self, runtime_class: str) -> str | None:
        await self.classes.wait_synced(_SYNC_TIMEOUT)
        runtime_class_object = self.classes.get("", runtime_class)
        return runtime_class_object.handler if runtime_class_object else None


Clocks = tuple[float, float]
"""A monotonic clock, which stops during suspend, and the wall clock, which may be set."""


@dataclass(frozen=True, slots=True)
class _CachedToken:
    """A service account token. Its age is the greater of the two clocks' readings."""

    text: str
    requested_at: Clocks
    lifetime: float

    def age(self, now: Clocks) -> float:
        return max(at - start for at, start in zip(now, self.requested_at, strict=True))

    def is_fresh(self, now: Clocks) -> bool:
        return self.age(now) < min(self.lifetime * _TOKEN_SHARE, _DAY)

    def is_valid(self, now: Clocks) -> bool:
        return self.age(now) < self.lifetime


def _clocks() -> Clocks:
    return time.monotonic(), time.time()


class ApiObjectSource:
    def __init__(
        self,
        api: ApiClient,
        name: str,
        cluster: ClusterInformers,
        clocks: Callable[[], Clocks] = _clocks,
    ) -> None:
        self._api = api
        self._clocks = clocks
        self._name = name
        self._cluster = cluster
        self._node = Informer(
            api, v1.Node, "/api/v1/nodes", {"fieldSelector": f"metadata.name={name}"}
        )
        self._cache: dict[str, tuple[float, Awaitable[msgspec.Struct | None]]] = {}
        self._last: dict[str, msgspec.Struct] = {}
        self._tokens: dict[tuple[str, ...], _CachedToken] = {}

    async def run(self) -> None:
        await self._node.run()

    def invalidate_namespace(self, namespace: str) -> None:
        """Drop cached objects of a namespace, because a new pod may need newer ones."""
        prefix = f"/api/v1/namespaces/{namespace}/"
        for path in [path for path in self._cache if path.startswith(prefix)]:
            del self._cache[path]

    def invalidate_pod(self, uid: str) -> None:
        for key in [key for key in self._tokens if key[-1] == uid]:
            del self._tokens[key]

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        return await self._cached(path, v1.ConfigMap)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return await self._cached(f"/api/v1/namespaces/{namespace}/secrets/{name}", v1.Secret)

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
        await self._node.wait_synced(_SYNC_TIMEOUT)
        return self._node.get("", self._name)

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        """Return a cached or new token.

        Tokens are refreshed at 80% of their lifetime or after a day; an older one is used only
        while the server is unreachable.
        """
        uid = metadata_of(pod).uid or ""
        key = (namespace, service_account, audience, str(seconds), uid)
        cached = self._tokens.get(key)
        if cached and cached.is_fresh(self._clocks()):
            return cached.text
        try:
            new = await self._new_token(namespace, service_account, audience, seconds, pod)
        except Unavailable:
            if cached and cached.is_valid(self._clocks()):
                return cached.text
            raise
        self._tokens[key] = new
        return new.text

    async def _new_token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> _CachedToken:
        metadata = metadata_of(pod)
        request = authentication.TokenRequest(
            spec=authentication.TokenRequestSpec(
                audiences=[audience] if audience else [],
                expirationSeconds=seconds,
                boundObjectRef=authentication.BoundObjectReference(
                    apiVersion="v1", kind="Pod", name=metadata.name, uid=metadata.uid
                ),
            )
        )
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        requested_at = self._clocks()
        answer = await self._unless_forbidden(lambda: self._api.create(path, request))
        if answer.status is None or not answer.status.token:
            raise Unavailable(f"The API server returned no token for {path}.")
        lifetime = (answer.spec and answer.spec.expirationSeconds) or seconds
        return _CachedToken(answer.status.token, requested_at, float(lifetime))

    async def _cached(self, path: str, kind: type[T]) -> T | None:
        """Return the cached object or fetch it. Concurrent calls share one request.

        Missing objects are not cached.
        """
        cached_at, answer = self._cache.get(path, (0.0, None))
        if answer is None or time.monotonic() > cached_at + _CACHE_SECONDS:
            answer = asyncio.ensure_future(self._get(path, kind))
            self._cache[path] = (time.monotonic(), answer)
        obj = None
        try:
            obj = await asyncio.shield(answer)
        finally:
            if obj is None and self._cache.get(path, (0.0, None))[1] is answer:
                del self._cache[path]
        return obj if isinstance(obj, kind) else None

    async def _get(self, path: str, kind: type[T]) -> T | None:
        return await self._unless_forbidden(lambda: self._fetch(path, kind))

    async def _fetch(self, path: str, kind: type[T]) -> T | None:
        try:
            obj = await self._api.get(kind, path)
        except Unavailable:
            last = self._last.get(path)
            if not isinstance(last, kind):
                raise
            obj = last
        self._last.pop(path, None)
        if obj is not None:
            self._last[path] = obj
        if len(self._last) > _MAX_REMEMBERED:
            del self._last[next(iter(self._last))]
        return obj

    async def _unless_forbidden(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Map Forbidden to Unavailable.

        The node authorizer learns of a new pod's references slightly later than the node.
        """
        try:
            return await call()
        except ApiError as error:
            if error.is_forbidden:
                raise Unavailable(error.message) from None
            raise

"""Authentication and authorization of requests by the API server, as in the kubelet.

A client presents a certificate of the cluster's CA, or a token that a TokenReview verifies. A
SubjectAccessReview for a subresource of the node authorizes the request. Results are cached.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import hdrs, web

from winpod.concurrency import TtlCache
from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.models import authentication_v1, authorization_v1

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_AUTHENTICATED = "system:authenticated"
_TOKEN_CACHE_SECONDS = 120.0
_ALLOWED_CACHE_SECONDS = 300.0
_DENIED_CACHE_SECONDS = 30.0
_VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCES = {
    "/stats": ("stats",),
    "/metrics": ("metrics",),
    "/logs": ("log",),
    "/checkpoint": ("checkpoint",),
    "/pods": ("pods", "proxy"),
    "/runningpods": ("pods", "proxy"),
    "/healthz": ("healthz", "proxy"),
    "/configz": ("configz", "proxy"),
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UserInfo:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """Verb and node subresources of a request; access to one of them suffices."""

    verb: str
    subresources: tuple[str, ...]


def request_attributes(method: str, path: str) -> RequestAttributes:
    """Map a request to subresources. Logs, streams and other paths are the node's proxy."""
    for start, subresources in _SUBRESOURCES.items():
        if path == start or path.startswith(f"{start}/"):
            return RequestAttributes(_VERBS.get(method, ""), subresources)
    return RequestAttributes(_VERBS.get(method, ""), ("proxy",))


def user_of_certificate(certificate: Mapping[str, Any]) -> UserInfo | None:
    """Return the user: the common name, with each organization as a group."""
    parts = [pair for names in certificate.get("subject", ()) for pair in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    groups = (value for key, value in parts if key == "organizationName")
    return UserInfo(name, (*groups, _AUTHENTICATED)) if name else None


class RequestAuthorizer(Protocol):
    async def authorize(self, request: web.Request) -> None:
        """Raise the HTTP response for a client that is not authorized."""


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """Attributes of a SubjectAccessReview, for all namespaces."""

    verb: str
    resource: str
    subresource: str = ""
    name: str = ""


class AccessReviewer:
    """Reviews tokens and access with the API server, and caches the results."""

    def __init__(self, server: ApiClient) -> None:
        self._server = server
        self._users: TtlCache[Hashable, UserInfo | None] = TtlCache()
        self._allowed: TtlCache[Hashable, bool] = TtlCache()

    async def user(self, request: web.Request) -> UserInfo | None:
        """Return the authenticated user, or None."""
        certificate = request.get_extra_info("peercert")
        if certificate and (user := user_of_certificate(certificate)):
            return user
        token = bearer_token(request)
        return await self._user_of_token(token) if token else None

    async def _user_of_token(self, token: str) -> UserInfo | None:
        key = hashlib.sha256(token.encode()).digest()
        if key in self._users:
            return self._users[key]
        review = authentication_v1.TokenReview(
            apiVersion="authentication.k8s.io/v1",
            kind="TokenReview",
            spec=authentication_v1.TokenReviewSpec(token=token),
        )
        try:
            status = (await self._server.create(TOKEN_REVIEWS, review)).status
        except WinpodError as error:
            _log.warning("TokenReview failed: %s", error)
            return None
        user = _user_of_review(status.user) if status and status.authenticated else None
        self._users.put(key, user, _TOKEN_CACHE_SECONDS)
        return user

    async def is_allowed(self, user: UserInfo, access: AccessRequest) -> bool:
        key = (user, access)
        if key in self._allowed:
            return self._allowed[key]
        spec = authorization_v1.SubjectAccessReviewSpec(
            user=user.name,
            groups=list(user.groups),
            uid=user.uid or None,
            extra={name: list(values) for name, values in user.extra} or None,
            resourceAttributes=authorization_v1.ResourceAttributes(
                verb=access.verb,
                version="v1",
                resource=access.resource,
                subresource=access.subresource or None,
                name=access.name or None,
            ),
        )
        review = authorization_v1.SubjectAccessReview(
            apiVersion="authorization.k8s.io/v1", kind="SubjectAccessReview", spec=spec
        )
        status = (await self._server.create(ACCESS_REVIEWS, review)).status
        allowed = bool(status and status.allowed)
        self._allowed.put(
            key, allowed, _ALLOWED_CACHE_SECONDS if allowed else _DENIED_CACHE_SECONDS
        )
        return allowed


def bearer_token(request: web.Request) -> str:
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class ApiServerAuthorizer:
    """Authorizes requests to the kubelet API.

    With `anonymous`, requests without credentials are made by the user system:anonymous.
    """

    def __init__(self, server: ApiClient, node: str, *, anonymous: bool = False) -> None:
        self._reviewer = AccessReviewer(server)
        self._node = node
        self._anonymous = anonymous

    async def authorize(self, request: web.Request) -> None:
        user = await self._reviewer.user(request)
        if user is None and self._anonymous and not bearer_token(request):
            user = ANONYMOUS
        if user is None:
            raise web.HTTPUnauthorized(text="Unauthorized")
        attributes = request_attributes(request.method, request.path)
        detail = f"user={user.name}, verb={attributes.verb}, resource=nodes"
        detail += f", subresource(s)=[{' '.join(attributes.subresources)}]"
        try:
            for subresource in attributes.subresources:
                access = AccessRequest(attributes.verb, "nodes", subresource, self._node)
                if await self._reviewer.is_allowed(user, access):
                    return
        except WinpodError as error:
            _log.warning("SubjectAccessReview for user %s failed: %s", user.name, error)
            raise web.HTTPInternalServerError(text=f"Authorization error ({detail})") from None
        raise web.HTTPForbidden(text=f"Forbidden ({detail})")


def _user_of_review(user: authentication_v1.UserInfo | None) -> UserInfo | None:
    if user is None or not user.username:
        return None
    extra: Mapping[str, Sequence[str]] = user.extra or {}
    return UserInfo(
        user.username,
        tuple(user.groups or ()),
        user.uid or "",
        tuple((name, tuple(values)) for name, values in extra.items()),
    )

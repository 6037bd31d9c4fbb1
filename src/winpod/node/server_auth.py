"""Who asks the node's API, and whether they may: both are the API server's to say.

A client shows a certificate of the cluster's authority or a token, which a TokenReview knows. What
it may do is a question about a subresource of the node, as a kubelet puts it, which a
SubjectAccessReview answers. Answers are kept for a while.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import hdrs, web
from lightkube.models import authentication_v1, authorization_v1

from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_AUTHENTICATED = "system:authenticated"
_KNOWN_SECONDS = 120.0
_ALLOWED_SECONDS = 300.0
_DENIED_SECONDS = 30.0
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
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of the node: one of the subresources suffices."""

    verb: str
    subresources: tuple[str, ...]


def wish_of(method: str, path: str) -> Wish:
    """Logs, streams and whatever is not a matter of its own are the node's proxy."""
    for start, subresources in _SUBRESOURCES.items():
        if path == start or path.startswith(f"{start}/"):
            return Wish(_VERBS.get(method, ""), subresources)
    return Wish(_VERBS.get(method, ""), ("proxy",))


def user_of_certificate(certificate: Mapping[str, Any]) -> User | None:
    """The name is the common name, and every organization a group."""
    parts = [pair for names in certificate.get("subject", ()) for pair in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    groups = (value for key, value in parts if key == "organizationName")
    return User(name, (*groups, _AUTHENTICATED)) if name else None


class Gate(Protocol):
    async def admit(self, request: web.Request) -> None:
        """Raises what is answered instead to a client that may not."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody would do, as a SubjectAccessReview has it; in every namespace."""

    verb: str
    resource: str
    subresource: str = ""
    name: str = ""


class Reviews:
    """What the API server says of those who ask. Answers are kept for a while."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._users: _Kept[User | None] = _Kept()
        self._allowed: _Kept[bool] = _Kept()

    async def user(self, request: web.Request) -> User | None:
        """None for one who shows nothing, or nothing that is good."""
        certificate = request.get_extra_info("peercert")
        if certificate and (user := user_of_certificate(certificate)):
            return user
        token = shown_token(request)
        return await self._user_of_token(token) if token else None

    async def _user_of_token(self, token: str) -> User | None:
        key = hashlib.sha256(token.encode()).digest()
        if key in self._users:
            return self._users[key]
        asked = authentication_v1.TokenReview(
            apiVersion="authentication.k8s.io/v1",
            kind="TokenReview",
            spec=authentication_v1.TokenReviewSpec(token=token),
        )
        try:
            status = (await self._server.create(TOKEN_REVIEWS, asked)).status
        except WinpodError as error:
            _log.warning("a token cannot be reviewed: %s", error)
            return None
        user = _user_of_review(status.user) if status and status.authenticated else None
        self._users.keep(key, user, _KNOWN_SECONDS)
        return user

    async def may(self, user: User, deed: Deed) -> bool:
        key = (user, deed)
        if key in self._allowed:
            return self._allowed[key]
        spec = authorization_v1.SubjectAccessReviewSpec(
            user=user.name,
            groups=list(user.groups),
            uid=user.uid or None,
            extra={name: list(values) for name, values in user.extra} or None,
            resourceAttributes=authorization_v1.ResourceAttributes(
                verb=deed.verb,
                version="v1",
                resource=deed.resource,
                subresource=deed.subresource or None,
                name=deed.name or None,
            ),
        )
        asked = authorization_v1.SubjectAccessReview(
            apiVersion="authorization.k8s.io/v1", kind="SubjectAccessReview", spec=spec
        )
        status = (await self._server.create(ACCESS_REVIEWS, asked)).status
        allowed = bool(status and status.allowed)
        self._allowed.keep(key, allowed, _ALLOWED_SECONDS if allowed else _DENIED_SECONDS)
        return allowed


def shown_token(request: web.Request) -> str:
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class ApiGate:
    """`anonymous` lets those that show nothing ask as a user of that name."""

    def __init__(self, server: ApiServer, node: str, *, anonymous: bool = False) -> None:
        self._reviews = Reviews(server)
        self._node = node
        self._anonymous = anonymous

    async def admit(self, request: web.Request) -> None:
        user = await self._reviews.user(request)
        if user is None and self._anonymous and not shown_token(request):
            user = ANONYMOUS
        if user is None:
            raise web.HTTPUnauthorized(text="Unauthorized")
        wish = wish_of(request.method, request.path)
        words = f"user={user.name}, verb={wish.verb}, resource=nodes"
        words += f", subresource(s)=[{' '.join(wish.subresources)}]"
        try:
            for subresource in wish.subresources:
                deed = Deed(wish.verb, "nodes", subresource, self._node)
                if await self._reviews.may(user, deed):
                    return
        except WinpodError as error:
            _log.warning("%s cannot be authorized: %s", user.name, error)
            raise web.HTTPInternalServerError(text=f"Authorization error ({words})") from None
        raise web.HTTPForbidden(text=f"Forbidden ({words})")


def _user_of_review(user: authentication_v1.UserInfo | None) -> User | None:
    if user is None or not user.username:
        return None
    extra: Mapping[str, Sequence[str]] = user.extra or {}
    return User(
        user.username,
        tuple(user.groups or ()),
        user.uid or "",
        tuple((name, tuple(values)) for name, values in extra.items()),
    )


_Answer = TypeVar("_Answer")


class _Kept(Generic[_Answer]):
    """Answers, each for its own time."""

    _MOST = 4096

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[_Answer, float]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._answers and self._answers[key][1] > time.monotonic()

    def __getitem__(self, key: Hashable) -> _Answer:
        return self._answers[key][0]

    def keep(self, key: Hashable, answer: _Answer, seconds: float) -> None:
        now = time.monotonic()
        if len(self._answers) >= self._MOST:
            self._answers = {k: kept for k, kept in self._answers.items() if kept[1] > now}
        if len(self._answers) >= self._MOST:
            self._answers.clear()
        self._answers[key] = (answer, now + seconds)

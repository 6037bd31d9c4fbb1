"""Routes of the dashboard: its three files, and the state that its script polls.

It is open to clients on loopback, and to clients with a token that may list all pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from typing import Any

from aiohttp import hdrs, web
from yarl import URL

from winpod.clock import format_timestamp, utc_now
from winpod.errors import WinpodError
from winpod.k8s.auth import AccessRequest, AccessReviewer, RequestAuthorizer
from winpod.k8s.client import ApiClient
from winpod.k8s.leader_election import LeaderElector
from winpod.operator.cluster_cache import ClusterCache
from winpod.operator.dashboard.feeds import DashboardFeeds
from winpod.operator.dashboard.state import (
    RefusedPod,
    class_rows,
    node_groups,
    pod_rows,
    refused_rows,
    upgrade_rows,
)
from winpod.operator.pod_evaluator import PodEvaluator
from winpod.operator.settings import OperatorSettings
from winpod.operator.settings_watcher import SettingsWatcher

_FILES = {
    "/": ("dashboard.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class DashboardContext:
    """What the dashboard shows. `refused` returns the pods that this replica rejected."""

    identity: str
    cache: ClusterCache
    settings: SettingsWatcher
    elector: LeaderElector
    evaluator: PodEvaluator
    feeds: DashboardFeeds
    refused: Callable[[], Iterable[RefusedPod]]


class Dashboard:
    """The dashboard with one authorizer; only the state is protected, not the static files."""

    def __init__(self, context: DashboardContext, authorizer: RequestAuthorizer) -> None:
        self._context = context
        self._authorizer = authorizer

    def routes(self) -> list[web.RouteDef]:
        return [*(web.get(path, self._file) for path in _FILES), web.get("/api/state", self._state)]

    async def _file(self, request: web.Request) -> web.Response:
        name, content = _FILES[request.path]
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=content, headers=_HEADERS)

    async def _state(self, request: web.Request) -> web.Response:
        await self._authorizer.authorize(request)
        if not self._context.cache.is_synced:
            return web.Response(status=503, text="the cache is not synced yet\n")
        state = self._build_state(request.query.get("pods", ""))
        return web.json_response(state, headers=_HEADERS)

    def _build_state(self, query: str) -> dict[str, Any]:
        context = self._context
        cache = context.cache
        refused = (*context.refused(), *context.feeds.refused())
        return {
            "at": format_timestamp(utc_now()),
            "operator": {"identity": context.identity, "leads": context.elector.is_leader},
            "problem": context.settings.problem,
            "nodes": node_groups(cache.nodes),
            "classes": class_rows(cache.classes.values(), cache.pods_using_class, cache.nodes),
            "pods": pod_rows(cache.pods, context.evaluator.verdicts(), query),
            "refused": refused_rows(refused),
            "upgrades": upgrade_rows(context.feeds.upgrades),
        }


LIST_ALL_PODS = AccessRequest("list", "pods")
_LOOPBACK_ONLY_MESSAGE = (
    "The dashboard is only served on this pod's loopback: run kubectl port-forward "
    "deploy/winpod-operator 8081 and open http://localhost:8081, or set page.authenticated to "
    "serve it here to users whose token may list pods in all namespaces.\n"
)


class LoopbackAuthorizer:
    """Authorizes requests on the loopback socket.

    The Host header must be a loopback name, which protects against DNS rebinding.
    """

    async def authorize(self, request: web.Request) -> None:
        if not _is_loopback_host(request.headers.get(hdrs.HOST, "")):
            raise web.HTTPForbidden(text="Use localhost or 127.0.0.1.\n")


class TokenAuthorizer:
    def __init__(self, api: ApiClient, settings: Callable[[], OperatorSettings]) -> None:
        self._reviews = AccessReviewer(api)
        self._settings = settings

    async def authorize(self, request: web.Request) -> None:
        if not self._settings().page_authenticated:
            raise web.HTTPForbidden(text=_LOOPBACK_ONLY_MESSAGE)
        user = await self._reviews.user(request)
        if user is None:
            raise web.HTTPUnauthorized(text="A bearer token is required.\n")
        try:
            is_allowed = await self._reviews.is_allowed(user, LIST_ALL_PODS)
        except WinpodError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if not is_allowed:
            raise web.HTTPForbidden(text=f"{user.name} may not list pods in all namespaces.\n")


def _is_loopback_host(host: str) -> bool:
    try:
        name = URL(f"http://{host}").host or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False

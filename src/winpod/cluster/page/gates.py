"""Who may see the page: whoever is on this machine, or shows a token that may list all pods."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from aiohttp import hdrs, web
from yarl import URL

from winpod.cluster.settings import Settings
from winpod.node.api import ApiServer
from winpod.node.server_auth import Deed, Reviews
from winpod.windows.errors import WinpodError

SEES_ALL_PODS = Deed("list", "pods")
_ELSEWHERE = (
    "The page is open on this pod's own loopback only: kubectl port-forward deploy/winpod-operator "
    "8081, then http://localhost:8081. The setting page.authenticated opens it here to those whose "
    "token may list pods in all namespaces.\n"
)


class LoopbackGate:
    """At a socket that only this machine reaches; a browser there may be sent by anybody.

    So a request must name this machine, which no foreign page can make a browser do.
    """

    async def admit(self, request: web.Request) -> None:
        if not _is_this_machine(request.headers.get(hdrs.HOST, "")):
            raise web.HTTPForbidden(text="Ask for localhost or 127.0.0.1.\n")


class TokenGate:
    def __init__(self, api: ApiServer, settings: Callable[[], Settings]) -> None:
        self._reviews = Reviews(api)
        self._settings = settings

    async def admit(self, request: web.Request) -> None:
        if not self._settings().page_authenticated:
            raise web.HTTPForbidden(text=_ELSEWHERE)
        user = await self._reviews.user(request)
        if user is None:
            raise web.HTTPUnauthorized(text="A token is needed.\n")
        try:
            is_allowed = await self._reviews.may(user, SEES_ALL_PODS)
        except WinpodError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if not is_allowed:
            raise web.HTTPForbidden(text=f"{user.name} may not list pods in all namespaces.\n")


def _is_this_machine(host: str) -> bool:
    try:
        name = URL(f"http://{host}").host or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False

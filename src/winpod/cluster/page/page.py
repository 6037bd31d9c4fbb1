"""The page's requests: its three files, and the state that its script asks for again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from aiohttp import web

from winpod.cluster.judging import Judging
from winpod.cluster.leading import Leading
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.page.happenings import Happenings
from winpod.cluster.page.state import (
    RefusedPod,
    class_rows,
    node_groups,
    pod_rows,
    refused_rows,
    stamp,
    upgrade_rows,
)
from winpod.cluster.view import View
from winpod.node.means import utc_now
from winpod.node.server_auth import Gate

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
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
class Sights:
    """Where the page looks. `refused` are those that this replica has refused."""

    identity: str
    view: View
    settings: LiveSettings
    leading: Leading
    judging: Judging
    happenings: Happenings
    refused: Callable[[], Iterable[RefusedPod]]


class Page:
    """At one gate: the files are open, since they tell nothing, and the state is not."""

    def __init__(self, sights: Sights, gate: Gate) -> None:
        self._sights = sights
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        return [*(web.get(path, self._file) for path in _FILES), web.get("/api/state", self._state)]

    async def _file(self, request: web.Request) -> web.Response:
        name, content = _FILES[request.path]
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=content, headers=_HEADERS)

    async def _state(self, request: web.Request) -> web.Response:
        await self._gate.admit(request)
        if not self._sights.view.is_known:
            return web.Response(status=503, text="the cluster is not known yet\n")
        state = self._told(request.query.get("pods", ""))
        return web.json_response(state, headers=_HEADERS)

    def _told(self, wanted: str) -> dict[str, Any]:
        sights = self._sights
        view = sights.view
        refused = (*sights.refused(), *sights.happenings.refused())
        return {
            "at": stamp(utc_now()),
            "operator": {"identity": sights.identity, "leads": sights.leading.is_leader},
            "problem": sights.settings.problem,
            "nodes": node_groups(view.nodes),
            "classes": class_rows(view.classes.values(), view.users, view.nodes),
            "pods": pod_rows(view.pods, sights.judging.verdicts(), wanted),
            "refused": refused_rows(refused),
            "upgrades": upgrade_rows(sights.happenings.upgrades),
        }

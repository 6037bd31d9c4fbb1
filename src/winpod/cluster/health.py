"""Whether the operator lives, and knows the cluster and its settings, for the kubelet's probes."""

from __future__ import annotations

from aiohttp import web

from winpod.cluster.leading import Leading
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.view import View


def health_routes(view: View, settings: LiveSettings, leading: Leading) -> list[web.RouteDef]:
    async def lives(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def is_ready(_: web.Request) -> web.Response:
        if settings.is_unusable:
            return web.Response(status=503, text="the settings cannot be used, see the log\n")
        if not (view.is_known and settings.is_known):
            return web.Response(status=503, text="the cluster is not known yet\n")
        return web.Response(text="leads\n" if leading.is_leader else "waits to lead\n")

    return [web.get("/healthz", lives), web.get("/readyz", is_ready)]

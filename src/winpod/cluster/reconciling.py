"""Classes and node labels of a cluster, made to be what its nodes say: the acting part."""

from __future__ import annotations

from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.view import Kind, View
from winpod.node.api import ApiServer


class Reconciling:
    def __init__(self, api: ApiServer, view: View, settings: LiveSettings) -> None:
        self._api = api
        self._view = view
        self._settings = settings

    async def run(self) -> None:
        changed = self._view.subscribe(Kind.NODE, Kind.CLASS, Kind.POD)
        while True:
            await changed.wait()
            changed.clear()

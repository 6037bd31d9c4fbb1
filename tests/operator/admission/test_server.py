"""Tests of the webhook server and of reloading its client CA."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.support.client_certificates import API_SERVERS, STRANGERS, client_certificate
from tests.support.fake_api_server import reached
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.admission.server import WebhookOptions, WebhookServer
from winpod.operator.cluster_cache import ClusterCache
from winpod.operator.settings_watcher import SettingsWatcher

NAMESPACE = "winpod-system"


class Secrets:
    """A stand-in API server that only stores Secrets."""

    def __init__(self) -> None:
        self.kept: dict[str, object] = {}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            made = await request.json()
            self.kept[f"{request.path}/{made['metadata']['name']}"] = made
            return web.json_response(made)
        found = self.kept.get(request.path)
        return web.json_response(
            found or {"message": "there is none"}, status=200 if found else 404
        )


async def test_client_ca_is_reloaded_while_listening(
    tmp_path: Path,
) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(API_SERVERS.bundle)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    async with reached(Secrets()) as api:
        webhook = WebhookServer(
            api,
            ClusterCache(api),
            SettingsWatcher(api, NAMESPACE),
            AdmissionMetrics(CollectorRegistry()),
            WebhookOptions(NAMESPACE, "127.0.0.1", port, authority),
            retry_seconds=0.05,
        )
        running = asyncio.create_task(webhook.run())
        try:
            old, new = (trusting(tmp_path, client_certificate(c)) for c in (API_SERVERS, STRANGERS))
            await until_answered(port, old)
            assert not await is_answered(port, new)
            authority.write_bytes(STRANGERS.bundle)
            await until_answered(port, new)
            assert not await is_answered(port, old)
        finally:
            running.cancel()
            await asyncio.wait((running,))


def trusting(folder: Path, shown: bytes) -> ssl.SSLContext:
    """Skip server verification, since the test is about client certificates."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    (folder / "client.pem").write_bytes(shown)
    context.load_cert_chain(folder / "client.pem")
    return context


async def until_answered(port: int, asking: ssl.SSLContext) -> None:
    deadline = time.monotonic() + 10
    while not await is_answered(port, asking):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def is_answered(port: int, asking: ssl.SSLContext) -> bool:
    connector = aiohttp.TCPConnector(ssl=asking)
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            async with session.post(
                f"https://127.0.0.1:{port}/pods/validate", data=json.dumps({})
            ) as answered:
                return answered.status == 400
        except (aiohttp.ClientError, ConnectionError):
            return False

"""Replacing certificates and CAs of a running server, with real TLS clients."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector, web

from tests.e2e.controlplane.certificates import Authority, new_authority
from winpod.errors import InvalidInput, Unavailable
from winpod.k8s.auth import user_of_certificate
from winpod.k8s.tls import bind_socket
from winpod.kubelet.server.tls import TlsFiles, TlsListener

LOOPBACK = "127.0.0.1"


@dataclass
class Served:
    files: TlsFiles
    port: int
    cluster: Authority

    def client(self, shown: Authority, name: str) -> ClientSession:
        trust = ssl.create_default_context(cafile=str(self.cluster.certificate))
        certificate = shown.client(f"{shown.certificate.stem}-{name}", name)
        trust.load_cert_chain(certificate.certificate, certificate.key)
        return ClientSession(f"https://{LOOPBACK}:{self.port}", connector=TCPConnector(ssl=trust))

    async def authenticated_as(self, shown: Authority, name: str) -> str:
        """Return the user as which the server authenticates a new connection."""
        async with self.client(shown, name) as http:
            return await who(http)

    def trust(self, *authorities: Authority) -> None:
        assert self.files.client_authority
        replace(self.files.client_authority, *(one.certificate for one in authorities))


async def who(http: ClientSession) -> str:
    try:
        async with http.get("/") as response:
            return await response.text()
    except (ClientError, OSError):
        return "refused"


def replace(file: Path, *contents: Path) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(b"".join(content.read_bytes() for content in contents))
    new.replace(file)


async def becomes(expected: str, ask: Callable[[], Coroutine[Any, Any, str]]) -> None:
    async with asyncio.timeout(120):
        while await ask() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Authority:
    return new_authority(tmp_path, "cluster")


@pytest.fixture
async def runner() -> AsyncIterator[web.AppRunner]:
    async def tell(request: web.Request) -> web.Response:
        certificate = request.get_extra_info("peercert")
        user = user_of_certificate(certificate) if certificate else None
        return web.Response(text=user.name if user else "nobody")

    application = web.Application()
    application.router.add_get("/", tell)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    yield runner
    await runner.cleanup()


@pytest.fixture
async def served(
    tmp_path: Path, cluster: Authority, runner: web.AppRunner
) -> AsyncIterator[Served]:
    serving = cluster.serving("serving", f"IP:{LOOPBACK}")
    files = TlsFiles(serving.certificate, serving.key, tmp_path / "bundle.pem")
    replace(tmp_path / "bundle.pem", cluster.certificate)
    listening = TlsListener(runner, files, bind_socket("The server", LOOPBACK, 0))
    await listening.start()
    yield Served(files, listening.port, cluster)
    listening.close()


async def test_client_ca_changes_take_effect(
    served: Served, cluster: Authority, tmp_path: Path
) -> None:
    newer = new_authority(tmp_path, "newer")
    assert await served.authenticated_as(cluster, "alice") == "alice"
    assert await served.authenticated_as(newer, "bob") == "refused"
    async with served.client(cluster, "carol") as open_before:
        assert await who(open_before) == "carol"
        served.trust(cluster, newer)
        await becomes("bob", lambda: served.authenticated_as(newer, "bob"))
        assert await served.authenticated_as(cluster, "alice") == "alice"
        served.trust(newer)
        await becomes("refused", lambda: served.authenticated_as(cluster, "alice"))
        assert await served.authenticated_as(newer, "bob") == "bob"
        assert await who(open_before) == "carol"


async def test_session_of_removed_ca_is_not_resumed(
    served: Served, cluster: Authority, tmp_path: Path
) -> None:
    newer = new_authority(tmp_path, "newer")
    trust = ssl.create_default_context(cafile=str(cluster.certificate))
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    shown = cluster.client("alice", "alice")
    trust.load_cert_chain(shown.certificate, shown.key)
    session = await asyncio.to_thread(session_of, trust, served.port, None)
    session = await asyncio.to_thread(session_of, trust, served.port, session)
    served.trust(newer)
    await becomes("bob", lambda: served.authenticated_as(newer, "bob"))
    with pytest.raises(OSError, match="SSL"):
        await asyncio.to_thread(session_of, trust, served.port, session)


def session_of(
    trust: ssl.SSLContext, port: int, before: ssl.SSLSession | None
) -> ssl.SSLSession | None:
    with (
        socket.create_connection((LOOPBACK, port)) as plain,
        trust.wrap_socket(plain, server_hostname=LOOPBACK, session=before) as secure,
    ):
        secure.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert secure.recv(1000)
        assert secure.session_reused == (before is not None)
        return secure.session


async def test_invalid_new_files_keep_old_certificate(
    served: Served, cluster: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.files.client_authority
    with caplog.at_level(logging.WARNING):
        served.files.client_authority.write_text("no certificate")
        async with asyncio.timeout(120):
            while "Failed to reload serving certificate" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert await served.authenticated_as(cluster, "alice") == "alice"


async def test_unusable_certificate_or_port_is_reported(
    served: Served, runner: web.AppRunner, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on {LOOPBACK} port {served.port}"):
        bind_socket("The server", LOOPBACK, served.port)
    missing = TlsFiles(tmp_path / "none.pem", tmp_path / "none.pem")
    listening = TlsListener(runner, missing, bind_socket("The server", LOOPBACK, 0))
    with pytest.raises(InvalidInput, match=r"none\.pem"):
        await listening.start()
    listening.close()

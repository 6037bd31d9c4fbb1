"""Certificates and authorities that are replaced under a server, as real TLS clients see it."""

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
from winpod.node.server_auth import user_of_certificate
from winpod.node.server_listening import Listening, ServingFiles, socket_at
from winpod.windows.errors import InvalidInput, Unavailable

LOOPBACK = "127.0.0.1"


@dataclass
class Served:
    files: ServingFiles
    port: int
    cluster: Authority

    def client(self, shown: Authority, name: str) -> ClientSession:
        trust = ssl.create_default_context(cafile=str(self.cluster.certificate))
        certificate = shown.client(f"{shown.certificate.stem}-{name}", name)
        trust.load_cert_chain(certificate.certificate, certificate.key)
        return ClientSession(f"https://{LOOPBACK}:{self.port}", connector=TCPConnector(ssl=trust))

    async def known(self, shown: Authority, name: str) -> str:
        """As whom the server knows somebody who connects now."""
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


async def becomes(wanted: str, ask: Callable[[], Coroutine[Any, Any, str]]) -> None:
    async with asyncio.timeout(120):
        while await ask() != wanted:  # noqa: ASYNC110
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
    files = ServingFiles(serving.certificate, serving.key, tmp_path / "bundle.pem")
    replace(tmp_path / "bundle.pem", cluster.certificate)
    listening = Listening(runner, files, socket_at(LOOPBACK, 0))
    await listening.start()
    yield Served(files, listening.port, cluster)
    listening.close()


async def test_an_authority_that_is_added_is_trusted_and_one_that_is_taken_away_is_not(
    served: Served, cluster: Authority, tmp_path: Path
) -> None:
    newer = new_authority(tmp_path, "newer")
    assert await served.known(cluster, "alice") == "alice"
    assert await served.known(newer, "bob") == "refused"
    async with served.client(cluster, "carol") as open_before:
        assert await who(open_before) == "carol"
        served.trust(cluster, newer)
        await becomes("bob", lambda: served.known(newer, "bob"))
        assert await served.known(cluster, "alice") == "alice"
        served.trust(newer)
        await becomes("refused", lambda: served.known(cluster, "alice"))
        assert await served.known(newer, "bob") == "bob"
        assert await who(open_before) == "carol"


async def test_no_session_of_an_authority_that_is_gone_is_taken_up_again(
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
    await becomes("bob", lambda: served.known(newer, "bob"))
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


async def test_files_that_are_of_no_use_leave_the_old_ones_serving(
    served: Served, cluster: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.files.client_authority
    with caplog.at_level(logging.WARNING):
        served.files.client_authority.write_text("no certificate")
        async with asyncio.timeout(120):
            while "of no use" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert await served.known(cluster, "alice") == "alice"


async def test_what_cannot_be_served_with_or_listened_at_is_said(
    served: Served, runner: web.AppRunner, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on {LOOPBACK} port {served.port}"):
        socket_at(LOOPBACK, served.port)
    missing = ServingFiles(tmp_path / "none.pem", tmp_path / "none.pem")
    listening = Listening(runner, missing, socket_at(LOOPBACK, 0))
    with pytest.raises(InvalidInput, match=r"none\.pem"):
        await listening.start()
    listening.close()

"""Tests of the webhook's TLS with real handshakes on loopback."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.client_certificates import API_SERVERS, STRANGERS, client_certificate
from winpod.clock import utc_now
from winpod.errors import InvalidInput
from winpod.operator.admission.certificates import renew_certificates
from winpod.operator.admission.server import ClientCa, WebhookListener, serving_context

SERVING = renew_certificates(None, ("localhost",), utc_now())


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[WebhookListener, int]]:
    """Serve on a free port; the response is "answer"."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="answer")

    port = WebhookListener("127.0.0.1", number, lambda: [web.get("/", answer)])
    try:
        yield port, number
    finally:
        await port.close()


def asking_with(folder: Path, shown: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=SERVING.bundle.decode())
    if shown:
        (folder / "client.pem").write_bytes(shown)
        context.load_cert_chain(folder / "client.pem")
    return context


async def ask(session: aiohttp.ClientSession, number: int) -> bool:
    try:
        async with session.get(f"https://localhost:{number}/") as response:
            return await response.text() == "answer"
    except (aiohttp.ClientError, ConnectionError):
        return False


async def is_answered(number: int, asking: ssl.SSLContext) -> bool:
    connector = aiohttp.TCPConnector(ssl=asking)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await ask(session, number)


async def test_all_clients_are_accepted_without_client_ca(tmp_path: Path) -> None:
    async with listening() as (port, number):
        await port.serve(serving_context(SERVING, ""))
        assert await is_answered(number, asking_with(tmp_path, b""))


async def test_only_clients_of_the_client_ca_are_accepted(tmp_path: Path) -> None:
    async with listening() as (port, number):
        await port.serve(serving_context(SERVING, API_SERVERS.bundle.decode()))
        a_servers = API_SERVERS.chain + API_SERVERS.key
        answered = {
            name: await is_answered(number, asking_with(tmp_path, shown))
            for name, shown in (
                ("api server", client_certificate(API_SERVERS)),
                ("nobody", b""),
                ("stranger", client_certificate(STRANGERS)),
                ("server", a_servers),
            )
        }
        assert answered == {
            "api server": True,
            "nobody": False,
            "stranger": False,
            "server": False,
        }


async def test_new_client_ca_applies_to_existing_connections(tmp_path: Path) -> None:
    old = asking_with(tmp_path, client_certificate(API_SERVERS))
    new = asking_with(tmp_path, client_certificate(STRANGERS))
    async with listening() as (port, number):
        await port.serve(serving_context(SERVING, API_SERVERS.bundle.decode()))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=old)) as session:
            assert await ask(session, number)
            await port.serve(serving_context(SERVING, STRANGERS.bundle.decode()))
            assert not await ask(session, number)
        assert await is_answered(number, new)
        assert not await is_answered(number, old)


async def test_certificates_are_replaced_without_closing_the_port(tmp_path: Path) -> None:
    renewed = renew_certificates(SERVING, ("localhost",), utc_now())
    async with listening() as (port, number):
        await port.serve(serving_context(SERVING, ""))
        asked = asyncio.create_task(_ask_for_long(number, asking_with(tmp_path, b"")))
        await asyncio.sleep(0.05)
        await port.serve(serving_context(renewed, ""))
        served = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", number))
        assert served == renewed.chain.decode()
        assert all(await asked)


async def _ask_for_long(number: int, asking: ssl.SSLContext) -> list[bool]:
    return [await is_answered(number, asking) for _ in range(30)]


def test_unreadable_client_ca_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        ClientCa(tmp_path / "nowhere")
    for content in ("", "nonsense"):
        (tmp_path / "ca.crt").write_text(content)
        with pytest.raises(InvalidInput, match="failed to read the webhook's client CA"):
            ClientCa(tmp_path / "ca.crt")


def test_client_ca_file_is_reloaded_and_last_valid_is_kept(tmp_path: Path) -> None:
    assert ClientCa(None).read() == ""
    file = tmp_path / "ca.crt"
    file.write_bytes("# für die API-Server\n".encode() + API_SERVERS.bundle)
    authority = ClientCa(file)
    assert authority.read() == API_SERVERS.bundle.decode()
    file.write_bytes(STRANGERS.bundle)
    assert authority.read() == STRANGERS.bundle.decode()
    for spoil in (lambda: file.write_text("nonsense"), file.unlink):
        spoil()
        assert authority.read() == STRANGERS.bundle.decode()
    file.write_bytes(API_SERVERS.bundle)
    assert authority.read() == API_SERVERS.bundle.decode()

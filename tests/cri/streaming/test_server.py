"""URLs, tokens and protocol negotiation."""

import asyncio

import aiohttp
import pytest
from yarl import URL

from tests.support.streaming_backend import LocalBackend
from tests.support.streaming_client import Refused, StandInClient, exec_client
from winpod.cri.streaming import StreamingServer
from winpod.cri.streaming import server as server_module
from winpod.errors import InvalidInput, Unavailable


async def refused(url: str, protocols: str | None, *, upgrade: str = "SPDY/3.1") -> Refused:
    with pytest.raises(Refused) as failure:
        await StandInClient.connect(url, protocols, upgrade=upgrade)
    return failure.value


async def test_server_listens_on_loopback(server: StreamingServer) -> None:
    url = URL(server.exec_url("container", ["true"], stdout=True))
    assert url.host == "127.0.0.1"
    assert url.path.startswith("/exec/")


async def test_unknown_token_is_not_found(server: StreamingServer) -> None:
    url = URL(server.exec_url("container", ["true"], stdout=True)).with_path("/exec/guessed")
    assert (await refused(str(url), "v4.channel.k8s.io")).status == 404


async def test_token_is_valid_only_for_its_kind_of_request(server: StreamingServer) -> None:
    url = URL(server.attach_url("container", stdout=True))
    other = url.with_path(url.path.replace("attach", "exec"))
    assert (await refused(str(other), "v4.channel.k8s.io")).status == 404


async def test_token_works_once(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stdout") as (client, _):
        await client.collect()
    assert (await refused(url, "v4.channel.k8s.io")).status == 404


async def test_a_client_must_offer_protocols(server: StreamingServer) -> None:
    for protocols in (None, " , "):
        url = server.exec_url("container", ["true"], stdout=True)
        assert (await refused(url, protocols)).status == 400


async def test_failed_negotiation_lists_supported_protocols(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    failure = await refused(url, "v9.channel.k8s.io")
    assert failure.status == 403
    assert "x-accepted-stream-protocol-versions" in failure.headers
    assert b"server accepts [v5.channel.k8s.io" in failure.body


async def test_request_without_upgrade_headers_is_rejected(server: StreamingServer) -> None:
    for upgrade in ("", "h2c"):
        url = server.exec_url("container", ["true"], stdout=True)
        assert (await refused(url, "v4.channel.k8s.io", upgrade=upgrade)).status == 400


async def test_client_order_decides_the_protocol(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    offered = "v9.channel.k8s.io, v3.channel.k8s.io, v5.channel.k8s.io"
    async with await StandInClient.connect(url, offered) as client:
        assert client.headers["x-stream-protocol-version"] == "v3.channel.k8s.io"


async def test_other_methods_and_paths_are_rejected(server: StreamingServer) -> None:
    url = URL(server.exec_url("container", ["true"], stdout=True))
    async with aiohttp.ClientSession() as session:
        for method, path, status in (("HEAD", url.path, 405), ("GET", "/", 404)):
            async with session.request(method, url.with_path(path)) as response:
                assert response.status == status


async def test_sessions_above_the_limit_get_retry_after(backend: LocalBackend) -> None:
    server = StreamingServer(backend, max_sessions=1)
    await server.start()
    async with exec_client(server.exec_url("container", ["cat"], stdin=True), "stdin"):
        url = server.exec_url("container", ["true"], stdout=True)
        failure = await refused(url, "v4.channel.k8s.io")
    await server.close()
    assert failure.status == 429
    assert failure.headers["retry-after"] == "60"


@pytest.mark.parametrize(
    ("container_id", "flags", "message"),
    [
        ("", {"stdout": True}, "container_id"),
        ("c", {"stdout": True, "stderr": True, "tty": True}, "tty and stderr cannot both be true"),
        ("c", {"tty": True}, "one of stdin, stdout, or stderr must be set"),
    ],
)
async def test_invalid_requests_get_no_url(
    server: StreamingServer, container_id: str, flags: dict[str, bool], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        server.exec_url(container_id, ["true"], **flags)
    with pytest.raises(InvalidInput, match=message):
        server.attach_url(container_id, **flags)


async def test_port_forward_requires_a_pod_and_valid_ports(server: StreamingServer) -> None:
    with pytest.raises(InvalidInput, match="pod_sandbox_id"):
        server.port_forward_url("")
    for ports in ([0], [65536], range(1, 200)):
        with pytest.raises(InvalidInput, match="from 1 to 65535"):
            server.port_forward_url("sandbox", ports)


async def test_stopped_server_returns_no_urls(backend: LocalBackend) -> None:
    with pytest.raises(Unavailable, match="not running"):
        StreamingServer(backend).attach_url("container", stdout=True)


async def test_port_in_use_is_reported(server: StreamingServer, backend: LocalBackend) -> None:
    taken = URL(server.attach_url("container", stdout=True)).port
    assert taken is not None
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1 port {taken}"):
        await StreamingServer(backend).start(port=taken)


async def test_unspecified_address_requires_an_advertised_host(backend: LocalBackend) -> None:
    server = StreamingServer(backend)
    with pytest.raises(InvalidInput, match="needs an advertised host"):
        await server.start("0.0.0.0")
    await server.start("::1", advertise="node.example")
    assert URL(server.attach_url("container", stdout=True)).host == "node.example"
    await server.close()


async def test_failed_session_shows_no_traceback(
    server: StreamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(server_module, "_choose", broken)
    url = server.exec_url("container", ["true"], stdout=True)
    failure: Refused | asyncio.IncompleteReadError | None = None
    try:
        await StandInClient.connect(url)
    except (Refused, asyncio.IncompleteReadError) as error:
        failure = error
    assert failure is not None
    assert "secret" not in str(failure)

"""URLs, tokens and the agreement on a protocol."""

import asyncio

import aiohttp
import pytest
from yarl import URL

from tests.cri.streaming.local_backend import LocalBackend
from tests.cri.streaming.stand_in_client import Refused, StandInClient, exec_client
from winpod.cri.streaming import StreamingServer
from winpod.cri.streaming import server as server_module
from winpod.windows.errors import InvalidInput, Unavailable


async def refused(url: str, protocols: str | None, *, upgrade: str = "SPDY/3.1") -> Refused:
    with pytest.raises(Refused) as failure:
        await StandInClient.connect(url, protocols, upgrade=upgrade)
    return failure.value


async def test_the_server_listens_on_loopback(server: StreamingServer) -> None:
    url = URL(server.exec_url("container", ["true"], stdout=True))
    assert url.host == "127.0.0.1"
    assert url.path.startswith("/exec/")


async def test_an_unknown_token_is_not_found(server: StreamingServer) -> None:
    url = URL(server.exec_url("container", ["true"], stdout=True)).with_path("/exec/guessed")
    assert (await refused(str(url), "v4.channel.k8s.io")).status == 404


async def test_a_token_opens_only_what_it_was_issued_for(server: StreamingServer) -> None:
    url = URL(server.attach_url("container", stdout=True))
    other = url.with_path(url.path.replace("attach", "exec"))
    assert (await refused(str(other), "v4.channel.k8s.io")).status == 404


async def test_a_token_works_once(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    async with exec_client(url, "stdout") as (client, _):
        await client.collect()
    assert (await refused(url, "v4.channel.k8s.io")).status == 404


async def test_a_client_must_offer_protocols(server: StreamingServer) -> None:
    for protocols in (None, " , "):
        url = server.exec_url("container", ["true"], stdout=True)
        assert (await refused(url, protocols)).status == 400


async def test_none_in_common_names_what_is_accepted(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    failure = await refused(url, "v9.channel.k8s.io")
    assert failure.status == 403
    assert "x-accepted-stream-protocol-versions" in failure.headers
    assert b"server accepts [v5.channel.k8s.io" in failure.body


async def test_a_request_must_ask_for_the_upgrade(server: StreamingServer) -> None:
    for upgrade in ("", "h2c"):
        url = server.exec_url("container", ["true"], stdout=True)
        assert (await refused(url, "v4.channel.k8s.io", upgrade=upgrade)).status == 400


async def test_the_order_of_the_client_wins(server: StreamingServer) -> None:
    url = server.exec_url("container", ["true"], stdout=True)
    offered = "v9.channel.k8s.io, v3.channel.k8s.io, v5.channel.k8s.io"
    async with await StandInClient.connect(url, offered) as client:
        assert client.headers["x-stream-protocol-version"] == "v3.channel.k8s.io"


async def test_other_methods_and_paths_do_nothing(server: StreamingServer) -> None:
    url = URL(server.exec_url("container", ["true"], stdout=True))
    async with aiohttp.ClientSession() as session:
        for method, path, status in (("HEAD", url.path, 405), ("GET", "/", 404)):
            async with session.request(method, url.with_path(path)) as response:
                assert response.status == status


async def test_too_many_sessions_are_asked_to_come_back(backend: LocalBackend) -> None:
    server = StreamingServer(backend, max_sessions=1)
    await server.start()
    async with exec_client(server.exec_url("container", ["cat"], stdin=True), "stdin"):
        url = server.exec_url("container", ["true"], stdout=True)
        failure = await refused(url, "v4.channel.k8s.io")
    await server.close()
    assert failure.status == 429
    assert failure.headers["retry-after"] == "60"


@pytest.mark.parametrize(
    ("container_id", "flags", "words"),
    [
        ("", {"stdout": True}, "container_id"),
        ("c", {"stdout": True, "stderr": True, "tty": True}, "tty and stderr cannot both be true"),
        ("c", {"tty": True}, "one of stdin, stdout, or stderr must be set"),
    ],
)
async def test_requests_that_make_no_sense_get_no_url(
    server: StreamingServer, container_id: str, flags: dict[str, bool], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        server.exec_url(container_id, ["true"], **flags)
    with pytest.raises(InvalidInput, match=words):
        server.attach_url(container_id, **flags)


async def test_a_port_forward_names_its_pod_and_real_ports(server: StreamingServer) -> None:
    with pytest.raises(InvalidInput, match="pod_sandbox_id"):
        server.port_forward_url("")
    for ports in ([0], [65536], range(1, 200)):
        with pytest.raises(InvalidInput, match="from 1 to 65535"):
            server.port_forward_url("sandbox", ports)


async def test_a_server_that_is_not_running_gives_no_urls(backend: LocalBackend) -> None:
    with pytest.raises(Unavailable, match="not running"):
        StreamingServer(backend).attach_url("container", stdout=True)


async def test_a_port_in_use_is_a_sentence(server: StreamingServer, backend: LocalBackend) -> None:
    taken = URL(server.attach_url("container", stdout=True)).port
    assert taken is not None
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1 port {taken}"):
        await StreamingServer(backend).start(port=taken)


async def test_an_open_address_needs_one_that_clients_reach(backend: LocalBackend) -> None:
    server = StreamingServer(backend)
    with pytest.raises(InvalidInput, match="without a host for its URLs"):
        await server.start("0.0.0.0")
    await server.start("::1", advertise="node.example")
    assert URL(server.attach_url("container", stdout=True)).host == "node.example"
    await server.close()


async def test_a_session_that_fails_shows_no_traceback(
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

"""The client against stand-ins for registries that misbehave."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.images.registries import StandIn, auths, log_in, serve, write_hosts
from tests.images.samples import index, single, stored, windows
from winpod.images.errors import AccessDenied, BadContent, RegistryUnavailable
from winpod.images.manifests import MANIFEST_LIMIT, OCI_MANIFEST, Bundle
from winpod.images.references import parse_reference
from winpod.images.registry import ATTEMPTS, MAX_REDIRECTS, Registry
from winpod.images.source import ImageSources
from winpod.windows.platforms import Image

IMAGE = single(windows("10.0.17763.805"))
Before = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


async def look_up(address: str, time_limit: float = 30.0) -> Image:
    async with ImageSources(time_limit=time_limit) as sources:
        return await sources.describe(f"{address}/app:1")


@asynccontextmanager
async def misbehaving(before: Before, image: Bundle = IMAGE) -> AsyncIterator[tuple[StandIn, str]]:
    stand_in = StandIn(image, before)
    async with serve(stand_in) as address:
        yield stand_in, address


def first(times: int, answer: Callable[[], web.Response]) -> Before:
    counter = itertools.count()

    async def before(_: web.Request) -> web.Response | None:
        return answer() if next(counter) < times else None

    return before


async def test_it_waits_as_long_as_it_is_asked_to() -> None:
    busy = first(1, lambda: web.Response(status=429, headers={"Retry-After": "1"}))
    async with misbehaving(busy) as (stand_in, address):
        started = time.monotonic()
        assert (await look_up(address)).builds()
        assert time.monotonic() - started >= 1
        assert stand_in.count("HEAD") == 2


async def test_it_does_not_wait_longer_than_is_reasonable() -> None:
    said = {"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your limit"}]}
    headers = {"Retry-After": "3600"}
    busy = first(99, lambda: web.json_response(said, status=429, headers=headers))
    async with misbehaving(busy) as (stand_in, address):
        with pytest.raises(RegistryUnavailable, match="429 Too Many Requests"):
            await look_up(address)
        assert len(stand_in.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_passing_failure_is_tried_again(status: int) -> None:
    async with misbehaving(first(2, lambda: web.Response(status=status))) as (_, address):
        assert (await look_up(address)).builds()


async def test_a_lasting_failure_is_given_up() -> None:
    async with misbehaving(first(99, lambda: web.Response(status=503))) as (stand_in, address):
        async with Registry(first_wait=0.001) as registry:
            repository = registry.repository(parse_reference(f"{address}/app:1"))
            with pytest.raises(RegistryUnavailable, match=r"unexpected status from HEAD .*: 503"):
                await repository.resolve(parse_reference(f"{address}/app:1"))
        assert len(stand_in.requests) == ATTEMPTS


async def test_a_strange_status_is_not_tried_again() -> None:
    teapot = first(99, lambda: web.Response(status=418))
    async with misbehaving(teapot) as (stand_in, address):
        with pytest.raises(RegistryUnavailable, match="418"):
            await look_up(address)
        assert len(stand_in.requests) == 1


async def test_endless_redirects_end() -> None:
    async def around(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"{request.path}?again"})

    async with misbehaving(around) as (stand_in, address):
        with pytest.raises(RegistryUnavailable, match="redirects without end"):
            await look_up(address)
        assert len(stand_in.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("location", ["ftp://x/y", "http://", "//"])
async def test_a_redirect_to_nowhere_is_named(location: str) -> None:
    away = first(99, lambda: web.Response(status=302, headers={"Location": location}))
    async with misbehaving(away) as (_, address):
        with pytest.raises(RegistryUnavailable):
            await look_up(address)


async def test_a_password_stays_with_its_host(home: Path) -> None:
    storage = StandIn(IMAGE)
    async with serve(storage) as elsewhere:

        async def before(request: web.Request) -> web.Response | None:
            if "Authorization" not in request.headers:
                return web.Response(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
            if request.method == "GET":
                target = f"http://{elsewhere}{request.path}"
                return web.Response(status=307, headers={"Location": target})
            return None

        async with misbehaving(before) as (stand_in, address):
            log_in(home, auths(address))
            assert (await look_up(address)).builds()
            assert any("Authorization" in request.headers for request in stand_in.requests)
    assert storage.requests
    assert all("Authorization" not in request.headers for request in storage.requests)


async def test_wrong_content_is_not_used() -> None:
    async def other(request: web.Request) -> web.Response | None:
        is_manifest = request.method == "GET" and "/manifests/" in request.path
        return web.Response(body=b"x" * IMAGE.root.size) if is_manifest else None

    async with misbehaving(other) as (_, address):
        with pytest.raises(BadContent, match="gave content with digest"):
            await look_up(address)


async def test_wrong_content_at_a_mirror_is_fetched_from_the_next(home: Path) -> None:
    async def other(request: web.Request) -> web.Response | None:
        return web.Response(body=b"other") if request.method == "GET" else None

    async with misbehaving(other) as (_, bad), serve(StandIn(IMAGE)) as good:
        write_hosts(home, "example.test", f'server = "http://{good}"\n[host."http://{bad}"]')
        assert (await look_up("example.test")).builds()


async def cut_short(request: web.Request) -> web.StreamResponse | None:
    if request.method != "GET":
        return None
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport
    request.transport.close()
    return response


async def test_an_answer_that_breaks_off_is_tried_again() -> None:
    counter = itertools.count()

    async def before(request: web.Request) -> web.StreamResponse | None:
        return await cut_short(request) if next(counter) == 1 else None

    async with misbehaving(before) as (_, address):
        assert (await look_up(address)).builds()


async def test_an_answer_that_always_breaks_off_is_named() -> None:
    async with misbehaving(cut_short) as (_, address):
        with pytest.raises(RegistryUnavailable, match="broke off"):
            await look_up(address)


async def test_a_silent_registry_is_given_up_in_time() -> None:
    forever = asyncio.Event()

    async def silent(_: web.Request) -> None:
        await forever.wait()

    async with misbehaving(silent) as (_, address):
        started = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="did not answer in time"):
            await look_up(address, time_limit=1.5)
        assert time.monotonic() - started < 60
        forever.set()


async def test_a_registry_that_drips_is_given_up_in_time() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async with misbehaving(drip) as (_, address), ImageSources(time_limit=1.0) as sources:
        with pytest.raises(RegistryUnavailable, match="could not be looked up within 1 s"):
            await sources.describe(f"{address}/app@sha256:{'0' * 64}")


async def test_a_document_without_end_is_refused() -> None:
    async def endless(request: web.Request) -> web.StreamResponse | None:
        if request.method != "GET":
            return None
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2 * MANIFEST_LIMIT >> 16):
            await response.write(b" " * (1 << 16))
        return response

    async with misbehaving(endless) as (_, address):
        with pytest.raises(BadContent, match="more than 4 MiB"):
            await look_up(address)


async def test_what_head_says_besides_the_digest_is_not_believed() -> None:
    headers = {
        "Docker-Content-Digest": IMAGE.root.digest,
        "Content-Type": "application/json",
        "Content-Length": "0",
    }

    async def odd_head(request: web.Request) -> web.Response | None:
        return web.Response(headers=headers) if request.method == "HEAD" else None

    async with misbehaving(odd_head) as (_, address):
        assert (await look_up(address)).digest == IMAGE.root.digest


async def test_what_is_not_http_is_named() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        with pytest.raises(RegistryUnavailable, match="cannot be reached"):
            await look_up(f"{host}:{port}")


async def test_a_proxy_is_used_where_the_environment_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hosts(home, "example.test", 'server = "http://registry.invalid"')
    proxy = StandIn(IMAGE)
    async with serve(proxy) as address:
        monkeypatch.setenv("http_proxy", f"http://{address}")
        assert (await look_up("example.test")).builds()
        assert {request.host for request in proxy.requests} == {"registry.invalid"}


@pytest.mark.parametrize("status", [200, 400, 405])
async def test_a_registry_that_cannot_answer_head_is_asked_with_get(status: int) -> None:
    async def no_head(request: web.Request) -> web.Response | None:
        return web.Response(status=status) if request.method == "HEAD" else None

    async with misbehaving(no_head) as (_, address):
        assert (await look_up(address)).digest == IMAGE.root.digest


async def test_a_login_page_is_not_an_image() -> None:
    page = stored(OCI_MANIFEST, b"<html>Please log in</html>")

    async with misbehaving(first(0, web.Response), Bundle((), (page,))) as (_, address):
        with pytest.raises(BadContent, match="is not JSON"):
            await look_up(address)


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        ("", "no authorization that is known"),
        ("Negotiate", "no authorization that is known"),
        ('Bearer realm="ftp://x"', "no URL"),
        ("Bearer", "no URL"),
    ],
)
async def test_a_challenge_without_an_answer_is_named(challenge: str, says: str) -> None:
    headers = {"WWW-Authenticate": challenge}
    refuse = first(99, lambda: web.Response(status=401, headers=headers))
    async with misbehaving(refuse) as (_, address):
        with pytest.raises(AccessDenied, match=says):
            await look_up(address)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: web.Response(status=403), "refused an anonymous request"),
        (lambda: web.Response(status=404), "unexpected status"),
        (lambda: web.Response(text="not json"), "gave no token"),
        (lambda: web.json_response({"token": 5}), "gave no token"),
        (lambda: web.json_response({"token": "a\nb"}), "gave no token"),
        (lambda: web.json_response([]), "gave no token"),
    ],
)
async def test_a_token_server_without_tokens_is_named(
    answer: Callable[[], web.Response], says: str
) -> None:
    async def tokens(_: web.Request) -> web.Response:
        return answer()

    async with serve(tokens) as realm:
        headers = {"WWW-Authenticate": f'Bearer realm="http://{realm}/t",service="s"'}
        refuse = first(99, lambda: web.Response(status=401, headers=headers))
        async with misbehaving(refuse) as (_, address):
            with pytest.raises((AccessDenied, RegistryUnavailable), match=says):
                await look_up(address)


async def test_a_host_that_cannot_be_reached_is_not_tried_for_every_image() -> None:
    async with ImageSources() as sources:
        with pytest.raises(RegistryUnavailable, match="cannot be reached"):
            await sources.describe("127.0.0.1:1/app:0")
        started = time.monotonic()
        for number in range(1, 50):
            with pytest.raises(RegistryUnavailable, match="cannot be reached"):
                await sources.describe(f"127.0.0.1:1/app:{number}")
        assert time.monotonic() - started < 20


async def test_an_index_that_lacks_some_content_still_answers() -> None:
    image = index(windows("10.0.17763.1"), windows("10.0.20348.1"))
    async with serve(StandIn(Bundle(image.blobs, image.manifests[1:]))) as address:
        assert (await look_up(address)).builds() == ("10.0.20348.1",)

"""The registry client against fake registries that misbehave."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.image_samples import index, single, stored, windows
from tests.support.registries import StandIn, auths, log_in, serve, write_hosts
from winpod.images.errors import CorruptContent, RegistryAccessDenied, RegistryUnavailable
from winpod.images.manifests import MANIFEST_LIMIT, OCI_MANIFEST, ImageBundle
from winpod.images.references import parse_reference
from winpod.images.registry.client import ATTEMPTS, MAX_REDIRECTS, RegistryClient
from winpod.images.resolver import ImageResolver
from winpod.windows.platforms import Image

IMAGE = single(windows("10.0.17763.805"))
Before = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


async def look_up(address: str, time_limit: float = 30.0) -> Image:
    async with ImageResolver(time_limit=time_limit) as sources:
        return await sources.describe(f"{address}/app:1")


@asynccontextmanager
async def misbehaving(
    before: Before, image: ImageBundle = IMAGE
) -> AsyncIterator[tuple[StandIn, str]]:
    stand_in = StandIn(image, before)
    async with serve(stand_in) as address:
        yield stand_in, address


def first(times: int, answer: Callable[[], web.Response]) -> Before:
    counter = itertools.count()

    async def before(_: web.Request) -> web.Response | None:
        return answer() if next(counter) < times else None

    return before


async def test_retry_after_is_respected() -> None:
    busy = first(1, lambda: web.Response(status=429, headers={"Retry-After": "1"}))
    async with misbehaving(busy) as (stand_in, address):
        started = time.monotonic()
        assert (await look_up(address)).builds()
        assert time.monotonic() - started >= 1
        assert stand_in.count("HEAD") == 2


async def test_excessive_retry_after_fails() -> None:
    said = {"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your limit"}]}
    headers = {"Retry-After": "3600"}
    busy = first(99, lambda: web.json_response(said, status=429, headers=headers))
    async with misbehaving(busy) as (stand_in, address):
        with pytest.raises(RegistryUnavailable, match="429 Too Many Requests"):
            await look_up(address)
        assert len(stand_in.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_transient_failure_is_retried(status: int) -> None:
    async with misbehaving(first(2, lambda: web.Response(status=status))) as (_, address):
        assert (await look_up(address)).builds()


async def test_permanent_failure_is_raised_after_retries() -> None:
    async with misbehaving(first(99, lambda: web.Response(status=503))) as (stand_in, address):
        async with RegistryClient(first_wait=0.001) as registry:
            repository = registry.repository(parse_reference(f"{address}/app:1"))
            with pytest.raises(RegistryUnavailable, match=r"unexpected status from HEAD .*: 503"):
                await repository.resolve(parse_reference(f"{address}/app:1"))
        assert len(stand_in.requests) == ATTEMPTS


async def test_unexpected_status_is_not_retried() -> None:
    teapot = first(99, lambda: web.Response(status=418))
    async with misbehaving(teapot) as (stand_in, address):
        with pytest.raises(RegistryUnavailable, match="418"):
            await look_up(address)
        assert len(stand_in.requests) == 1


async def test_redirects_are_limited() -> None:
    async def around(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"{request.path}?again"})

    async with misbehaving(around) as (stand_in, address):
        with pytest.raises(RegistryUnavailable, match="redirected more than"):
            await look_up(address)
        assert len(stand_in.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("location", ["ftp://x/y", "http://", "//"])
async def test_invalid_redirect_is_an_error(location: str) -> None:
    away = first(99, lambda: web.Response(status=302, headers={"Location": location}))
    async with misbehaving(away) as (_, address):
        with pytest.raises(RegistryUnavailable):
            await look_up(address)


async def test_password_is_not_sent_to_other_hosts(home: Path) -> None:
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


async def test_content_with_wrong_digest_is_rejected() -> None:
    async def other(request: web.Request) -> web.Response | None:
        is_manifest = request.method == "GET" and "/manifests/" in request.path
        return web.Response(body=b"x" * IMAGE.root.size) if is_manifest else None

    async with misbehaving(other) as (_, address):
        with pytest.raises(CorruptContent, match="returned content with digest"):
            await look_up(address)


async def test_wrong_content_of_a_mirror_falls_back_to_the_next_host(home: Path) -> None:
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


async def test_interrupted_response_is_retried() -> None:
    counter = itertools.count()

    async def before(request: web.Request) -> web.StreamResponse | None:
        return await cut_short(request) if next(counter) == 1 else None

    async with misbehaving(before) as (_, address):
        assert (await look_up(address)).builds()


async def test_always_interrupted_response_is_an_error() -> None:
    async with misbehaving(cut_short) as (_, address):
        with pytest.raises(RegistryUnavailable, match="was interrupted"):
            await look_up(address)


async def test_silent_registry_times_out() -> None:
    forever = asyncio.Event()

    async def silent(_: web.Request) -> None:
        await forever.wait()

    async with misbehaving(silent) as (_, address):
        started = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="did not answer in time"):
            await look_up(address, time_limit=1.5)
        assert time.monotonic() - started < 60
        forever.set()


async def test_slow_registry_times_out() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async with misbehaving(drip) as (_, address), ImageResolver(time_limit=1.0) as sources:
        with pytest.raises(RegistryUnavailable, match="could not be looked up within 1 s"):
            await sources.describe(f"{address}/app@sha256:{'0' * 64}")


async def test_document_size_is_limited() -> None:
    async def endless(request: web.Request) -> web.StreamResponse | None:
        if request.method != "GET":
            return None
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2 * MANIFEST_LIMIT >> 16):
            await response.write(b" " * (1 << 16))
        return response

    async with misbehaving(endless) as (_, address):
        with pytest.raises(CorruptContent, match="larger than the limit of 4 MiB"):
            await look_up(address)


async def test_only_the_digest_of_head_is_used() -> None:
    headers = {
        "Docker-Content-Digest": IMAGE.root.digest,
        "Content-Type": "application/json",
        "Content-Length": "0",
    }

    async def odd_head(request: web.Request) -> web.Response | None:
        return web.Response(headers=headers) if request.method == "HEAD" else None

    async with misbehaving(odd_head) as (_, address):
        assert (await look_up(address)).digest == IMAGE.root.digest


async def test_server_that_is_not_http_is_an_error() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        with pytest.raises(RegistryUnavailable, match="cannot be reached"):
            await look_up(f"{host}:{port}")


async def test_proxy_of_the_environment_is_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hosts(home, "example.test", 'server = "http://registry.invalid"')
    proxy = StandIn(IMAGE)
    async with serve(proxy) as address:
        monkeypatch.setenv("http_proxy", f"http://{address}")
        assert (await look_up("example.test")).builds()
        assert {request.host for request in proxy.requests} == {"registry.invalid"}


@pytest.mark.parametrize("status", [200, 400, 405])
async def test_get_is_used_if_head_is_not_supported(status: int) -> None:
    async def no_head(request: web.Request) -> web.Response | None:
        return web.Response(status=status) if request.method == "HEAD" else None

    async with misbehaving(no_head) as (_, address):
        assert (await look_up(address)).digest == IMAGE.root.digest


async def test_login_page_is_not_an_image() -> None:
    page = stored(OCI_MANIFEST, b"<html>Please log in</html>")

    async with misbehaving(first(0, web.Response), ImageBundle((), (page,))) as (_, address):
        with pytest.raises(CorruptContent, match="is not JSON"):
            await look_up(address)


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        ("", "without a Basic or Bearer challenge"),
        ("Negotiate", "without a Basic or Bearer challenge"),
        ('Bearer realm="ftp://x"', "not a valid URL"),
        ("Bearer", "not a valid URL"),
    ],
)
async def test_unsupported_challenge_is_an_error(challenge: str, says: str) -> None:
    headers = {"WWW-Authenticate": challenge}
    refuse = first(99, lambda: web.Response(status=401, headers=headers))
    async with misbehaving(refuse) as (_, address):
        with pytest.raises(RegistryAccessDenied, match=says):
            await look_up(address)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: web.Response(status=403), "rejected an anonymous request"),
        (lambda: web.Response(status=404), "unexpected status"),
        (lambda: web.Response(text="not json"), "returned no token"),
        (lambda: web.json_response({"token": 5}), "returned no token"),
        (lambda: web.json_response({"token": "a\nb"}), "returned no token"),
        (lambda: web.json_response([]), "returned no token"),
    ],
)
async def test_token_server_without_token_is_an_error(
    answer: Callable[[], web.Response], says: str
) -> None:
    async def tokens(_: web.Request) -> web.Response:
        return answer()

    async with serve(tokens) as realm:
        headers = {"WWW-Authenticate": f'Bearer realm="http://{realm}/t",service="s"'}
        refuse = first(99, lambda: web.Response(status=401, headers=headers))
        async with misbehaving(refuse) as (_, address):
            with pytest.raises((RegistryAccessDenied, RegistryUnavailable), match=says):
                await look_up(address)


async def test_unreachable_host_is_remembered() -> None:
    async with ImageResolver() as sources:
        with pytest.raises(RegistryUnavailable, match="cannot be reached"):
            await sources.describe("127.0.0.1:1/app:0")
        started = time.monotonic()
        for number in range(1, 50):
            with pytest.raises(RegistryUnavailable, match="cannot be reached"):
                await sources.describe(f"127.0.0.1:1/app:{number}")
        assert time.monotonic() - started < 20


async def test_index_with_missing_content_is_described() -> None:
    image = index(windows("10.0.17763.1"), windows("10.0.20348.1"))
    async with serve(StandIn(ImageBundle(image.blobs, image.manifests[1:]))) as address:
        assert (await look_up(address)).builds() == ("10.0.20348.1",)

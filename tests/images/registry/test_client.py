"""The registry client against real registries."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.image_samples import LINUX, index, single, windows
from tests.support.registries import (
    PASSWORD,
    USER,
    StandIn,
    TokenServer,
    auths,
    log_in,
    serve,
    write_hosts,
)
from winpod.errors import InvalidInput
from winpod.images.errors import ImageNotFound, RegistryAccessDenied, RegistryUnavailable
from winpod.images.manifests import ImageBundle
from winpod.images.references import parse_reference
from winpod.images.registry.push import push_image
from winpod.images.resolver import ImageResolver
from winpod.windows.platforms import Image

V2019, V2022 = windows("10.0.17763.805"), windows("10.0.20348.2113")


async def push(name: str, image: ImageBundle) -> None:
    await push_image(parse_reference(name), image)


async def look_up(name: str, **options: Any) -> Image:
    async with ImageResolver(**options) as sources:
        return await sources.describe(name)


async def test_pushed_index_is_read_back(registry: str) -> None:
    image = index(LINUX, V2019, V2022)
    await push(f"{registry}/team/app:1", image)
    found = await look_up(f"{registry}/team/app:1")
    assert found.digest == image.root.digest
    assert found.is_index
    assert [m.platform for m in found.manifests] == [LINUX, V2019, V2022]
    assert all(m.size > 0 for m in found.manifests)
    by_digest = await look_up(f"{registry}/team/app@{image.manifests[1][0].digest}")
    assert by_digest.builds() == ("10.0.17763.805",)


async def test_pushed_manifest_is_read_back(registry: str) -> None:
    await push(f"{registry}/one", single(V2019))
    found = await look_up(f"{registry}/one")
    assert not found.is_index
    assert found.builds() == ("10.0.17763.805",)


async def test_large_layer_is_streamed(registry: str, tmp_path: Path) -> None:
    path = tmp_path / "layer"
    path.write_bytes(bytes(range(256)) * (20 << 12))
    image = single(V2019, path.read_bytes())
    blobs = tuple((d, path if d.size == path.stat().st_size else c) for d, c in image.blobs)
    await push(f"{registry}/large", ImageBundle(blobs, image.manifests))
    found = await look_up(f"{registry}/large")
    assert found.manifests[0].size > path.stat().st_size


async def test_second_push_moves_the_tag(registry: str) -> None:
    await push(f"{registry}/moved", single(V2019))
    await push(f"{registry}/moved", single(V2022))
    assert (await look_up(f"{registry}/moved")).builds() == ("10.0.20348.2113",)


async def test_push_to_a_digest_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="digest"):
        await push("app@sha256:" + "0" * 64, single(V2019))


async def test_missing_image_is_not_found(registry: str) -> None:
    await push(f"{registry}/there:1", single(V2019))
    for name in ("there:2", "nowhere:1", "there@sha256:" + "0" * 64):
        with pytest.raises(ImageNotFound, match="not found at") as caught:
            await look_up(f"{registry}/{name}")
        assert name in caught.value.message


async def test_password_of_docker_config_is_used(basic_registry: str, home: Path) -> None:
    name = f"{basic_registry}/team/app"
    with pytest.raises(RegistryAccessDenied, match="requires a user name and password"):
        await look_up(name)
    log_in(home, auths(basic_registry))
    await push(name, single(V2019))
    assert (await look_up(name)).builds() == ("10.0.17763.805",)
    log_in(home, auths(basic_registry, password="wrong"))
    with pytest.raises(RegistryAccessDenied, match=f'rejected the credentials of user "{USER}"'):
        await look_up(name)


async def test_password_of_a_pull_secret_is_used(basic_registry: str, home: Path) -> None:
    name = f"{basic_registry}/secret/app"
    log_in(home, auths(basic_registry))
    await push(name, single(V2019))
    log_in(home, {})
    entry = {basic_registry: {"username": USER, "password": PASSWORD}}
    secret = {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": json.dumps(entry)}}
    assert (await look_up(name, pull_secrets=[secret])).builds()
    async with ImageResolver() as sources:
        with pytest.raises(RegistryAccessDenied):
            await sources.describe(name)
        assert (await sources.describe(name, [secret])).builds()


async def test_token_is_requested_once_per_scope(
    token_registry: tuple[str, TokenServer], home: Path
) -> None:
    registry, server = token_registry
    name = f"{registry}/team/app"
    with pytest.raises(RegistryAccessDenied, match="pull access denied"):
        await look_up(name)
    assert server.requested_scopes == [("anonymous", "repository:team/app:pull")]

    log_in(home, auths(registry))
    server.requested_scopes.clear()
    await push(name, index(V2019, V2022))
    assert server.requested_scopes == [
        ("password", "repository:team/app:pull"),
        ("password", "repository:team/app:pull,push"),
    ]
    server.requested_scopes.clear()
    assert len((await look_up(name)).manifests) == 2
    assert server.requested_scopes == [("password", "repository:team/app:pull")]

    log_in(home, auths(registry, password="wrong"))
    with pytest.raises(RegistryAccessDenied, match=r"the token server .* rejected the credentials"):
        await look_up(name)


async def test_identity_token_is_exchanged(
    token_registry: tuple[str, TokenServer], home: Path
) -> None:
    registry, server = token_registry
    log_in(home, {"auths": {registry: {"identitytoken": server.REFRESH}}})
    await push(f"{registry}/app", single(V2019))
    assert (await look_up(f"{registry}/app")).builds()
    assert {who for who, _ in server.requested_scopes} == {"refresh"}


async def test_configured_ca_is_trusted(tls_registry: tuple[str, Path], home: Path) -> None:
    registry, certificate = tls_registry
    write_hosts(home, registry, f'server = "https://{registry}"')
    with pytest.raises(RegistryUnavailable, match=r"certificate of .* could not be verified"):
        await look_up(f"{registry}/app")
    write_hosts(home, registry, f'server = "https://{registry}"\nca = "{certificate}"')
    await push(f"{registry}/app", single(V2019))
    assert (await look_up(f"{registry}/app")).builds()
    write_hosts(home, registry, f'server = "https://{registry}"\nskip_verify = true')
    assert (await look_up(f"{registry}/app")).builds()
    (home / "certs.d" / registry / "hosts.toml").unlink()
    (home / "certs.d" / registry / "ca.crt").write_bytes(certificate.read_bytes())
    assert (await look_up(f"{registry}/app")).builds()


async def test_mirrors_are_tried_in_order_before_the_registry(registry: str, home: Path) -> None:
    await push(f"{registry}/mirrored/app", single(V2019))
    mirror = StandIn(single(V2022))

    async def knows_only_its_own(request: web.Request) -> web.Response | None:
        return None if "/own/" in request.path else web.Response(status=404)

    mirror.before = knows_only_its_own
    async with serve(mirror) as address:
        write_hosts(
            home,
            "example.test",
            f"""
            server = "http://{registry}"
            [host."http://127.0.0.1:1"]
            capabilities = ["pull", "resolve"]
            [host."http://{address}"]
            capabilities = ["pull", "resolve"]
            """,
        )
        found = await look_up("example.test/mirrored/app")
        assert found.builds() == ("10.0.17763.805",)
        assert {request.query["ns"] for request in mirror.requests} == {"example.test"}
        assert (await look_up("example.test/own/app")).builds() == ("10.0.20348.2113",)
        with pytest.raises(ImageNotFound, match=r"Tried before: 127\.0\.0\.1:1: .*reached"):
            await look_up("example.test/mirrored/nowhere")


async def test_mirror_without_the_capability_is_skipped(registry: str, home: Path) -> None:
    await push(f"{registry}/capable/app", single(V2019))
    mirror = StandIn(single(V2022))
    async with serve(mirror) as address:
        text = f'server = "http://{registry}"\n[host."http://{address}"]\ncapabilities = ["pull"]'
        write_hosts(home, "example.test", text)
        assert (await look_up("example.test/capable/app")).builds() == ("10.0.17763.805",)
        assert mirror.count("HEAD") == 0
        assert mirror.count("GET") > 0


async def test_password_of_the_registry_is_not_sent_to_mirrors(home: Path) -> None:
    log_in(home, auths("example.test"))

    async def challenge(_: web.Request) -> web.Response:
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    mirror = StandIn(single(V2019), challenge)
    async with serve(mirror) as address:
        text = f'server = "http://127.0.0.1:1"\n[host."http://{address}"]'
        write_hosts(home, "example.test", text)
        with pytest.raises(RegistryUnavailable, match="requires a user name and password"):
            await look_up("example.test/app")
        assert all("Authorization" not in request.headers for request in mirror.requests)

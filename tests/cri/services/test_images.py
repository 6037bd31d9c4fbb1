"""The CRI ImageService over gRPC with a real registry."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.pushed_images import push
from tests.support.registries import PASSWORD, USER, auths, log_in
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import IMAGE, CriClient, RemoteError, add_service, new_server
from winpod.cri.services.images import ImageService
from winpod.images.pull.puller import Puller
from winpod.images.store.store import Store
from winpod.windows.builds import parse_build
from winpod.windows.handlers import BUILTIN_HANDLERS

HYPERVISOR_2019 = "runhcs-wcow-hypervisor-17763"
PROCESS = "runhcs-wcow-process"
SANDBOX = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="in-a-guest"))


def sandbox_handler(config: api.PodSandboxConfig) -> str:
    return HYPERVISOR_2019 if config.metadata.name == "in-a-guest" else ""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[CriClient]:
    host = parse_build("2022")
    with Store(tmp_path / "root", host=host) as store:
        async with Puller(store) as puller:
            server = new_server()
            add_service(
                server, IMAGE, ImageService(store, puller, host, BUILTIN_HANDLERS, sandbox_handler)
            )
            target = f"unix:{tmp_path}/cri.sock"
            server.add_insecure_port(target)
            await server.start()
            client = CriClient(target)
            yield client
            await client.close()
            await server.stop(grace=None)


def spec(image: str, handler: str = "") -> api.ImageSpec:
    return api.ImageSpec(image=image, runtime_handler=handler)


async def pull(client: CriClient, image: api.ImageSpec, **more: object) -> str:
    request = api.PullImageRequest(image=image, **more)  # type: ignore[arg-type]
    return str((await client.call("PullImage", request)).image_ref)


async def status(client: CriClient, image: api.ImageSpec) -> str:
    answer = await client.call("ImageStatus", api.ImageStatusRequest(image=image))
    return str(answer.image.id)


async def listed(client: CriClient, handler: str = "") -> set[tuple[str, str]]:
    filter_ = api.ImageFilter(image=api.ImageSpec(runtime_handler=handler))
    answer = await client.call("ListImages", api.ListImagesRequest(filter=filter_))
    return {(image.id, image.spec.runtime_handler) for image in answer.images}


async def test_concurrent_pulls_for_two_handlers_give_two_images(
    client: CriClient, home: Path, registry: str
) -> None:
    name = await push(home, f"{registry}/sdk:2.1", "10.0.17763.737", "10.0.20348.2113")
    new, old = await asyncio.gather(
        pull(client, spec(name)), pull(client, spec(name, HYPERVISOR_2019))
    )
    assert new != old
    assert await status(client, spec(name)) == new
    assert await status(client, spec(name, HYPERVISOR_2019)) == old
    assert await listed(client) == {(new, PROCESS), (old, HYPERVISOR_2019)}
    assert await listed(client, HYPERVISOR_2019) == {(old, HYPERVISOR_2019)}
    await client.call("RemoveImage", api.RemoveImageRequest(image=spec(name, HYPERVISOR_2019)))
    assert await listed(client) == {(new, PROCESS)}


@pytest.mark.parametrize("way", ["field", "annotation", "sandbox"])
async def test_handler_is_read_from_spec_annotation_or_sandbox(
    client: CriClient, home: Path, registry: str, way: str
) -> None:
    name = await push(home, f"{registry}/{way}:1", "10.0.17763.737", "10.0.20348.2113")
    match way:
        case "field":
            pulled = await pull(client, spec(name, HYPERVISOR_2019))
        case "annotation":
            pulled = await pull(client, alpha(name))
        case _:
            pulled = await pull(client, spec(name), sandbox_config=SANDBOX)
    assert await listed(client) == {(pulled, HYPERVISOR_2019)}


def alpha(name: str) -> api.ImageSpec:
    return api.ImageSpec(image=name, annotations={"kubernetes.io/runtimehandler": HYPERVISOR_2019})


async def test_status_of_missing_image_is_empty_and_removal_succeeds(
    client: CriClient,
) -> None:
    answer = await client.call("ImageStatus", api.ImageStatusRequest(image=spec("gone:1")))
    assert not answer.HasField("image")
    await asyncio.gather(
        *(client.call("RemoveImage", api.RemoveImageRequest(image=spec("gone:1"))) for _ in "12")
    )


async def test_remove_by_tag_removes_all_tags(client: CriClient, home: Path, registry: str) -> None:
    one = await push(home, f"{registry}/a:1", "2022")
    two = await push(home, f"{registry}/b:2", "2022")
    assert await pull(client, spec(one)) == await pull(client, spec(two))
    request = api.ImageStatusRequest(image=spec(one), verbose=True)
    answer = await client.call("ImageStatus", request)
    assert sorted(answer.image.repo_tags) == sorted([one, two])
    assert "layers" in answer.info["info"]
    await client.call("RemoveImage", api.RemoveImageRequest(image=spec(one)))
    assert await status(client, spec(two)) == ""


@pytest.mark.parametrize(
    ("image", "code", "sentence"),
    [
        (spec("app:1", "runsc"), "NOT_FOUND", 'no runtime for "runsc" is configured'),
        (spec(""), "INVALID_ARGUMENT", "image is required"),
        (spec("No:Name"), "INVALID_ARGUMENT", "No:Name"),
    ],
)
async def test_failed_pull_returns_status_and_message(
    client: CriClient, image: api.ImageSpec, code: str, sentence: str
) -> None:
    with pytest.raises(RemoteError, match=sentence) as caught:
        await pull(client, image)
    assert caught.value.status is grpc.StatusCode[code]


async def test_pull_without_matching_build_lists_available_builds(
    client: CriClient, home: Path, registry: str
) -> None:
    name = await push(home, f"{registry}/old:1", "10.0.14393.1", "10.0.17763.805")
    with pytest.raises(RemoteError) as caught:
        await pull(client, spec(name))
    assert "10.0.20348" in str(caught.value)
    assert "10.0.14393.1, 10.0.17763.805" in str(caught.value)


@pytest.mark.parametrize("form", ["pair", "auth"])
async def test_credentials_of_the_request_are_used(
    client: CriClient, home: Path, basic_registry: str, form: str
) -> None:
    log_in(home, auths(basic_registry))
    name = await push(home, f"{basic_registry}/{form}:1", "2022")
    log_in(home, {"auths": {}})
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    given = api.AuthConfig(auth=pair)
    if form == "pair":
        given = api.AuthConfig(username=USER, password=PASSWORD)
    assert await pull(client, spec(name), auth=given)
    with pytest.raises(RemoteError, match="not base64"):
        await pull(client, spec(name), auth=api.AuthConfig(auth="?"))


async def test_image_fs_info_of_an_empty_store(client: CriClient, tmp_path: Path) -> None:
    answer = await client.call("ImageFsInfo", api.ImageFsInfoRequest())
    (filesystem,) = answer.image_filesystems
    assert filesystem.HasField("used_bytes")
    assert Path(filesystem.fs_id.mountpoint).is_relative_to(tmp_path)


async def test_images_can_be_streamed(client: CriClient, home: Path, registry: str) -> None:
    pulled = await pull(client, spec(await push(home, f"{registry}/s:1", "2022")))
    pages = [p async for p in client.stream("StreamImages", api.StreamImagesRequest())]
    assert [image.id for page in pages for image in page.images] == [pulled]

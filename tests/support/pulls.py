"""Store, images and helpers for tests of pulls."""

import asyncio
import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.windows_images import BASE_FILES, base_layer, bundle, layer, two_builds
from winpod.images.manifests import ImageBundle
from winpod.images.pull.puller import pull
from winpod.images.references import parse_reference
from winpod.images.registry.push import push_image
from winpod.images.store.records import StoredImage
from winpod.images.store.store import Store
from winpod.windows.builds import DEFAULT_HOST, Build
from winpod.windows.handlers import BUILTIN_HANDLERS, PROCESS_HANDLER, Handler

GUEST_2019 = BUILTIN_HANDLERS.get("runhcs-wcow-hypervisor-1809")
BUILDS = bundle(two_builds())
FORK = multiprocessing.get_context("fork")
UPDATE = layer({**BASE_FILES, "Files/update.txt": b"1"}, made_by="Install update 10.0.20348.2113")
PLAIN_BASE = base_layer("10.0.20348.2113", made_by="Apply image 2022-RTM-amd64")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "root") as opened:
        yield opened


async def pull_as(
    store: Store,
    name: str,
    handler: Handler = PROCESS_HANDLER,
    host: Build = DEFAULT_HOST,
    **options: Any,
) -> StoredImage:
    return await pull(store, name, handler, host, **options)


async def push(registry: str, name: str, image: ImageBundle) -> str:
    await push_image(parse_reference(f"{registry}/{name}"), image)
    return f"{registry}/{name}"


def pull_alone(root: Path, name: str) -> None:
    with Store(root) as store:
        asyncio.run(pull_as(store, name))


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    for _ in range(int(seconds * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("timed out waiting for a condition", pytrace=False)


def json_of(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(data)
    return value

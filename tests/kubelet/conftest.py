from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.pushed_images import push
from tests.support.registries import basic_registry, home, registry
from tests.support.small_node import SmallNode, pulled, small_node
from winpod.cri.rpc import CriClient

__all__ = ["basic_registry", "home", "registry"]


@pytest.fixture
def node(tmp_path: Path) -> SmallNode:
    return small_node(tmp_path)


@pytest.fixture
async def client(node: SmallNode) -> AsyncIterator[CriClient]:
    async with node.runtime.running() as client:
        yield client


@pytest.fixture
async def image(client: CriClient, home: Path, registry: str) -> str:
    return await pulled(client, await push(home, f"{registry}/app:1", "2022"))

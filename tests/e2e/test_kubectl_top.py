"""`kubectl top`, through a real metrics-server, of a Windows pod that uses what it is given."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.cri.test_images import push
from tests.e2e import windows_programs
from tests.e2e.metrics_server import metrics_server, program
from tests.e2e.test_node_api import PATIENCE, ApiNode, node, programs
from tests.images.registries import home, registry

__all__ = ["home", "node", "programs", "registry"]

HELD = 64
LIMITS = {"cpu": "300m", "memory": "512Mi"}


@pytest.fixture(scope="module")
def built() -> tuple[Path, Path]:
    """The server and the pod's program, found before a test has a home of its own."""
    return program(), windows_programs.go_program(name="load")


async def test_top_shows_what_a_windows_pod_and_its_node_use(
    built: tuple[Path, Path], node: ApiNode, home: Path, registry: str, tmp_path: Path
) -> None:
    server, load = built
    image = await packed(load, home, registry)
    node.image = image
    begins = {"name": "begins", "image": image, "command": ["cmd", "/c", "echo begun"]}
    await node.start(
        "busy",
        *("C:\\load.exe", str(HELD)),
        container={"resources": {"limits": LIMITS}},
        initContainers=[begins],
    )
    await node.until_said("busy", "holding")
    with metrics_server(node.plane, tmp_path, server):
        (row,) = await shown(node, "pod", "--containers")
        assert row[:2] == ["busy", "app"]
        assert 100 < millicores(row[2]) < 400
        assert HELD <= mebibytes(row[3]) < 512
        (whole,) = await shown(node, "pod")
        assert whole[0] == "busy"
        assert mebibytes(whole[2]) >= HELD
        (of_node,) = await shown(node, "node", node.name)
        assert of_node[0] == node.name
        assert millicores(of_node[1]) > 100
        assert mebibytes(of_node[3]) >= HELD


async def packed(program: Path, home: Path, registry: str) -> str:
    shutil.copy(program, home / "content/load.exe")
    return await push(home, f"{registry}/load:1", "10.0.20348.2113")


async def shown(node: ApiNode, *what: str) -> list[list[str]]:
    """The rows of `kubectl top`, as soon as it has any; it needs to have looked twice."""
    async with asyncio.timeout(PATIENCE):
        while True:
            ran = await node.run("top", *what, "--no-headers")
            rows = [line.split() for line in ran.out.splitlines()]
            if ran.code == 0 and rows and "<unknown>" not in ran.out:
                return rows
            await asyncio.sleep(1)


def millicores(text: str) -> int:
    return int(text.removesuffix("m"))


def mebibytes(text: str) -> int:
    return int(text.removesuffix("Mi"))

"""The winpod command with a root that can run microVMs, and an image of an older build.

The guests are emulated: the test machines have no KVM.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.e2e.command_line import Winpod, winpod_in
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import cache
from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.compute.hypervisor.assets import build_assets
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import Base

WAITS = "echo up & ping -n 2000 127.0.0.1 >nul"


@pytest.fixture(scope="module")
def winpod(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Winpod]:
    build_assets(cache() / "root")
    folder = tmp_path_factory.mktemp("vm")
    os.environ[ALLOW] = "1"
    try:
        with winpod_in(folder, base) as command:
            link_kit(command.root)
            yield command
    finally:
        del os.environ[ALLOW]


def link_kit(root: Path) -> None:
    """Link the guest assets and the template, which all roots share."""
    for shared in ("kits", "templates"):
        (cache() / "root" / shared).mkdir(exist_ok=True)
        (root / shared).symlink_to(cache() / "root" / shared)


@pytest.fixture(scope="module")
def image(winpod: Winpod) -> str:
    content = winpod.home / "content"
    content.mkdir()
    (content / "hello.txt").write_text("of the image\r\n")
    name = f"oci:{winpod.home}/images:old"
    packed = winpod("image", "pack", str(content), "-t", name, "--os-version", "10.0.17763.805")
    assert packed.returncode == 0, packed.stderr
    return name


def run(winpod: Winpod, image: str, line: str, *options: str) -> str:
    ran = winpod("run", "--rm", "--isolation", "hypervisor", *options, image, "cmd", "/c", line)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def machines(winpod: Winpod, runtime: str = "runtime") -> list[int]:
    """Return the process ids of QEMU."""
    found = winpod.root.glob(f"{runtime}/sandboxes/*/vm/qemu.pid")
    return [int(file.read_text()) for file in found]


def state(winpod: Winpod, name: str) -> str:
    listed = json.loads(winpod("ps", "-a", "-o", "json").stdout)
    return next(str(one["state"]) for one in listed if one["name"] == name)


def until_said(winpod: Winpod, name: str, word: str) -> None:
    eventually(lambda: winpod("logs", name), lambda ran: word in ran.stdout)


def call(winpod: Winpod, request: Any) -> Any:
    """Send a CRI request; the call is named after it."""

    async def ask() -> Any:
        client = CriClient(f"unix:{winpod.serving().socket}")
        try:
            return await client.call(type(request).__name__.removesuffix("Request"), request)
        finally:
            await client.close()

    return asyncio.run(ask())


def begin(
    winpod: Winpod,
    image: api.ImageSpec,
    sandbox: str,
    name: str,
    command: Sequence[str],
    **more: Any,
) -> str:
    """Create and start another container in a pod."""
    config = api.ContainerConfig(
        metadata=api.ContainerMetadata(name=name),
        image=image,
        command=command,
        log_path=f"{name}.log",
        **more,
    )
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
    container = str(call(winpod, request).container_id)
    call(winpod, api.StartContainerRequest(container_id=container))
    return container


def until_exited(winpod: Winpod, container: str) -> Any:
    """Wait until the container has exited, and return its status."""
    request = api.ContainerStatusRequest(container_id=container)
    return eventually(
        lambda: call(winpod, request).status,
        lambda status: status.state == api.CONTAINER_EXITED,
    )

"""The command with a root that can run microVMs, and an image of an older build than the host's.

The guests are emulated: these machines have no KVM of the processor's own.
"""

import json
import os
import time
from collections.abc import Iterator

import pytest
from tests.e2e.command_line import Winpod, winpod_in
from tests.e2e.windows_programs import cache

from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.compute.hypervisor.kit import build_kit
from winpod.images.base import Base

WAITS = "echo up & ping -n 200 127.0.0.1 >nul"


@pytest.fixture(scope="module")
def winpod(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Winpod]:
    build_kit(cache() / "root")
    folder = tmp_path_factory.mktemp("vm")
    os.environ[ALLOW] = "1"
    try:
        with winpod_in(folder, base) as command:
            link_kit(command)
            yield command
    finally:
        del os.environ[ALLOW]


def link_kit(winpod: Winpod) -> None:
    """What all roots share: the kit, and the template that is made once."""
    for shared in ("kits", "templates"):
        (cache() / "root" / shared).mkdir(exist_ok=True)
        (winpod.root / shared).symlink_to(cache() / "root" / shared)


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
    """The pids of their QEMUs."""
    found = winpod.root.glob(f"{runtime}/sandboxes/*/vm/qemu.pid")
    return [int(file.read_text()) for file in found]


def state(winpod: Winpod, name: str) -> str:
    listed = json.loads(winpod("ps", "-a", "-o", "json").stdout)
    return next(str(one["state"]) for one in listed if one["name"] == name)


def until_said(winpod: Winpod, name: str, word: str) -> None:
    deadline = time.monotonic() + 90
    while word not in winpod("logs", name).stdout:
        assert time.monotonic() < deadline, winpod("logs", name)
        time.sleep(0.3)

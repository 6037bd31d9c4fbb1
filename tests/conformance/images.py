"""Images that critest pulls by fixed names, with small test programs in them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.program import DIGEST_NAME
from tests.support.e2e.windows_programs import c_program

PROGRAMS = Path(__file__).parent / "programs"
STAGING = "gcr.io/k8s-staging-cri-tools"
REGISTRIES = ("registry.k8s.io", "k8s.gcr.io", "gcr.io")
_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "ping": ("ws2_32",),
    "ipconfig": ("ws2_32", "iphlpapi", "dnsapi"),
    "webserver": ("ws2_32",),
}
_SHELL = ("cmd", "powershell", "ping", "ipconfig", "sleep")


@dataclass(frozen=True)
class TestImage:
    r"""Image with its names, the programs in C:\, and the default entrypoint."""

    names: tuple[str, ...]
    programs: tuple[str, ...] = ("sleep",)
    command: str = "C:\\sleep.exe"


IMAGES = (
    TestImage(("registry.k8s.io/e2e-test-images/busybox:1.29-2",), _SHELL),
    TestImage(
        ("registry.k8s.io/e2e-test-images/nginx:1.14-2",), ("webserver",), "C:\\webserver.exe"
    ),
    TestImage(("registry.k8s.io/pause:3.9", "k8s.gcr.io/pause:3.9")),
    *(
        TestImage((f"{STAGING}/win-test-image-{name}:latest",))
        for name in ("1", "2", "3", "latest", "digest")
    ),
    TestImage(tuple(f"{STAGING}/win-test-image-tags:{tag}" for tag in ("1", "2", "3"))),
    TestImage((f"{STAGING}/win-test-image-tag:test",)),
    TestImage((f"{STAGING}/win-test-image-tag:all",)),
)


def push_images(registry: str, folder: Path) -> str:
    """Pack every image into a registry; return the digest of the one that is pulled by digest."""
    digests = {image.names[0]: _push(image, registry, folder) for image in IMAGES}
    return next(digest for name, digest in digests.items() if DIGEST_NAME in name)


def write_mirrors(registry: str, folder: Path) -> None:
    """Write a hosts.toml for every registry that critest uses, with the local one as mirror."""
    for name in REGISTRIES:
        (folder / name).mkdir(parents=True)
        (folder / name / "hosts.toml").write_text(f'[host."http://{registry}"]\n')


def _push(image: TestImage, registry: str, folder: Path) -> str:
    content = folder / image.names[0].replace("/", "-").replace(":", "-")
    content.mkdir(parents=True)
    for name in image.programs:
        program = c_program(name, PROGRAMS, _LIBRARIES.get(name, ()))
        shutil.copy(program, content / program.name)
    (content / "image.txt").write_text(f"{image.names[0]}\n")
    local = [f"{registry}/{name.partition('/')[2]}" for name in image.names]
    command = [sys.executable, "-m", "winpod", "image", "pack", str(content), "-o", "json"]
    command += ["--os-version", "2022", "--entrypoint", json.dumps([image.command])]
    for name in dict.fromkeys(local):
        command += ["--tag", name]
    packed = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return str(json.loads(packed.stdout)["digest"])

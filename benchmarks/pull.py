"""Duration of a pull, compared with Debian's containerd: the same image from the same registry.

A Windows image with 1 GB of files in five gzip layers is in docker-registry on loopback. winpod is
measured as a command, from the start of its process to its end; containerd already runs, and its
`ctr` is measured. Both start with an empty store on the same disk and end with every layer
unpacked; they alternate, and the result is the median of the rounds. containerd uses unpigz if it
is installed, so it is measured with and without it. Nothing is deleted before the end, because ext4
is slow to create files after many were deleted: that takes 20 GB of disk.

A warm page cache holds the files of the registry; a cold one is empty.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.support.registries import docker_registry

from benchmarks.containerd import containerd
from benchmarks.measuring import Taken, measure, report
from benchmarks.windows_layers import write_layers
from winpod.images.manifests import (
    OCI_CONFIG,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
    ImageBundle,
    compute_digest,
)
from winpod.images.references import parse_reference
from winpod.images.registry.push import push_image

SIZE = 1 << 30
ROUNDS = {"warm": 3, "cold": 1}
PLATFORM = {"architecture": "amd64", "os": "windows", "os.version": "10.0.20348.2113"}
PROGRAMS = {"docker-registry": "docker-registry", "containerd": "containerd", "pigz": "pigz"}

Pull = Callable[[str, Path], Taken]
"""Function that pulls a name into a store in a new directory, and returns its cost."""


def make_image(workspace: Path) -> ImageBundle:
    archives = write_layers(workspace, SIZE)
    diff_ids = []
    layers: list[tuple[Descriptor, bytes | Path]] = []
    for archive in archives:
        diff_ids.append(_digest(archive))
        subprocess.run(["pigz", "-6", archive], check=True)
        path = archive.with_suffix(".tar.gz")
        descriptor = Descriptor(OCI_LAYER_GZIP, _digest(path), path.stat().st_size)
        layers.append((descriptor, path))
    config = _stored(OCI_CONFIG, {**PLATFORM, "rootfs": {"type": "layers", "diff_ids": diff_ids}})
    manifest = _stored(
        OCI_MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config[0].as_json(),
            "layers": [descriptor.as_json() for descriptor, _ in layers],
        },
    )
    return ImageBundle((*layers, config), (manifest,))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _stored(media_type: str, document: dict[str, object]) -> tuple[Descriptor, bytes]:
    data = json.dumps(document).encode()
    return Descriptor(media_type, compute_digest(data), len(data)), data


def pull_with_winpod(name: str, place: Path) -> Taken:
    command = [sys.executable, "-m", "winpod", "pull", "--root", str(place / "root"), name]
    return measure(lambda: _run(command))


def pull_with_containerd(name: str, place: Path, *, with_unpigz: bool) -> Taken:
    """Pull with ctr; the CPU time is that of containerd's whole run, which is mostly the pull."""
    clock = 0.0

    def work() -> None:
        nonlocal clock
        with containerd(place, {"CONTAINERD_DISABLE_PIGZ": "" if with_unpigz else "1"}) as socket:
            pull = ["ctr", "--address", str(socket), "images", "pull", "--plain-http"]
            start = time.perf_counter()
            _run([*pull, "--platform", "windows/amd64", name])
            clock = time.perf_counter() - start

    cpu = measure(work).cpu
    return Taken(clock, cpu)


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")


WAYS: dict[str, Pull] = {
    "winpod": pull_with_winpod,
    "containerd": lambda name, place: pull_with_containerd(name, place, with_unpigz=False),
    "containerd with unpigz": lambda name, place: pull_with_containerd(
        name, place, with_unpigz=True
    ),
}


def pull_into(pull: Pull, name: str, place: Path, cache: str) -> Taken:
    place.mkdir(parents=True)
    os.sync()
    if cache == "cold":
        Path("/proc/sys/vm/drop_caches").write_text("3")
    return pull(name, place)


def main() -> None:
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install -y {package}")
    with ExitStack() as stack:
        workspace = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="winpod-benchmark-"))
        )
        address = stack.enter_context(docker_registry(workspace / "registry"))
        image = make_image(workspace)
        name = f"{address}/benchmark/app:1"
        asyncio.run(push_image(parse_reference(name), image))
        size = sum(descriptor.size for descriptor, _ in image.blobs)
        print(f"{SIZE / 1e6:.0f} MB of files, {size / 1e6:.0f} MB in {len(image.blobs) - 1} layers")
        for cache, rounds in ROUNDS.items():
            times: dict[str, list[Taken]] = {tool: [] for tool in WAYS}
            for turn in range(rounds):
                for tool, pull in WAYS.items():
                    place = workspace / f"{cache}-{turn}-{tool.replace(' ', '-')}"
                    times[tool].append(pull_into(pull, name, place, cache))
            report(f"{cache} cache", times)


if __name__ == "__main__":
    main()

"""How long pulling takes, against Debian's containerd: the same image from the same registry.

A Windows image with 1 GB of files in five gzip layers lies in docker-registry on loopback. winpod
pulls it as a command does, from the start of its process to its end; containerd runs already and
its `ctr` is timed. Both begin with an empty store on the same disk and end with every layer
unpacked; they take turns, and the median of the rounds counts. containerd uses unpigz where it is
installed, so it is measured with it and without. Nothing is deleted before the end, because ext4
is slow to create files where many were just deleted: that takes 20 GB of disk.

A warm page cache holds what the registry reads; a cold one holds nothing. Beside the time stands
the CPU time of the puller's processes, which says more than the clock where others use the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.images.registries import docker_registry

from benchmarks.windows_layers import write_layers
from winpod.images.manifests import (
    OCI_CONFIG,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Bundle,
    Descriptor,
    digest_of,
)
from winpod.images.push import push_image
from winpod.images.references import parse_reference

SIZE = 1 << 30
ROUNDS = {"warm": 3, "cold": 1}
PLATFORM = {"architecture": "amd64", "os": "windows", "os.version": "10.0.20348.2113"}
PROGRAMS = {"docker-registry": "docker-registry", "containerd": "containerd", "pigz": "pigz"}

CONTAINERD = """\
version = 2
root = "{place}/root"
state = "{place}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "{place}/socket"
"""

Pull = Callable[[str, Path], float]
"""Pulls a name into a store in a new directory, and gives the seconds that it took."""


def make_image(workspace: Path) -> Bundle:
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
    return Bundle((*layers, config), (manifest,))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _stored(media_type: str, document: dict[str, object]) -> tuple[Descriptor, bytes]:
    data = json.dumps(document).encode()
    return Descriptor(media_type, digest_of(data), len(data)), data


def pull_with_winpod(name: str, place: Path) -> float:
    command = [sys.executable, "-m", "winpod", "pull", "--root", str(place / "root"), name]
    return _timed(command)


def pull_with_containerd(name: str, place: Path, *, with_unpigz: bool) -> float:
    with containerd(place, with_unpigz) as socket:
        pull = ["ctr", "--address", str(socket), "images", "pull", "--plain-http"]
        return _timed([*pull, "--platform", "windows/amd64", name])


@contextmanager
def containerd(place: Path, with_unpigz: bool) -> Iterator[Path]:
    config = place / "config.toml"
    config.write_text(CONTAINERD.format(place=place))
    environment = {**os.environ, "CONTAINERD_DISABLE_PIGZ": "" if with_unpigz else "1"}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            ["containerd", "--config", str(config)], stdout=log, stderr=log, env=environment
        )
        try:
            deadline = time.monotonic() + 30
            while not (place / "socket").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"containerd did not start:\n{(place / 'log').read_text()}")
                time.sleep(0.05)
            yield place / "socket"
        finally:
            process.terminate()
            process.wait()


def _timed(command: list[str]) -> float:
    start = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - start
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return taken


WAYS: dict[str, Pull] = {
    "winpod": pull_with_winpod,
    "containerd": lambda name, place: pull_with_containerd(name, place, with_unpigz=False),
    "containerd, unpigz": lambda name, place: pull_with_containerd(name, place, with_unpigz=True),
}


@dataclass(frozen=True, slots=True)
class Taken:
    seconds: float
    cpu: float


def measure(pull: Pull, name: str, place: Path, cache: str) -> Taken:
    place.mkdir(parents=True)
    os.sync()
    if cache == "cold":
        Path("/proc/sys/vm/drop_caches").write_text("3")
    before = _cpu_of_children()
    seconds = pull(name, place)
    return Taken(seconds, _cpu_of_children() - before)


def _cpu_of_children() -> float:
    """Of those that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
            times: dict[str, list[Taken]] = {who: [] for who in WAYS}
            for turn in range(rounds):
                for who, pull in WAYS.items():
                    place = workspace / f"{cache}-{turn}-{who.replace(', ', '-')}"
                    times[who].append(measure(pull, name, place, cache))
            _report(cache, times)


def _report(cache: str, times: dict[str, list[Taken]]) -> None:
    seconds = {who: statistics.median(one.seconds for one in taken) for who, taken in times.items()}
    cpu = {who: statistics.median(one.cpu for one in taken) for who, taken in times.items()}
    for who in times:
        ratios = seconds[who] / seconds["winpod"], cpu[who] / cpu["winpod"]
        print(
            f"{cache} cache  {who:20} {seconds[who]:6.2f} s  {ratios[0]:5.2f} x winpod"
            f"   CPU {cpu[who]:6.2f} s  {ratios[1]:5.2f} x winpod",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""winpod and containerd as CRI servers with the same setup: the same Wine, the same CNI plugins.

containerd runs the Wine base as a Linux image; winpod runs a Windows image over it. Both have the
same small Windows program in C:. All processes of containerd are in one cgroup with limits of
processes and memory, because its containers have no limit of processes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.e2e.windows_programs import c_program, once

from benchmarks.containerd import cri_containerd
from benchmarks.wine_image import pack_program, pack_wine
from winpod.images.base.builder import Base

PROGRAMS = Path(__file__).parent / "programs"
GROUPS = Path("/sys/fs/cgroup")
GROUP = "winpod-benchmark"
_PAUSE, _WINE = "bench.example/pause:1", "bench.example/wine:1"
_LIMITS = {"pids/pids.max": "4000", "memory/memory.limit_in_bytes": str(16 << 30)}


@dataclass(slots=True)
class Server:
    """CRI server: its socket, the image with the program, and the prefix of Windows commands."""

    name: str
    socket: Path
    image: str
    before: tuple[str, ...]
    folder: Path
    pid: int = 0
    warm: int = 0
    handler: str = ""

    @property
    def silos(self) -> list[Path]:
        return list((self.folder / "root/runtime/warm").glob("*"))

    def until_warm(self) -> None:
        """Wait until the warm pool is full and idle."""
        deadline = time.monotonic() + 120
        while sum(1 for silo in self.silos if _memory_of(silo)) < self.warm:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} did not fill its warm pool of {self.warm} silos")
            time.sleep(0.1)
        time.sleep(1)

    def report_memory(self) -> None:
        """Print the proportional set size of the warm silos and of the runtime."""
        silos = [_memory_of(silo) for silo in self.silos]
        print(
            f"{self.name}: {statistics.median(silos) / 1e6:.0f} MB for each of {len(silos)} "
            f"warm silos, {_proportional(self.pid) / 1e6:.0f} MB for the runtime"
        )


def _memory_of(silo: Path) -> int:
    try:
        group = GROUPS / "pids/winpod" / (silo / "id").read_text()
        processes = (group / "cgroup.procs").read_text().split()
    except OSError:
        return 0
    return sum(_proportional(int(pid)) for pid in processes)


def _proportional(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if "Pss:" in line)


@contextmanager
def winpod(name: str, base: Base, warm: int, number: int, folder: Path) -> Iterator[Server]:
    root, socket = folder / "root", folder / "socket"
    root.mkdir(parents=True)
    (root / "bases").symlink_to(base.path.parent)
    config = folder / "config.toml"
    config.write_text(
        f'root = "{root}"\n[network]\ncni = "{_write_cni(number, folder)}"\n'
        f'[runtime]\nsocket = "{socket}"\nwarm_shells = {warm}\nlog_level = "warning"\n'
    )
    environment = {**os.environ, "WINPOD_CONFIG": str(config)}
    environment.pop("WINPOD_ROOT", None)
    command = [sys.executable, "-m", "winpod"]
    content, image = folder / "content", f"oci:{folder}/images:ready"
    content.mkdir()
    shutil.copy(c_program("ready", PROGRAMS), content)
    pack = ["image", "pack", str(content), "-t", image, "--os-version", "2022"]
    subprocess.run([*command, *pack], check=True, env=environment, stdout=subprocess.DEVNULL)
    process = subprocess.Popen([*command, "runtime"], env=environment)
    try:
        yield Server(name, socket, image, (), folder, process.pid, warm)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def containerd(base: Base, number: int, folder: Path) -> Iterator[Server]:
    folder.mkdir()
    images = (
        pack_wine(base, c_program("ready", PROGRAMS), _WINE, folder),
        pack_program(_pause_program(), _PAUSE, folder),
    )
    with _limited(), cri_containerd(folder, _PAUSE, _write_cni(number, folder)) as socket:
        for image in images:
            load = ["ctr", "--address", str(socket), "--namespace", "k8s.io", "images", "import"]
            subprocess.run([*load, str(image)], check=True, stdout=subprocess.DEVNULL)
            image.unlink()
        yield Server("containerd", socket, _WINE, ("wine64",), folder)


def _pause_program() -> Path:
    source = PROGRAMS / "pause.c"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-Os", "-s"]

    def build(target: Path) -> None:
        subprocess.run([*command, str(source), "-o", str(target)], check=True)

    return once("pause", source.read_text(), build)


@contextmanager
def _limited() -> Iterator[None]:
    for name, limit in _LIMITS.items():
        group = GROUPS / Path(name).parent / GROUP
        group.mkdir(exist_ok=True)
        (group / Path(name).name).write_text(limit)
    try:
        yield
    finally:
        for group in GROUPS.glob(f"*/{GROUP}"):
            group.rmdir()


def _write_cni(number: int, folder: Path) -> Path:
    """Write the CNI configuration of one server; only its name and addresses differ."""
    directory = folder / "cni"
    directory.mkdir()
    ipam = {
        "type": "host-local",
        "dataDir": str(folder / "leases"),
        "ranges": [[{"subnet": f"10.{200 + number}.0.0/16"}]],
    }
    plugins = [
        {"type": "bridge", "bridge": f"bench{number}", "isGateway": True, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    network = {"cniVersion": "1.0.0", "name": f"bench{number}", "plugins": plugins}
    (directory / "bench.conflist").write_text(json.dumps(network))
    return directory

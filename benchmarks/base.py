"""Cost of the Wine base: build time, disk usage, a prefix for another build, and program starts.

It is built from Debian's mirror into a separate directory; the disk usage is measured after each
step, to show what each step saves. A cold start is a container with a new Wine; a warm one is a
second program in it.

`--keep DIR` keeps the base.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from winpod.files import tree_usage
from winpod.images.base.build_container import ENVIRONMENT, build_container_spec
from winpod.images.base.builder import Base, BuildStep, build_base, prepare_prefix
from winpod.windows.builds import parse_build

BUILDS = ("10.0.17763.805", "10.0.20348.2113", "10.0.26100.1742")
PREFIXES = 30
STARTS = 10


class Watch:
    """Record the start of each step and its disk usage; the time to measure it is not counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[tuple[str, float, int]] = []
        self.paused = 0.0
        self.began = time.perf_counter()

    def __call__(self, step: BuildStep) -> None:
        now = time.perf_counter()
        size = sum(tree_usage(path).bytes for path in self.root.glob("bases/.building-*"))
        self.steps.append((step.name, now - self.began - self.paused, size))
        self.paused += time.perf_counter() - now

    def report(self, base: Base) -> None:
        end = time.perf_counter() - self.began - self.paused
        following = [*self.steps[1:], ("", end, base.size)]
        print(f"{'step':<46}{'seconds':>9}{'MB after it':>13}")
        for (name, start, _), (_, stop, size) in zip(self.steps, following, strict=True):
            print(f"{name:<46}{stop - start:>9.1f}{size / 1e6:>13.0f}")
        print(f"{'total':<46}{end:>9.1f}{base.size / 1e6:>13.0f}")


def prefix_times(base: Base, folder: Path) -> list[float]:
    times = []
    for number in range(PREFIXES):
        target = folder / str(number)
        start = time.perf_counter()
        prepare_prefix(base, parse_build(BUILDS[number % len(BUILDS)]), [], target)
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def drive(base: Base, folder: Path) -> Iterator[Path]:
    """Mount a prefix of Windows Server 2022 with its drive C:."""
    prepare_prefix(base, parse_build("2022"), [], folder / "prefix")
    for name in ("upper", "work"):
        (folder / name).mkdir()
    place = folder / "prefix/drive_c"
    options = f"lowerdir={base.drive_c},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", options, str(place)], check=True)
    try:
        yield folder / "prefix"
    finally:
        subprocess.run(["umount", str(place)], check=True)


def cold_and_warm(base: Base, folder: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of `cmd /c echo` in a new container, and as a second program in one."""
    runc, own = ["runc", "--root", str(folder / "state")], f"winpod-bench-{os.getpid()}"
    bundle = folder / "bundle"
    bundle.mkdir()
    with drive(base, folder) as prefix:

        def start(name: str, command: str, output: Path, *options: str) -> None:
            arguments = ["wine64", "cmd", "/c", command]
            spec = build_container_spec(base.rootfs, prefix, arguments, name, ENVIRONMENT)
            (bundle / "config.json").write_text(json.dumps(spec))
            _run([*runc, "run", *options, "--bundle", str(bundle), name], output)

        cold = []
        for number in range(STARTS):
            began = time.perf_counter()
            start(f"{own}-{number}", "echo hello", folder / "said")
            cold.append(time.perf_counter() - began)
        name, output = f"{own}-stays", folder / "stays"
        start(name, "echo ready& ping -n 600 127.0.0.1 >nul", output, "--detach")
        try:
            _wait_for(output, b"ready")  # the programs must not start at the same time
            warm = []
            for _ in range(STARTS):
                began = time.perf_counter()
                _run([*runc, "exec", name, "wine64", "cmd", "/c", "echo hello"], folder / "said")
                warm.append(time.perf_counter() - began)
        finally:
            subprocess.run([*runc, "delete", "--force", name], check=True)
    return cold, warm


def _run(command: list[str], output: Path) -> None:
    with output.open("wb") as file:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=file, timeout=60)


def _wait_for(file: Path, text: bytes) -> None:
    deadline = time.monotonic() + 30
    while text not in file.read_bytes():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} does not contain {text!r}")
        time.sleep(0.05)


def _show(what: str, times: list[float]) -> None:
    middle, best = statistics.median(times) * 1000, min(times) * 1000
    print(f"{what:<46}{middle:>9.1f} ms   best {best:.1f} ms")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--keep", type=Path, help="build in this directory and keep it")
    options.add_argument("--with-32bit", action="store_true")
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="winpod-bench-"))
    try:
        root = chosen.keep or folder / "root"
        watch = Watch(root)
        base = build_base(root, with_32bit=chosen.with_32bit, progress=watch)
        if watch.steps:
            watch.report(base)
        (folder / "prefixes").mkdir()
        _show("prefix for another Windows build", prefix_times(base, folder / "prefixes"))
        (folder / "starts").mkdir()
        cold, warm = cold_and_warm(base, folder / "starts")
        _show("first program, cold (runc and Wine start)", cold)
        _show("second program, warm (runc exec)", warm)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

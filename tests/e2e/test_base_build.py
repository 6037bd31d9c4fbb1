"""Base builds are atomic: tested with kills, concurrent builds, no network and a full disk.

The real mmdebstrap unpacks Debian's packages once. Builds that are killed use a fake mmdebstrap
that hard-links this tree, so that each takes seconds. The rest of the build is real.
"""

import fcntl
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.e2e.windows_programs import cache

from winpod.images.base import builder as bases
from winpod.images.base.builder import STEPS, Base, build_base, list_bases, remove_base
from winpod.images.base.recipe import LIBRARIES, PACKAGES
from winpod.images.base.rootfs_builder import choose_mirrors, unpack_packages
from winpod.images.errors import BaseInUse, DiskFull, MirrorUnavailable

FAKE_MMDEBSTRAP = """\
#!/bin/sh -e
echo once >>{log}
while [ -e {hold} ]; do sleep 0.05; done
while [ "$1" != trixie ]; do shift; done
cp -al {tree} "$2" 2>/dev/null || exec cp -a {tree} "$2"
"""
BUILD = """\
import os, signal, sys, threading
from pathlib import Path
from winpod.images.base.builder import build_base

dying = []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def progress(step):
    print(step.name, flush=True)
    if dying:  # the step did not take as long
        die()
    if step.name == {step!r}:
        dying.append(threading.Timer({delay}, die))
        dying[0].start()
        if {delay} == 0:
            signal.pause()

print(build_base(Path(sys.argv[1]), progress=progress).id, flush=True)
"""


@pytest.fixture(scope="session")
def tree() -> Path:
    """Return a directory with Debian's packages, unpacked by mmdebstrap."""
    folder = cache() / f"debian-tree-{'-'.join(PACKAGES)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = folder.with_name(f".{folder.name}")
            shutil.rmtree(unfinished, ignore_errors=True)
            unpack_packages(unfinished, choose_mirrors(), with_32bit=False)
            unfinished.rename(folder)
    return folder


@pytest.fixture
def fake_mmdebstrap(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the fake first in PATH; return the file to which it appends a line per run."""
    log = tmp_path / "unpacked"
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    program.write_text(FAKE_MMDEBSTRAP.format(log=log, tree=tree, hold=tmp_path / "hold"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


@pytest.fixture
def root(tree: Path) -> Iterator[Path]:
    """Return a root on the disk of the tree, which is hard-linked into it."""
    folder = tree.with_name(f"test-{os.getpid()}-{time.monotonic_ns()}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start_build(root: Path, die_at: str = "", delay: float = 0) -> subprocess.Popen[str]:
    script = textwrap.dedent(BUILD.format(step=die_at, delay=delay))
    command = [sys.executable, "-c", script, str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def base_entries(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "bases").iterdir() if path.name != ".lock")


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of running processes that contain a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def cgroups(names: list[str]) -> list[Path]:
    hierarchies = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
    return [
        hierarchy / name
        for hierarchy in hierarchies
        for name in names
        if (hierarchy / name).exists()
    ]


@pytest.mark.parametrize(
    ("step", "delay"),
    [
        *((step.name, 0.0) for step in STEPS),
        (bases.PACKAGES.name, 0.5),
        (bases.LIBRARIES.name, 0.03),
        (bases.LIBRARIES.name, 0.08),
        (bases.LIBRARIES.name, 0.15),
        (bases.PREFIX.name, 0.05),
        (bases.PREFIX.name, 2.0),
    ],
)
def test_killed_build_leaves_no_processes_or_files(
    step: str, delay: float, root: Path, fake_mmdebstrap: Path
) -> None:
    assert not fake_mmdebstrap.exists()
    process = start_build(root, step, delay)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert list_bases(root) == []
    assert len(base_entries(root)) == 1
    deadline = time.monotonic() + 120
    while processes_in(root):
        assert time.monotonic() < deadline, processes_in(root)
        time.sleep(0.05)
    containers = [path.name for path in root.glob("bases/.*/container-*")]
    groups = [name.replace("container-", "winpod-base-") for name in containers]
    remove_base(root)  # any command cleans up
    assert base_entries(root) == []
    assert cgroups(groups) == []


def test_build_after_killed_build_is_complete(root: Path, fake_mmdebstrap: Path) -> None:
    start_build(root, bases.PREFIX.name, 2.0).communicate()
    assert len(base_entries(root)) == 1
    built = build_base(root)
    assert base_entries(root) == [built.id]
    assert (built.drive_c / "windows/system32/cmd.exe").is_file()
    assert len(fake_mmdebstrap.read_text().splitlines()) == 2


def test_concurrent_builds_create_one_base(root: Path, fake_mmdebstrap: Path) -> None:
    (fake_mmdebstrap.parent / "hold").touch()
    first, second = start_build(root), start_build(root)
    first_steps = {
        process.stdout.readline().strip() for process in (first, second) if process.stdout
    }
    assert first_steps == {bases.WAIT.name, bases.PACKAGES.name}
    (fake_mmdebstrap.parent / "hold").unlink()
    outputs = [process.stdout.read().splitlines() for process in (first, second) if process.stdout]
    assert [first.wait(), second.wait()] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1] == base_entries(root)[0]
    assert len(fake_mmdebstrap.read_text().splitlines()) == 1
    again = build_base(root, refresh=True)
    assert base_entries(root) == [again.id] == [outputs[0][-1]]


def test_interrupted_removal_is_completed(root: Path, base: Base) -> None:
    (root / "bases").mkdir(parents=True)
    shutil.copytree(base.path / "prefix/dosdevices", root / "bases/.removing-x", symlinks=True)
    assert remove_base(root) == []
    assert base_entries(root) == []


def test_mounted_base_is_not_removed(base: Base, root: Path, tmp_path: Path) -> None:
    copy = root / "bases" / base.id
    (copy / "rootfs").mkdir(parents=True)
    shutil.copy(base.path / "base.json", copy)
    mount_point = tmp_path / "place"
    mount_point.mkdir()
    options = f"lowerdir={copy / 'rootfs'}:{base.drive_c}"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", options, str(mount_point)], check=True)
    try:
        with pytest.raises(BaseInUse, match="Stop the containers"):
            remove_base(root)
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)
    assert [removed.id for removed in remove_base(root, base.id[:6])] == [base.id]
    assert base_entries(root) == []


def test_unreachable_mirror_is_reported(root: Path) -> None:
    with pytest.raises(MirrorUnavailable, match=r"http://127\.0\.0\.1:9/debian cannot be reached"):
        build_base(root, mirror="http://127.0.0.1:9/debian")
    assert base_entries(root) == []


@pytest.fixture
def unsigned_mirror(tmp_path: Path) -> Iterator[str]:
    release = tmp_path / "mirror/debian/dists/trixie/Release"
    release.parent.mkdir(parents=True)
    release.write_text("Suite: stable\nCodename: trixie\nArchitectures: amd64\nComponents: main\n")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "mirror"))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/debian"
    server.shutdown()


def test_unsigned_packages_are_rejected(root: Path, unsigned_mirror: str) -> None:
    with pytest.raises(MirrorUnavailable, match="not signed"):
        build_base(root, mirror=unsigned_mirror)
    assert base_entries(root) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    options = ["-t", "tmpfs", "-o", "size=300m", "tmpfs"]
    subprocess.run(["mount", *options, str(mount_point)], check=True)
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def test_too_small_disk_is_rejected_before_build(small_disk: Path) -> None:
    with pytest.raises(DiskFull, match=r"has only 0\.3 GB free"):
        build_base(small_disk)
    assert list(small_disk.iterdir()) == []


@pytest.mark.usefixtures("fake_mmdebstrap")
def test_disk_full_during_build_is_reported(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "REQUIRED_SPACE", 0)
    with pytest.raises(DiskFull, match="became full"):
        build_base(small_disk)
    assert base_entries(small_disk) == []


def test_cli_shows_built_base(base: Base) -> None:
    root = base.path.parent.parent
    command = [sys.executable, "-m", "winpod", "base"]
    built = subprocess.run(
        [*command, "build", "--root", str(root), "-o", "json"], capture_output=True, check=True
    )
    shown = subprocess.run(
        [*command, "show", "--root", str(root)], capture_output=True, text=True, check=True
    )
    assert json.loads(built.stdout)[0]["id"] == base.id
    assert json.loads(built.stdout)[0]["current"] is True
    assert base.short_id in shown.stdout


def test_all_needed_libraries_are_present(base: Base) -> None:
    """The build checks with the dynamic linker; this checks the files with readelf."""
    present = {path.name for path in (base.rootfs / LIBRARIES).rglob("*.so*")}
    present |= {path.name for path in (base.rootfs / "usr/lib64").iterdir()}
    missing = set()
    for file in (base.rootfs / LIBRARIES).rglob("*.so*"):
        output = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True).stdout
        for line in output.splitlines():
            if "(NEEDED)" in line:
                missing |= {line.partition("[")[2].rstrip("]")} - present
    assert missing == set()


def test_base_size_is_limited(base: Base) -> None:
    assert base.size < 260_000_000

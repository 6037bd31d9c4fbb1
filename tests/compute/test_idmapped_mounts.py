"""Mounts where `/` is private, and where it is shared as under systemd."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from winpod.compute import idmapped_mounts
from winpod.compute.rootfs import ContainerRootfs
from winpod.compute.spec import Mount, MountSourceKind
from winpod.concurrency import run_in_own_thread

MS_REC, MS_PRIVATE, MS_SHARED = 1 << 14, 1 << 18, 1 << 20
CLONE_NEWNS = 0x20000
LIBC = ctypes.CDLL(None, use_errno=True)

Within = Callable[[Callable[[], None]], None]


@pytest.fixture(params=["private", "shared"])
def within(request: pytest.FixtureRequest) -> Within:
    """Run a function in a mount namespace whose mounts all have this propagation."""
    propagation = MS_SHARED if request.param == "shared" else MS_PRIVATE

    def run(act: Callable[[], None]) -> None:
        def in_namespace() -> None:
            assert LIBC.unshare(CLONE_NEWNS) == 0
            assert LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
            assert LIBC.mount(b"none", b"/", None, MS_REC | propagation, None) == 0
            act()

        run_in_own_thread(in_namespace)

    return run


@pytest.fixture
def container() -> Iterator[int]:
    """The pid of a process with a mount namespace of its own, as runc makes one."""
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo up; exec sleep 60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def tree(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def disk(folder: Path) -> Path:
    for name in ("upper", "work"):
        (folder / name).mkdir(parents=True)
    return folder


def mount_points() -> list[str]:
    lines = Path("/proc/thread-self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines]


def test_an_overlay_stacks_detached_trees_topmost_first(tmp_path: Path, within: Within) -> None:
    top, bottom = tree(tmp_path / "top", a="top"), tree(tmp_path / "bottom", a="bottom", b="bottom")
    target, scratch = tree(tmp_path / "target"), disk(tmp_path / "a,odd:name")

    def act() -> None:
        before = mount_points()
        with idmapped_mounts.clone_tree(top) as one, idmapped_mounts.clone_tree(bottom) as two:
            idmapped_mounts.mount_overlay([one, two], scratch, target)
        assert (target / "a").read_text() == "top"
        assert (target / "b").read_text() == "bottom"
        (target / "c").write_text("written")
        assert mount_points() == [*before, str(target)]
        idmapped_mounts.unmount(target)
        assert mount_points() == before

    within(act)
    assert (scratch / "upper/c").read_text() == "written"


def test_an_overlay_without_a_disk_is_read_only(tmp_path: Path, within: Within) -> None:
    layers, target = [tree(tmp_path / name, a=name) for name in "xy"], tree(tmp_path / "target")

    def act() -> None:
        with (
            idmapped_mounts.clone_tree(layers[0]) as one,
            idmapped_mounts.clone_tree(layers[1]) as two,
        ):
            idmapped_mounts.mount_overlay([one, two], None, target)
        with pytest.raises(OSError, match="Read-only"):
            (target / "b").write_text("")
        idmapped_mounts.unmount(target)

    within(act)


def test_failed_overlay_leaves_no_mounts(tmp_path: Path, within: Within) -> None:
    layer, target = tree(tmp_path / "layer"), tree(tmp_path / "target")

    def act() -> None:
        before = mount_points()
        with idmapped_mounts.clone_tree(layer) as one, pytest.raises(OSError, match="No such file"):
            idmapped_mounts.mount_overlay([one], tmp_path / "missing", target)
        assert mount_points() == before

    within(act)


def test_a_clone_keeps_its_submounts_when_the_source_is_unmounted(
    tmp_path: Path, within: Within
) -> None:
    source, inner = tree(tmp_path / "source"), tree(tmp_path / "inner", a="inner")
    (source / "inner").mkdir()
    target = tree(tmp_path / "target")

    def act() -> None:
        for path in (source, inner):
            with idmapped_mounts.clone_tree(path) as clone:
                idmapped_mounts.move_tree_to(clone, source if path == source else source / "inner")
        with idmapped_mounts.clone_tree(source) as clone:
            idmapped_mounts.move_tree_to(clone, target)
        idmapped_mounts.unmount(source / "inner")
        idmapped_mounts.unmount(source)
        assert (target / "inner/a").read_text() == "inner"

    within(act)


def test_a_container_sees_its_volumes_after_the_drive_left_the_host(
    tmp_path: Path, within: Within, container: int
) -> None:
    """The drive is assembled on the host, moved into the container, and unmounted here."""
    base = tree(tmp_path / "base", a="base")
    data, root = tree(tmp_path / "data", d="data"), tree(tmp_path / "c")
    single = tree(tmp_path / "single", f="file") / "f"
    scratch, inside = tree(tmp_path / "scratch"), tree(tmp_path / "inside")
    mounts = [
        Mount(str(data), "C:\\data", MountSourceKind.DIRECTORY),
        Mount(str(data), "C:\\fixed", MountSourceKind.DIRECTORY, readonly=True),
        Mount(str(single), "C:\\config\\f.txt", MountSourceKind.FILE),
    ]

    def act() -> None:
        drive = ContainerRootfs(root, disk(tmp_path / "disk"), 0, None)
        drive.assemble(base, [], scratch)
        drive.add_mounts(mounts, scratch)
        drive.move_into(container, str(inside))
        assert str(root) not in mount_points()

    within(act)
    seen = Path(f"/proc/{container}/root{inside}")
    assert (seen / "a").read_text() == "base"
    assert (seen / "data/d").read_text() == "data"
    assert (seen / "config/f.txt").read_text() == "file"
    (seen / "data/new").write_text("from inside")
    assert (data / "new").read_text() == "from inside"
    with pytest.raises(OSError, match="Read-only"):
        os.close(os.open(seen / "fixed/d", os.O_WRONLY))

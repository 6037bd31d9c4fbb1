"""Opening and locking of host disks for a pod."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from winpod.compute.disk_mounts import DiskRefused
from winpod.compute.hypervisor.guest_disks import disk_name, open_disk
from winpod.compute.spec import Mount, MountSourceKind


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(1 << 20))
    return file


def virtual(path: Path, *, readonly: bool = False) -> Mount:
    return Mount(str(path), "C:\\data", MountSourceKind.VIRTUAL_DISK, readonly)


def test_writable_disk_is_exclusive(disk: Path) -> None:
    held = open_disk(virtual(disk))
    for readonly in (True, False):
        with pytest.raises(DiskRefused, match="is in use by another pod or by the host"):
            open_disk(virtual(disk, readonly=readonly))
    os.close(held.descriptor)
    os.close(open_disk(virtual(disk)).descriptor)


def test_several_pods_may_read_a_disk(disk: Path) -> None:
    readers = [open_disk(virtual(disk, readonly=True)) for _ in range(2)]
    with pytest.raises(DiskRefused, match="is in use"):
        open_disk(virtual(disk))
    for reader in readers:
        os.close(reader.descriptor)


def test_disk_name_is_independent_of_its_path(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "link.img").symlink_to(disk)
    assert disk_name(virtual(disk)) == disk_name(virtual(tmp_path / "link.img"))


def _missing(folder: Path) -> Mount:
    return virtual(folder / "none.img")


def _directory(folder: Path) -> Mount:
    return virtual(folder)


def _empty(folder: Path) -> Mount:
    (folder / "empty.img").touch()
    return virtual(folder / "empty.img")


def _only_read(folder: Path) -> Mount:
    (folder / "fixed.img").write_bytes(bytes(4096))
    (folder / "fixed.img").chmod(0o444)
    return virtual(folder / "fixed.img")


def _no_device(folder: Path) -> Mount:
    (folder / "disk.img").write_bytes(bytes(4096))
    return Mount(str(folder / "disk.img"), "C:\\data", MountSourceKind.PHYSICAL_DISK)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_missing, "does not exist"),
        (_directory, "is not a disk image"),
        (_empty, "is empty"),
        (_only_read, "is read-only and cannot be mounted writable on C:\\data"),
        (_no_device, "is not a block device"),
    ],
)
def test_invalid_disk_is_refused_with_the_reason(
    tmp_path: Path, make: Callable[[Path], Mount], message: str
) -> None:
    mount = make(tmp_path)
    with pytest.raises(DiskRefused) as refused:
        open_disk(mount)
    assert message in str(refused.value)

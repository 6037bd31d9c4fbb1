"""A disk is one pod's, or nobody's."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from winpod.compute.disk_sources import DiskRefused
from winpod.compute.hypervisor.host_disks import disk_name, open_disk
from winpod.compute.plan import Mount, SourceKind


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(1 << 20))
    return file


def virtual(path: Path, *, readonly: bool = False) -> Mount:
    return Mount(str(path), "C:\\data", SourceKind.VIRTUAL_DISK, readonly)


def test_a_disk_that_is_written_is_nobody_elses(disk: Path) -> None:
    held = open_disk(virtual(disk))
    for readonly in (True, False):
        with pytest.raises(DiskRefused, match="is in use, by another pod or by this machine"):
            open_disk(virtual(disk, readonly=readonly))
    os.close(held.descriptor)
    os.close(open_disk(virtual(disk)).descriptor)


def test_several_may_read_a_disk(disk: Path) -> None:
    readers = [open_disk(virtual(disk, readonly=True)) for _ in range(2)]
    with pytest.raises(DiskRefused, match="is in use"):
        open_disk(virtual(disk))
    for reader in readers:
        os.close(reader.descriptor)


def test_a_disk_has_one_name_whatever_leads_to_it(disk: Path, tmp_path: Path) -> None:
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
    return Mount(str(folder / "disk.img"), "C:\\data", SourceKind.PHYSICAL_DISK)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_missing, "there is no disk"),
        (_directory, "is not a file with a disk in it"),
        (_empty, "is empty, and a disk has a size"),
        (_only_read, "can only be read, and is to be written on C:\\data"),
        (_no_device, "is no block device"),
    ],
)
def test_what_cannot_be_attached_is_a_sentence(
    tmp_path: Path, make: Callable[[Path], Mount], said: str
) -> None:
    mount = make(tmp_path)
    with pytest.raises(DiskRefused) as refused:
        open_disk(mount)
    assert said in str(refused.value)

"""Disk mount sources and accepted image formats."""

import pytest

from winpod.compute.disk_mounts import DiskRefused, image_format, parse_disk_source
from winpod.compute.rootfs import check_mounts
from winpod.compute.spec import Mount, MountSourceKind
from winpod.errors import InvalidInput
from winpod.windows.isolation import Isolation

QCOW2 = b"QFI\xfb\0\0\0\x03".ljust(512, b"\0")
BACKED = QCOW2[:8] + (1024).to_bytes(8, "big") + QCOW2[16:]
ELSEWHERE = QCOW2[:79] + b"\x04" + QCOW2[80:]
VHDX = b"vhdxfile".ljust(512, b"\0")
NOTHING = bytes(512)


def vhd(kind: int) -> bytes:
    return b"conectix".ljust(60, b"\0") + kind.to_bytes(4, "big") + bytes(448)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("virtual-disk:///disks/a.img", (MountSourceKind.VIRTUAL_DISK, "/disks/a.img")),
        (r"virtual-disk://C:\disks\a.vhdx", (MountSourceKind.VIRTUAL_DISK, "/disks/a.vhdx")),
        ("physical-disk:///dev/sdb", (MountSourceKind.PHYSICAL_DISK, "/dev/sdb")),
        ("/disks/a.img", None),
        (r"\\.\pipe\engine", None),
        ("other-disk:///a", None),
    ],
)
def test_disk_source_is_recognized_by_its_scheme(
    source: str, found: tuple[MountSourceKind, str] | None
) -> None:
    assert parse_disk_source(source) == found


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("virtual-disk://a.img", "does not contain the absolute path of a disk"),
        ("virtual-disk://", "does not contain the absolute path of a disk"),
        (r"virtual-disk://E:\a.vhdx", "a drive that this host does not have"),
        (r"physical-disk://\\.\PHYSICALDRIVE2", "a disk of a Windows machine"),
        (r"\\.\PhysicalDrive2", "physical-disk:///dev/sdb"),
    ],
)
def test_disk_that_does_not_exist_on_the_host_is_refused(source: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_disk_source(source)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "head", "foot", "found"),
    [
        ("a.img", NOTHING, NOTHING, "raw"),
        ("a", b"anything".ljust(512), NOTHING, "raw"),
        ("a.img", NOTHING, vhd(2), "raw"),
        ("a.qcow2", QCOW2, NOTHING, "qcow2"),
        ("a.VHDX", VHDX, NOTHING, "vhdx"),
        ("a.vhd", vhd(3), vhd(3), "vpc"),
        ("a.vhd", NOTHING, vhd(2), "vpc"),
    ],
)
def test_format_is_determined_by_name_and_first_bytes(
    name: str, head: bytes, foot: bytes, found: str
) -> None:
    assert image_format(name, head, foot) == found


@pytest.mark.parametrize(
    ("name", "head", "foot", "message"),
    [
        ("a.img", QCOW2, NOTHING, "a raw disk by its name, but a qcow2 image by its first bytes"),
        ("a.qcow2", NOTHING, NOTHING, "a qcow2 image by its name, but a raw disk"),
        ("a.vhd", VHDX, NOTHING, "a vhd image by its name, but a vhdx image"),
        ("a.qcow2", BACKED, NOTHING, "has a backing file"),
        ("a.qcow2", ELSEWHERE, NOTHING, "has its data in another file"),
        ("a.vhd", vhd(4), vhd(4), "is a differencing disk"),
    ],
)
def test_image_with_wrong_format_or_external_file_is_refused(
    name: str, head: bytes, foot: bytes, message: str
) -> None:
    with pytest.raises(DiskRefused) as refused:
        image_format(name, head, foot)
    assert message in str(refused.value)


def test_mount_on_a_mounted_disk_is_refused() -> None:
    disk = Mount("/a.img", "C:\\data", MountSourceKind.VIRTUAL_DISK)
    beside, inside = (Mount("/b", to, MountSourceKind.FILE) for to in ("C:\\data2", "C:\\DATA\\b"))
    check_mounts([disk, beside], Isolation.HYPERVISOR)
    with pytest.raises(InvalidInput, match="that path is on the disk /a"):
        check_mounts([disk, inside], Isolation.HYPERVISOR)


def test_disk_is_refused_with_process_isolation() -> None:
    mounts = [Mount("/a.img", "C:\\data", MountSourceKind.VIRTUAL_DISK)]
    check_mounts(mounts, Isolation.HYPERVISOR)
    with pytest.raises(DiskRefused, match="only be attached to pods with hypervisor isolation"):
        check_mounts(mounts, Isolation.PROCESS)

"""Which disks a mount can name, and which images are taken."""

import pytest

from winpod.compute.disk_sources import DiskRefused, disk_source, image_format
from winpod.compute.drive import refuse_what_cannot_be
from winpod.compute.plan import Mount, SourceKind
from winpod.windows.errors import InvalidInput
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
        ("virtual-disk:///disks/a.img", (SourceKind.VIRTUAL_DISK, "/disks/a.img")),
        (r"virtual-disk://C:\disks\a.vhdx", (SourceKind.VIRTUAL_DISK, "/disks/a.vhdx")),
        ("physical-disk:///dev/sdb", (SourceKind.PHYSICAL_DISK, "/dev/sdb")),
        ("/disks/a.img", None),
        (r"\\.\pipe\engine", None),
        ("other-disk:///a", None),
    ],
)
def test_a_disk_is_told_by_its_scheme(source: str, found: tuple[SourceKind, str] | None) -> None:
    assert disk_source(source) == found


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("virtual-disk://a.img", "does not say where the disk is"),
        ("virtual-disk://", "does not say where the disk is"),
        (r"virtual-disk://E:\a.vhdx", "a drive that this machine does not have"),
        (r"physical-disk://\\.\PHYSICALDRIVE2", "a disk of a Windows machine"),
        (r"\\.\PhysicalDrive2", "physical-disk:///dev/sdb"),
    ],
)
def test_a_disk_that_is_not_of_this_machine_is_refused(source: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        disk_source(source)
    assert said in str(refused.value)


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
def test_name_and_first_bytes_tell_the_format(
    name: str, head: bytes, foot: bytes, found: str
) -> None:
    assert image_format(name, head, foot) == found


@pytest.mark.parametrize(
    ("name", "head", "foot", "said"),
    [
        ("a.img", QCOW2, NOTHING, "a raw disk by its name, and a qcow2 image by its first bytes"),
        ("a.qcow2", NOTHING, NOTHING, "a qcow2 image by its name, and a raw disk"),
        ("a.vhd", VHDX, NOTHING, "a vhd image by its name, and a vhdx image"),
        ("a.qcow2", BACKED, NOTHING, "has a backing file"),
        ("a.qcow2", ELSEWHERE, NOTHING, "has its data in another file"),
        ("a.vhd", vhd(4), vhd(4), "is a differencing disk"),
    ],
)
def test_no_image_becomes_another_or_names_files_of_this_machine(
    name: str, head: bytes, foot: bytes, said: str
) -> None:
    with pytest.raises(DiskRefused) as refused:
        image_format(name, head, foot)
    assert said in str(refused.value)


def test_nothing_is_mounted_on_a_disk_that_is_mounted() -> None:
    disk = Mount("/a.img", "C:\\data", SourceKind.VIRTUAL_DISK)
    beside, inside = (Mount("/b", to, SourceKind.FILE) for to in ("C:\\data2", "C:\\DATA\\b"))
    refuse_what_cannot_be([disk, beside], Isolation.HYPERVISOR)
    with pytest.raises(InvalidInput, match="that would be on the disk /a"):
        refuse_what_cannot_be([disk, inside], Isolation.HYPERVISOR)


def test_process_isolation_has_no_machine_for_a_disk() -> None:
    wanted = [Mount("/a.img", "C:\\data", SourceKind.VIRTUAL_DISK)]
    refuse_what_cannot_be(wanted, Isolation.HYPERVISOR)
    with pytest.raises(DiskRefused, match="only a pod with hypervisor isolation"):
        refuse_what_cannot_be(wanted, Isolation.PROCESS)

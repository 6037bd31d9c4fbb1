"""Shells that wait, without their Windows: full disks, and disks for those who take them."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.waiting import eventually
from winpod.compute import disks
from winpod.compute.machine import has_user_namespaces
from winpod.compute.shell_house import ShellHouse
from winpod.compute.shells import Room, Shells
from winpod.images.base import Base
from winpod.windows.builds import parse_build

MIB = 1 << 20
HOST = parse_build("2022")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256M", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", place], check=True)


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """One with nothing in it."""
    (tmp_path / "base/rootfs").mkdir(parents=True)
    return Base(tmp_path / "base", datetime.now(UTC), "", with_32bit=False, size=0)


def leave(place: Path, left: int) -> None:
    """Of a disk, so many bytes."""
    status = os.statvfs(place)
    size = status.f_bavail * status.f_frsize - left
    with (place / "ballast").open("ab") as ballast:
        ballast.write(bytes(size))


@pytest.fixture
def waiting(small: Path) -> Iterator[Room]:
    """One that waits on the small disk; there is nothing of it but a directory and the disk."""
    folder = small / "sandboxes/one/shell"
    folder.mkdir(parents=True)
    room = Room(folder)
    (folder / "first_id").write_text("7")
    disks.make_disk(folder, disks.size_that_fits(folder), 7)
    yield room
    disks.remove_disk(folder)


def size_of(room: Room) -> int:
    return (room.folder / "disk.img").stat().st_size


def is_empty_and_mounted(room: Room) -> bool:
    owners = {(room.folder / "disk" / name).stat().st_uid for name in ("upper", "work")}
    mounted = os.path.ismount(room.folder / "disk")
    return mounted and owners == {room.first_id}


async def test_a_full_disk_ends_no_runtime_that_boots_shells_ahead_of_time(
    small: Path, base: Base, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Shells(small, base, HOST, warm=1)
    leave(small, 0)
    await pool.start()
    await asyncio.to_thread(eventually, lambda: "could not be booted ahead" in caplog.text)
    assert "No space left on device" in caplog.text
    await pool.stop()
    assert list((small / "warm").iterdir()) == []


async def test_the_usual_disk_promises_no_more_than_the_machine_has_left(
    small: Path, base: Base, waiting: Room
) -> None:
    pool = Shells(small, base, HOST)
    made = size_of(waiting)
    assert 128 * MIB < made <= 256 * MIB - disks.RESERVE
    await pool.give_disk(waiting, None)
    assert size_of(waiting) == made, "it fits, and is kept"
    leave(small, disks.RESERVE + 100 * MIB)
    await pool.give_disk(waiting, None)
    assert 90 * MIB < size_of(waiting) < 101 * MIB
    assert is_empty_and_mounted(waiting)


async def test_a_disk_that_was_asked_for_has_that_size_whatever_is_left(
    small: Path, base: Base, waiting: Room
) -> None:
    pool = Shells(small, base, HOST)
    for size in (512 * MIB, 32 * MIB):
        await pool.give_disk(waiting, size)
        assert size_of(waiting) == size
        assert is_empty_and_mounted(waiting)


@pytest.fixture
def without_owners(tmp_path: Path) -> Iterator[Path]:
    """On a filesystem whose mounts cannot have owners of their own."""
    place = tmp_path / "without"
    place.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def says_users(root: Path, base: Base) -> object:
    house = ShellHouse(root, Shells(root, base, HOST), HOST, lambda id_: Path(id_))
    return house.describe()["user_namespaces"]


def test_status_says_whether_users_are_nobody_on_the_machine(
    tmp_path: Path, without_owners: Path, base: Base
) -> None:
    assert says_users(tmp_path, base) is has_user_namespaces(tmp_path)
    assert says_users(without_owners, base) is False

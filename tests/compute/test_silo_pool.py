"""Warm silos without Windows: full disks and disk sizes."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.e2e.waiting import eventually
from winpod.compute import scratch_disk
from winpod.compute.preflight import has_user_namespaces
from winpod.compute.process.driver import ProcessIsolation
from winpod.compute.silo_pool import Silo, SiloPool
from winpod.images.base.builder import Base
from winpod.windows.builds import parse_build

MIB = 1 << 20
HOST = parse_build("2022")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256M", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", folder], check=True)


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """An empty base."""
    (tmp_path / "base/rootfs").mkdir(parents=True)
    return Base(tmp_path / "base", datetime.now(UTC), "", with_32bit=False, size=0)


def leave(folder: Path, left: int) -> None:
    """Fill a disk up to so many free bytes."""
    status = os.statvfs(folder)
    size = status.f_bavail * status.f_frsize - left
    with (folder / "ballast").open("ab") as ballast:
        ballast.write(bytes(size))


@pytest.fixture
def waiting(small: Path) -> Iterator[Silo]:
    """A warm silo on the small disk, which is only a directory and a disk."""
    folder = small / "sandboxes/one/shell"
    folder.mkdir(parents=True)
    silo = Silo(folder)
    (folder / "first_id").write_text("7")
    scratch_disk.create_disk(folder, scratch_disk.default_disk_size(folder), 7)
    yield silo
    scratch_disk.remove_disk(folder)


def size_of(silo: Silo) -> int:
    return (silo.folder / "disk.img").stat().st_size


def is_empty_and_mounted(silo: Silo) -> bool:
    owners = {(silo.folder / "disk" / name).stat().st_uid for name in ("upper", "work")}
    mounted = os.path.ismount(silo.folder / "disk")
    return mounted and owners == {silo.first_id}


async def test_full_disk_does_not_stop_a_runtime_that_boots_warm_silos(
    small: Path, base: Base, caplog: pytest.LogCaptureFixture
) -> None:
    pool = SiloPool(small, base, HOST, warm=1)
    leave(small, 0)
    await pool.start()
    await asyncio.to_thread(eventually, lambda: "Failed to boot warm silo" in caplog.text)
    assert "No space left on device" in caplog.text
    await pool.stop()
    assert list((small / "warm").iterdir()) == []


async def test_default_disk_is_not_larger_than_the_hosts_free_space(
    small: Path, base: Base, waiting: Silo
) -> None:
    pool = SiloPool(small, base, HOST)
    made = size_of(waiting)
    assert 128 * MIB < made <= 256 * MIB - scratch_disk.RESERVE
    await pool.ensure_disk(waiting, None)
    assert size_of(waiting) == made, "it fits, and is kept"
    leave(small, scratch_disk.RESERVE + 100 * MIB)
    await pool.ensure_disk(waiting, None)
    assert 90 * MIB < size_of(waiting) < 101 * MIB
    assert is_empty_and_mounted(waiting)


async def test_requested_disk_size_does_not_depend_on_free_space(
    small: Path, base: Base, waiting: Silo
) -> None:
    pool = SiloPool(small, base, HOST)
    for size in (512 * MIB, 32 * MIB):
        await pool.ensure_disk(waiting, size)
        assert size_of(waiting) == size
        assert is_empty_and_mounted(waiting)


@pytest.fixture
def without_owners(tmp_path: Path) -> Iterator[Path]:
    """A pool on a file system without idmapped mounts."""
    folder = tmp_path / "without"
    folder.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def says_users(root: Path, base: Base) -> object:
    driver = ProcessIsolation(root, SiloPool(root, base, HOST), HOST, lambda id_: Path(id_))
    return driver.describe()["user_namespaces"]


def test_status_reports_user_namespaces(tmp_path: Path, without_owners: Path, base: Base) -> None:
    assert says_users(tmp_path, base) is has_user_namespaces(tmp_path)
    assert says_users(without_owners, base) is False

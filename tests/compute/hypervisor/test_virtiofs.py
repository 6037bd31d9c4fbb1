"""Removal of a container's shares: in the guest first, and resumable after a crash.

A stand-in for the guest records its requests.
"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from winpod.compute.errors import GuestError, MicroVmGone
from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.compute.hypervisor.virtiofs import (
    DRIVES,
    VOLUMES,
    create_share_directories,
    create_share_mount_point,
    remove_all_shares,
    remove_container_shares,
)

MINE = ("volumes/one/0", "volumes/one/1", "volumes/one", "drives/one")


class Killed(BaseException):
    """Stands for the daemon being killed."""


class StandInGuest(GuestClient):
    """Is killed at a given request, or refuses all."""

    def __init__(
        self, machine: Path, *, killed_at: int = -1, error: Exception | None = None
    ) -> None:
        super().__init__(machine / "control")
        self._machine, self._killed_at, self._error = machine, killed_at, error
        self.requests: list[tuple[str, str, bool]] = []

    async def request(self, *arguments: str) -> bytes:
        command, path = arguments
        if len(self.requests) == self._killed_at:
            raise Killed
        self.requests.append((command, path, (self._machine / path[1:]).exists()))
        if self._error:
            raise self._error
        return b""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    """A microVM directory with a drive and two volumes of one container, and another's drive."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "kept.txt").write_text("of the host")
    folder = tmp_path / "vm"
    create_share_directories(folder)
    create_share_mount_point(folder, VOLUMES, "one")
    for share, name in ((DRIVES, "one"), (DRIVES, "other"), (VOLUMES, "one/0")):
        bind(source, create_share_mount_point(folder, share, name))
    bind(source / "kept.txt", create_share_mount_point(folder, VOLUMES, "one/1", is_file=True))
    yield folder
    remove_all_shares(folder)
    assert (source / "kept.txt").read_text() == "of the host"


def bind(source: Path, path: Path) -> None:
    subprocess.run(["mount", "--bind", str(source), str(path)], check=True)


def _left(machine: Path) -> set[str]:
    paths = machine / "places"
    found = {str(path.relative_to(paths)) for path in paths.glob("*/**/*")}
    return found | {path for path in _mounted(machine) if path not in (DRIVES, VOLUMES)}


def _mounted(machine: Path) -> set[str]:
    rows = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    paths = (Path(row[1]) for row in rows)
    return {str(path.relative_to(machine)) for path in paths if machine in path.parents}


async def test_guest_unmounts_before_the_host_and_forgets_removed_paths(
    machine: Path,
) -> None:
    guest = StandInGuest(machine)
    await remove_container_shares(machine, "one", guest)
    assert _left(machine) == {"drives/other"}
    unmounted = {
        path for command, path, exists in guest.requests if command == "unmount" and exists
    }
    forgotten = {
        path for command, path, exists in guest.requests if command == "mkdir" and not exists
    }
    assert unmounted == forgotten == {f"/{path}" for path in MINE}


@pytest.mark.parametrize("moment", range(2 * len(MINE)))
async def test_interrupted_removal_is_completed_by_the_next_one(machine: Path, moment: int) -> None:
    with pytest.raises(Killed):
        await remove_container_shares(machine, "one", StandInGuest(machine, killed_at=moment))
    guest = StandInGuest(machine)
    await remove_container_shares(machine, "one", guest)
    assert _left(machine) == {"drives/other"}
    assert {("mkdir", f"/{path}", False) for path in MINE[-2:]} <= set(guest.requests)


@pytest.mark.parametrize(
    "guest_error", [GuestError(22, ("unmount",)), MicroVmGone("the guest does not answer"), None]
)
async def test_errors_of_the_guest_do_not_prevent_removal(
    machine: Path, guest_error: Exception | None
) -> None:
    guest = StandInGuest(machine, error=guest_error) if guest_error else None
    await remove_container_shares(machine, "one", guest)
    assert _left(machine) == {"drives/other"}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "new").mkdir(),
        lambda path: (path / "new").symlink_to("/"),
        lambda path: (path / "one").rename(path / "new"),
        lambda path: (path / "one").rmdir(),
    ],
)
@pytest.mark.parametrize("where", ["drives", "volumes", "volumes/one"])
def test_guest_can_only_change_what_is_mounted(
    machine: Path, where: str, change: Callable[[Path], None]
) -> None:
    """A compromised guest cannot redirect the next mount."""
    before = sorted(os.walk(machine / "places"))
    with pytest.raises(OSError) as refused:  # noqa: PT011 by its number
        change(machine / where)
    assert refused.value.errno in (errno.EROFS, errno.EBUSY, errno.ENOENT)
    assert sorted(os.walk(machine / "places")) == before
    (machine / "drives/one/written.txt").write_text("by the guest")


def test_all_shares_of_an_ended_guest_are_removed(machine: Path) -> None:
    remove_all_shares(machine)
    assert _left(machine) == set()
    assert _mounted(machine) == set()
    remove_all_shares(machine)

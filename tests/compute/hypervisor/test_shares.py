"""What a container had of the host goes, in the guest first, and whatever was cut short goes on.

A stand-in that writes down what it is asked takes the guest's place.
"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from winpod.compute.errors import GuestRefused, MachineGone
from winpod.compute.hypervisor.guest import Guest
from winpod.compute.hypervisor.shares import (
    DRIVES,
    VOLUMES,
    clear_shares,
    make_place,
    open_shares,
    withdraw,
)

MINE = ("volumes/one/0", "volumes/one/1", "volumes/one", "drives/one")


class Killed(BaseException):
    """This process, in the middle."""


class StandInGuest(Guest):
    """Breaks off at a question, if it is told which, or refuses them all."""

    def __init__(
        self, machine: Path, *, killed_at: int = -1, error: Exception | None = None
    ) -> None:
        super().__init__(machine / "control")
        self._machine, self._killed_at, self._error = machine, killed_at, error
        self.asked: list[tuple[str, str, bool]] = []

    async def ask(self, *words: str) -> bytes:
        word, place = words
        if len(self.asked) == self._killed_at:
            raise Killed
        self.asked.append((word, place, (self._machine / place[1:]).exists()))
        if self._error:
            raise self._error
        return b""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    """With the drive and two volumes of one container, and the drive of another."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "kept.txt").write_text("of the host")
    folder = tmp_path / "vm"
    open_shares(folder)
    make_place(folder, VOLUMES, "one")
    for share, name in ((DRIVES, "one"), (DRIVES, "other"), (VOLUMES, "one/0")):
        bind(source, make_place(folder, share, name))
    bind(source / "kept.txt", make_place(folder, VOLUMES, "one/1", is_file=True))
    yield folder
    clear_shares(folder)
    assert (source / "kept.txt").read_text() == "of the host"


def bind(source: Path, place: Path) -> None:
    subprocess.run(["mount", "--bind", str(source), str(place)], check=True)


def _left(machine: Path) -> set[str]:
    places = machine / "places"
    found = {str(place.relative_to(places)) for place in places.glob("*/**/*")}
    return found | {place for place in _mounted(machine) if place not in (DRIVES, VOLUMES)}


def _mounted(machine: Path) -> set[str]:
    words = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    places = (Path(line[1]) for line in words)
    return {str(place.relative_to(machine)) for place in places if machine in place.parents}


async def test_a_guest_unmounts_before_the_host_and_forgets_when_nothing_is_there(
    machine: Path,
) -> None:
    guest = StandInGuest(machine)
    await withdraw(machine, "one", guest)
    assert _left(machine) == {"drives/other"}
    there = {place for word, place, is_there in guest.asked if word == "unmount" and is_there}
    gone = {place for word, place, is_there in guest.asked if word == "mkdir" and not is_there}
    assert there == gone == {f"/{place}" for place in MINE}


@pytest.mark.parametrize("moment", range(2 * len(MINE)))
async def test_what_was_cut_short_is_finished_by_whoever_comes_next(
    machine: Path, moment: int
) -> None:
    with pytest.raises(Killed):
        await withdraw(machine, "one", StandInGuest(machine, killed_at=moment))
    guest = StandInGuest(machine)
    await withdraw(machine, "one", guest)
    assert _left(machine) == {"drives/other"}
    assert {("mkdir", f"/{place}", False) for place in MINE[-2:]} <= set(guest.asked)


@pytest.mark.parametrize(
    "guest_error", [GuestRefused(22, ("unmount",)), MachineGone("the guest does not answer"), None]
)
async def test_a_guest_that_refuses_or_is_gone_holds_up_nothing(
    machine: Path, guest_error: Exception | None
) -> None:
    guest = StandInGuest(machine, error=guest_error) if guest_error else None
    await withdraw(machine, "one", guest)
    assert _left(machine) == {"drives/other"}


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place / "new").mkdir(),
        lambda place: (place / "new").symlink_to("/"),
        lambda place: (place / "one").rename(place / "new"),
        lambda place: (place / "one").rmdir(),
    ],
)
@pytest.mark.parametrize("where", ["drives", "volumes", "volumes/one"])
def test_only_what_is_mounted_is_a_guests_to_change(
    machine: Path, where: str, change: Callable[[Path], None]
) -> None:
    """Of whoever has broken into it: nothing leads the next mount elsewhere."""
    before = sorted(os.walk(machine / "places"))
    with pytest.raises(OSError) as refused:  # noqa: PT011 by its number
        change(machine / where)
    assert refused.value.errno in (errno.EROFS, errno.EBUSY, errno.ENOENT)
    assert sorted(os.walk(machine / "places")) == before
    (machine / "drives/one/written.txt").write_text("by the guest")


def test_nothing_of_a_guest_that_has_ended_stays(machine: Path) -> None:
    clear_shares(machine)
    assert _left(machine) == set()
    assert _mounted(machine) == set()
    clear_shares(machine)

"""What a container had of the host goes, in the guest first, and whatever was cut short goes on.

A stand-in that writes down what it is asked takes the guest's place.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from winpod.compute import mounts
from winpod.compute.errors import GuestRefused, MachineGone
from winpod.compute.hypervisor.guest import Guest
from winpod.compute.hypervisor.shares import DRIVES, VOLUMES, clear_shares, withdraw

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
    for place in ("drives/one", "drives/other", "volumes/one/0"):
        (folder / place).mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(source), str(folder / place)], check=True)
    (folder / "volumes/one/1").touch()
    subprocess.run(
        ["mount", "--bind", str(source / "kept.txt"), str(folder / "volumes/one/1")], check=True
    )
    yield folder
    for mounted in (*folder.glob("*/*/*"), *folder.glob("*/*")):
        mounts.unmount(mounted)
    assert (source / "kept.txt").read_text() == "of the host"


def _left(machine: Path) -> set[str]:
    mounted = Path("/proc/mounts").read_text()
    found = {
        str(place.relative_to(machine)) for place in machine.rglob("*") if place.name != "kept.txt"
    }
    return {place for place in found if place not in (DRIVES, VOLUMES)} | {
        place for place in MINE if f"{machine}/{place} " in mounted
    }


async def test_a_guest_unmounts_before_the_host_and_forgets_when_nothing_is_there(
    machine: Path,
) -> None:
    guest = StandInGuest(machine)
    await withdraw(machine, "one", guest)
    assert _left(machine) == {"drives/other"}
    there = {place for word, place, is_there in guest.asked if word == "unmount" and is_there}
    gone = {place for word, place, is_there in guest.asked if word == "remove" and not is_there}
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
    assert {("remove", f"/{place}", False) for place in MINE[-2:]} <= set(guest.asked)


@pytest.mark.parametrize(
    "guest_error", [GuestRefused(22, ("unmount",)), MachineGone("the guest does not answer"), None]
)
async def test_a_guest_that_refuses_or_is_gone_holds_up_nothing(
    machine: Path, guest_error: Exception | None
) -> None:
    guest = StandInGuest(machine, error=guest_error) if guest_error else None
    await withdraw(machine, "one", guest)
    assert _left(machine) == {"drives/other"}


def test_no_link_of_a_guests_leads_to_what_is_the_hosts(machine: Path) -> None:
    """Whoever has broken into a guest can put links where its containers have their places."""
    source = machine.parent / "source"
    (source / "0").mkdir()
    mounted = machine.parent / "mounted"
    (mounted / "inner").mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(source), str(mounted / "inner")], check=True)
    try:
        for place in ("drives/hostile", "volumes/hostile"):
            (machine / place).symlink_to(mounted)
        (machine / "volumes/one/2").symlink_to(mounted / "inner")
        clear_shares(machine)
        assert (mounted / "inner/kept.txt").read_text() == "of the host"
        assert (mounted / "inner/0").is_dir()
    finally:
        mounts.unmount(mounted / "inner")
    assert _left(machine) == set()

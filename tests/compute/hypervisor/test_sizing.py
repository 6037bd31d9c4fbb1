"""A guest is as large as its containers need, unless somebody named its size."""

import pytest

from winpod.compute.errors import GuestTooSmall
from winpod.compute.hypervisor.asked import MachineAsked
from winpod.compute.hypervisor.sizing import OWN, Size, raised, refuse_beyond, size_for, size_of
from winpod.compute.resources import MIB, PERIOD_US, Enforced

NOW = Size(1024 * MIB, 2)


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (Enforced(4), Size()),
        (Enforced(4, memory_bytes=64 * MIB), Size(64 * MIB)),
        (Enforced(4, cpu_quota_us=PERIOD_US), Size(0, 1)),
        (Enforced(4, cpu_quota_us=PERIOD_US + 1), Size(0, 2)),
        (Enforced(4, cpu_quota_us=1000), Size(0, 1)),
    ],
)
def test_a_container_needs_what_it_may_use(limits: Enforced, size: Size) -> None:
    assert size_of(limits) == size


def test_a_guest_has_the_memory_of_all_and_the_processors_of_the_largest() -> None:
    assert size_for([Size(64 * MIB, 1), Size(0, 3), Size(32 * MIB)]) == Size(96 * MIB + OWN, 3)
    assert size_for([Size(), Size()]) == Size()
    assert size_for([]) == Size()


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("needed", "more"),
    [
        (Size(), Size()),
        (NOW, Size()),
        (Size(2048 * MIB, 1), Size(2048 * MIB)),
        (Size(64 * MIB, 4), Size(0, 4)),
    ],
)
def test_a_guest_whose_size_nobody_named_grows_and_never_shrinks(
    needed: Size, more: Size, is_new: bool
) -> None:
    assert raised(MachineAsked(), NOW, needed, is_new=is_new) == more


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (MachineAsked(memory_bytes=1024 * MIB), Size(0, 4)),
        (MachineAsked(reserved=True), Size(0, 4)),
        (MachineAsked(processors=2), Size(2048 * MIB)),
    ],
)
def test_a_new_container_changes_no_named_size_and_an_update_does(
    asked: MachineAsked, more: Size
) -> None:
    needed = Size(2048 * MIB, 4)
    assert raised(asked, NOW, needed, is_new=True) == more
    assert raised(asked, NOW, needed, is_new=False) == needed


def test_what_the_machine_does_not_have_is_refused_with_what_it_has() -> None:
    refuse_beyond(Size(1024 * MIB, 2), NOW)
    with pytest.raises(GuestTooSmall, match=r"need 3 processors, and can have 1024 MiB and 2"):
        refuse_beyond(Size(0, 3), NOW)
    with pytest.raises(GuestTooSmall, match=r"need 1025 MiB of memory, and can have 1024 MiB"):
        refuse_beyond(Size(1025 * MIB, 0), NOW)

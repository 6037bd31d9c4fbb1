"""The size of a guest follows its containers, unless the pod specifies it."""

import pytest

from winpod.compute.errors import MicroVmTooLarge
from winpod.compute.hypervisor.hotplug import (
    GUEST_OVERHEAD,
    MicroVmSize,
    container_size,
    require_capacity,
    required_size,
    size_increase,
)
from winpod.compute.hypervisor.vm_annotations import MicroVmRequest
from winpod.compute.resources import CPU_PERIOD_US, MIB, ResourceLimits

NOW = MicroVmSize(1024 * MIB, 2)


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (ResourceLimits(4), MicroVmSize()),
        (ResourceLimits(4, memory_bytes=64 * MIB), MicroVmSize(64 * MIB)),
        (ResourceLimits(4, cpu_quota_us=CPU_PERIOD_US), MicroVmSize(0, 1)),
        (ResourceLimits(4, cpu_quota_us=CPU_PERIOD_US + 1), MicroVmSize(0, 2)),
        (ResourceLimits(4, cpu_quota_us=1000), MicroVmSize(0, 1)),
    ],
)
def test_container_size_follows_its_limits(limits: ResourceLimits, size: MicroVmSize) -> None:
    assert container_size(limits) == size


def test_guest_has_the_sum_of_memory_and_the_maximum_of_processors() -> None:
    assert required_size(
        [MicroVmSize(64 * MIB, 1), MicroVmSize(0, 3), MicroVmSize(32 * MIB)]
    ) == MicroVmSize(96 * MIB + GUEST_OVERHEAD, 3)
    assert required_size([MicroVmSize(), MicroVmSize()]) == MicroVmSize()
    assert required_size([]) == MicroVmSize()


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("needed", "more"),
    [
        (MicroVmSize(), MicroVmSize()),
        (NOW, MicroVmSize()),
        (MicroVmSize(2048 * MIB, 1), MicroVmSize(2048 * MIB)),
        (MicroVmSize(64 * MIB, 4), MicroVmSize(0, 4)),
    ],
)
def test_guest_without_specified_size_grows_and_never_shrinks(
    needed: MicroVmSize, more: MicroVmSize, is_new: bool
) -> None:
    assert size_increase(MicroVmRequest(), NOW, needed, is_new=is_new) == more


@pytest.mark.parametrize(
    ("requested", "more"),
    [
        (MicroVmRequest(memory_bytes=1024 * MIB), MicroVmSize(0, 4)),
        (MicroVmRequest(reserved=True), MicroVmSize(0, 4)),
        (MicroVmRequest(processors=2), MicroVmSize(2048 * MIB)),
    ],
)
def test_specified_size_is_changed_by_updates_but_not_by_new_containers(
    requested: MicroVmRequest, more: MicroVmSize
) -> None:
    needed = MicroVmSize(2048 * MIB, 4)
    assert size_increase(requested, NOW, needed, is_new=True) == more
    assert size_increase(requested, NOW, needed, is_new=False) == needed


def test_size_beyond_the_hosts_capacity_is_refused() -> None:
    require_capacity(MicroVmSize(1024 * MIB, 2), NOW)
    with pytest.raises(
        MicroVmTooLarge, match=r"need 3 processors, but this host allows 1024 MiB and 2"
    ):
        require_capacity(MicroVmSize(0, 3), NOW)
    with pytest.raises(
        MicroVmTooLarge, match=r"need 1025 MiB of memory, but this host allows 1024 MiB"
    ):
        require_capacity(MicroVmSize(1025 * MIB, 0), NOW)

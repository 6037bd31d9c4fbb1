"""Conversion of Windows resource requests to Linux limits."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.compute.resources import (
    _ANNOTATIONS,
    DEFAULT_PIDS,
    MIB,
    ResourceLimits,
    ResourceRequest,
    apply_resource_annotations,
    compute_limits,
)
from winpod.errors import InvalidInput


@pytest.mark.parametrize(
    ("requested", "enforced"),
    [
        (ResourceRequest(), ResourceLimits(processors=4)),
        (ResourceRequest(cpu_count=2), ResourceLimits(processors=2, cpu_quota_us=200_000)),
        (ResourceRequest(cpu_count=16), ResourceLimits(processors=4, cpu_quota_us=400_000)),
        (ResourceRequest(cpu_maximum=2500), ResourceLimits(processors=4, cpu_quota_us=100_000)),
        (ResourceRequest(cpu_maximum=1), ResourceLimits(processors=4, cpu_quota_us=1000)),
        (ResourceRequest(cpu_maximum=10_000), ResourceLimits(processors=4)),
        (ResourceRequest(cpu_weight=100), ResourceLimits(processors=4, cpu_weight=100)),
        (ResourceRequest(cpu_weight=1), ResourceLimits(processors=4, cpu_weight=1)),
        (ResourceRequest(cpu_weight=10_000), ResourceLimits(processors=4, cpu_weight=10_000)),
        (
            ResourceRequest(memory_bytes=64 * MIB),
            ResourceLimits(processors=4, memory_bytes=64 * MIB),
        ),
        (
            ResourceRequest(rootfs_bytes=5, disk_bytes_per_second=6, disk_operations_per_second=7),
            ResourceLimits(
                processors=4,
                rootfs_bytes=5,
                disk_bytes_per_second=6,
                disk_operations_per_second=7,
            ),
        ),
    ],
)
def test_windows_requests_become_linux_limits(
    requested: ResourceRequest, enforced: ResourceLimits
) -> None:
    assert compute_limits(requested, host_cpus=4) == enforced


def test_cpu_count_maximum_and_weight_are_mutually_exclusive() -> None:
    with pytest.raises(InvalidInput) as caught:
        compute_limits(ResourceRequest(cpu_count=1, cpu_maximum=2), host_cpus=4)
    assert caught.value.message == (
        "invalid spec - Windows Container CPU Count: '1', Limit: '2', and Weight: '0' "
        "are mutually exclusive"
    )


@pytest.mark.parametrize(
    "requested",
    [
        ResourceRequest(cpu_maximum=10_001),
        ResourceRequest(cpu_weight=10_001),
        ResourceRequest(memory_bytes=-1),
    ],
)
def test_out_of_range_values_are_refused(requested: ResourceRequest) -> None:
    with pytest.raises(InvalidInput):
        compute_limits(requested, host_cpus=4)


def test_disk_size_annotation_is_in_gigabytes() -> None:
    annotations = {"io.microsoft.container.storage.rootfs.size-gb": "40"}
    assert apply_resource_annotations(ResourceRequest(), annotations) == ResourceRequest(
        rootfs_bytes=40 << 30
    )


def test_annotations_override_fields_and_invalid_ones_are_ignored() -> None:
    annotations = {
        "io.microsoft.container.memory.sizeinmb": "512",
        "io.microsoft.container.processor.count": "two",
        "io.microsoft.container.processor.weight": "-5",
        "io.microsoft.container.storage.qos.iopsmaximum": "100",
        "io.microsoft.container.storage.qos.bandwidthmaximum": "9" * 40,
    }
    requested = ResourceRequest(memory_bytes=1, cpu_count=3)
    assert apply_resource_annotations(requested, annotations) == ResourceRequest(
        memory_bytes=512 * MIB, cpu_count=3, disk_operations_per_second=100
    )


def test_annotation_of_zero_keeps_the_limit() -> None:
    limited = ResourceRequest(*range(1, 1 + len(fields(ResourceRequest))))
    for key in _ANNOTATIONS:
        assert apply_resource_annotations(limited, {key: "0"}) == limited
        assert apply_resource_annotations(ResourceRequest(), {key: " 00 "}) == ResourceRequest()


def test_update_changes_given_values_and_removes_none() -> None:
    before = ResourceRequest(cpu_count=2, memory_bytes=100)
    assert before.updated(ResourceRequest(memory_bytes=200)) == ResourceRequest(
        cpu_count=2, memory_bytes=200
    )
    assert before.updated(ResourceRequest(cpu_maximum=50)) == ResourceRequest(
        cpu_maximum=50, memory_bytes=100
    )
    assert before.updated(ResourceRequest()) == before


def test_disk_cannot_be_resized() -> None:
    before = ResourceRequest(rootfs_bytes=5, memory_bytes=1)
    assert before.updated(ResourceRequest(rootfs_bytes=5, memory_bytes=2)) == ResourceRequest(
        rootfs_bytes=5, memory_bytes=2
    )
    for present in (before, ResourceRequest()):
        with pytest.raises(InvalidInput, match="cannot be resized to 6 bytes"):
            present.updated(ResourceRequest(rootfs_bytes=6, memory_bytes=2))


@given(
    st.builds(
        ResourceRequest, **{f.name: st.integers(-2, 20_000) for f in fields(ResourceRequest)}
    ),
    st.integers(1, 256),
)
def test_computed_limits_are_valid_on_linux(requested: ResourceRequest, cpus: int) -> None:
    try:
        limits = compute_limits(requested, cpus)
    except InvalidInput:
        return
    assert 1 <= limits.processors <= cpus
    assert limits.pids == DEFAULT_PIDS
    assert limits.cpu_quota_us is None or 1000 <= limits.cpu_quota_us <= cpus * 100_000
    assert limits.cpu_weight is None or 1 <= limits.cpu_weight <= 10_000

"""Resources: Windows' rules and clamps, as what Linux enforces."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.compute.resources import (
    _ANNOTATIONS,
    MIB,
    PIDS,
    Asked,
    Enforced,
    enforce,
    with_annotations,
)
from winpod.windows.errors import InvalidInput


@pytest.mark.parametrize(
    ("asked", "enforced"),
    [
        (Asked(), Enforced(processors=4)),
        (Asked(cpu_count=2), Enforced(processors=2, cpu_quota_us=200_000)),
        (Asked(cpu_count=16), Enforced(processors=4, cpu_quota_us=400_000)),
        (Asked(cpu_maximum=2500), Enforced(processors=4, cpu_quota_us=100_000)),
        (Asked(cpu_maximum=1), Enforced(processors=4, cpu_quota_us=1000)),
        (Asked(cpu_maximum=10_000), Enforced(processors=4)),
        (Asked(cpu_weight=100), Enforced(processors=4, cpu_shares=1024)),
        (Asked(cpu_weight=1), Enforced(processors=4, cpu_shares=10)),
        (Asked(cpu_weight=10_000), Enforced(processors=4, cpu_shares=102_400)),
        (Asked(memory_bytes=64 * MIB), Enforced(processors=4, memory_bytes=64 * MIB)),
        (
            Asked(rootfs_bytes=5, disk_bytes_per_second=6, disk_operations_per_second=7),
            Enforced(
                processors=4,
                rootfs_bytes=5,
                disk_bytes_per_second=6,
                disk_operations_per_second=7,
            ),
        ),
    ],
)
def test_what_windows_is_asked_for_is_what_linux_is_told(asked: Asked, enforced: Enforced) -> None:
    assert enforce(asked, host_cpus=4) == enforced


def test_count_maximum_and_weight_exclude_each_other_in_windows_words() -> None:
    with pytest.raises(InvalidInput) as caught:
        enforce(Asked(cpu_count=1, cpu_maximum=2), host_cpus=4)
    assert caught.value.sentence == (
        "invalid spec - Windows Container CPU Count: '1', Limit: '2', and Weight: '0' "
        "are mutually exclusive"
    )


@pytest.mark.parametrize(
    "asked", [Asked(cpu_maximum=10_001), Asked(cpu_weight=10_001), Asked(memory_bytes=-1)]
)
def test_what_is_out_of_range_is_refused(asked: Asked) -> None:
    with pytest.raises(InvalidInput):
        enforce(asked, host_cpus=4)


def test_the_size_of_the_disk_can_be_annotated_in_gigabytes() -> None:
    annotations = {"io.microsoft.container.storage.rootfs.size-gb": "40"}
    assert with_annotations(Asked(), annotations) == Asked(rootfs_bytes=40 << 30)


def test_annotations_go_before_fields_and_nonsense_is_passed_over() -> None:
    annotations = {
        "io.microsoft.container.memory.sizeinmb": "512",
        "io.microsoft.container.processor.count": "two",
        "io.microsoft.container.processor.weight": "-5",
        "io.microsoft.container.storage.qos.iopsmaximum": "100",
        "io.microsoft.container.storage.qos.bandwidthmaximum": "9" * 40,
    }
    asked = Asked(memory_bytes=1, cpu_count=3)
    assert with_annotations(asked, annotations) == Asked(
        memory_bytes=512 * MIB, cpu_count=3, disk_operations_per_second=100
    )


def test_an_annotation_of_zero_asks_for_nothing_and_takes_no_limit_away() -> None:
    limited = Asked(*range(1, 1 + len(fields(Asked))))
    for key in _ANNOTATIONS:
        assert with_annotations(limited, {key: "0"}) == limited
        assert with_annotations(Asked(), {key: " 00 "}) == Asked()


def test_an_update_changes_what_it_names_and_removes_nothing() -> None:
    before = Asked(cpu_count=2, memory_bytes=100)
    assert before.updated(Asked(memory_bytes=200)) == Asked(cpu_count=2, memory_bytes=200)
    assert before.updated(Asked(cpu_maximum=50)) == Asked(cpu_maximum=50, memory_bytes=100)
    assert before.updated(Asked()) == before


def test_a_disk_keeps_its_size() -> None:
    before = Asked(rootfs_bytes=5, memory_bytes=1)
    assert before.updated(Asked(rootfs_bytes=5, memory_bytes=2)) == Asked(
        rootfs_bytes=5, memory_bytes=2
    )
    for present in (before, Asked()):
        with pytest.raises(InvalidInput, match="cannot be given 6 bytes"):
            present.updated(Asked(rootfs_bytes=6, memory_bytes=2))


@given(
    st.builds(Asked, **{f.name: st.integers(-2, 20_000) for f in fields(Asked)}),
    st.integers(1, 256),
)
def test_every_limit_that_comes_out_is_one_linux_takes(asked: Asked, cpus: int) -> None:
    try:
        limits = enforce(asked, cpus)
    except InvalidInput:
        return
    assert 1 <= limits.processors <= cpus
    assert limits.pids == PIDS
    assert limits.cpu_quota_us is None or 1000 <= limits.cpu_quota_us <= cpus * 100_000
    assert limits.cpu_shares is None or 2 <= limits.cpu_shares <= 262_144

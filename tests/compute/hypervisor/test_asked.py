"""A pod asks of its microVM what the shim of Hyper-V lets it ask, in the same words."""

import pytest

from winpod.compute.hypervisor.asked import (
    DEFAULT_MEMORY,
    FULL_LIMIT,
    OVERHEAD,
    MachineAsked,
    host_limits,
    machine_asked,
)
from winpod.compute.resources import MIB

_MEMORY = "io.microsoft.virtualmachine.computetopology.memory"
_PROCESSOR = "io.microsoft.virtualmachine.computetopology.processor"
_QOS = "io.microsoft.virtualmachine.storageqos"
_BACKED = "io.microsoft.virtualmachine.fullyphysicallybacked"


def test_a_pod_that_asks_for_nothing_has_a_gibibyte_on_demand() -> None:
    assert machine_asked({}).memory == DEFAULT_MEMORY
    assert DEFAULT_MEMORY == 1024 * MIB


def test_every_annotation_has_its_place() -> None:
    asked = machine_asked(
        {
            f"{_MEMORY}.sizeinmb": "2048",
            f"{_PROCESSOR}.count": "2",
            f"{_PROCESSOR}.limit": "50000",
            f"{_PROCESSOR}.weight": "200",
            _BACKED: "true",
            f"{_QOS}.bandwidthmaximum": "1048576",
            f"{_QOS}.iopsmaximum": "500",
        }
    )
    assert asked == MachineAsked(2048 * MIB, 2, 50_000, 200, True, 1_048_576, 500)


@pytest.mark.parametrize("size", ["3", "4"])
def test_memory_is_rounded_up_to_even_megabytes(size: str) -> None:
    assert machine_asked({f"{_MEMORY}.sizeinmb": size}).memory_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("annotations", "reserved"),
    [
        ({}, False),
        ({_BACKED: "true"}, True),
        ({_BACKED: "TRUE"}, True),
        ({_BACKED: "false"}, False),
        ({_BACKED: "perhaps"}, False),
        ({f"{_MEMORY}.allowovercommit": "false"}, True),
        ({f"{_MEMORY}.allowovercommit": "true"}, False),
        ({f"{_MEMORY}.allowovercommit": "perhaps"}, False),
        ({f"{_MEMORY}.allowovercommit": "true", _BACKED: "true"}, True),
    ],
)
def test_memory_is_reserved_by_either_word(annotations: dict[str, str], reserved: bool) -> None:
    assert machine_asked(annotations).reserved is reserved


@pytest.mark.parametrize("text", ["", "-1", "two", "1.5", "0x10", "١"])
def test_a_value_that_cannot_be_read_is_passed_over(text: str) -> None:
    asked = machine_asked({f"{_PROCESSOR}.count": text, f"{_MEMORY}.sizeinmb": text})
    assert asked == MachineAsked()


def test_limit_and_weight_go_no_further_than_hyper_v_lets_them() -> None:
    asked = machine_asked({f"{_PROCESSOR}.limit": "999999", f"{_PROCESSOR}.weight": "999999"})
    assert (asked.limit, asked.weight) == (FULL_LIMIT, 10_000)


@pytest.mark.parametrize(
    ("asked", "quota", "shares"),
    [
        (MachineAsked(), None, None),
        (MachineAsked(limit=FULL_LIMIT), None, None),
        (MachineAsked(limit=FULL_LIMIT // 2), 100_000, None),
        (MachineAsked(weight=200), None, 2048),
    ],
)
def test_the_machine_limits_a_guest_of_two_processors(
    asked: MachineAsked, quota: int | None, shares: int | None
) -> None:
    limits = host_limits(asked, 2)
    assert (limits.cpu_quota_us, limits.cpu_shares) == (quota, shares)
    assert limits.memory_bytes == asked.memory + OVERHEAD

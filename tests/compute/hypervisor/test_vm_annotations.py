"""The microVM annotations, which are those of the Windows shim."""

import pytest

from winpod.compute.hypervisor.vm_annotations import (
    DEFAULT_MEMORY,
    FULL_LIMIT,
    MEMORY_OVERHEAD,
    MicroVmRequest,
    microvm_cgroup_limits,
    parse_vm_annotations,
)
from winpod.compute.resources import MIB

_MEMORY = "io.microsoft.virtualmachine.computetopology.memory"
_PROCESSOR = "io.microsoft.virtualmachine.computetopology.processor"
_QOS = "io.microsoft.virtualmachine.storageqos"
_BACKED = "io.microsoft.virtualmachine.fullyphysicallybacked"


def test_default_is_one_gibibyte_on_demand() -> None:
    assert parse_vm_annotations({}).memory == DEFAULT_MEMORY
    assert DEFAULT_MEMORY == 1024 * MIB


def test_every_annotation_is_parsed() -> None:
    requested = parse_vm_annotations(
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
    assert requested == MicroVmRequest(2048 * MIB, 2, 50_000, 200, True, 1_048_576, 500)


@pytest.mark.parametrize("size", ["3", "4"])
def test_memory_is_rounded_up_to_even_megabytes(size: str) -> None:
    assert parse_vm_annotations({f"{_MEMORY}.sizeinmb": size}).memory_bytes == 4 * MIB


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
def test_memory_is_reserved_by_either_annotation(
    annotations: dict[str, str], reserved: bool
) -> None:
    assert parse_vm_annotations(annotations).reserved is reserved


@pytest.mark.parametrize("text", ["", "-1", "two", "1.5", "0x10", "١"])
def test_invalid_value_is_ignored(text: str) -> None:
    requested = parse_vm_annotations({f"{_PROCESSOR}.count": text, f"{_MEMORY}.sizeinmb": text})
    assert requested == MicroVmRequest()


def test_limit_and_weight_are_capped_at_the_maximum_of_hyper_v() -> None:
    requested = parse_vm_annotations(
        {f"{_PROCESSOR}.limit": "999999", f"{_PROCESSOR}.weight": "999999"}
    )
    assert (requested.limit, requested.weight) == (FULL_LIMIT, 10_000)


@pytest.mark.parametrize(
    ("requested", "quota", "weight"),
    [
        (MicroVmRequest(), None, None),
        (MicroVmRequest(limit=FULL_LIMIT), None, None),
        (MicroVmRequest(limit=FULL_LIMIT // 2), 100_000, None),
        (MicroVmRequest(weight=200), None, 200),
    ],
)
def test_cgroup_limits_of_a_guest_with_two_processors(
    requested: MicroVmRequest, quota: int | None, weight: int | None
) -> None:
    limits = microvm_cgroup_limits(requested, 2)
    assert (limits.cpu_quota_us, limits.cpu_weight) == (quota, weight)
    assert limits.memory_bytes == requested.memory + MEMORY_OVERHEAD

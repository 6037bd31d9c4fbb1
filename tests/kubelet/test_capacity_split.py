"""How nodes of one machine share its capacity."""

from decimal import Decimal

import pytest

from winpod.errors import InvalidInput
from winpod.kubelet.node_config import Capacity, StatedCapacity, split_capacity

GIB = 1 << 30
MACHINE = Capacity(Decimal(8), 32 * GIB, 100 * GIB)


def test_single_node_gets_whole_machine() -> None:
    (part,) = split_capacity(MACHINE, {"a": StatedCapacity()}).values()
    assert (part.share, part.nodes) == (MACHINE, 1)


def test_unstated_nodes_get_equal_shares() -> None:
    parts = split_capacity(
        MACHINE, {"a": StatedCapacity(), "b": StatedCapacity(), "c": StatedCapacity()}
    )
    assert len({part.share for part in parts.values()}) == 1
    assert parts["a"].share.cpus == Decimal("2.666")
    assert parts["a"].share.memory_bytes % 1024 == 0
    assert 31 * GIB < 3 * parts["a"].share.memory_bytes <= 32 * GIB
    assert {part.nodes for part in parts.values()} == {3}


def test_stated_capacity_is_reserved_and_rest_is_split() -> None:
    parts = split_capacity(
        MACHINE,
        {
            "a": StatedCapacity(cpus=2, memory_bytes=8 * GIB),
            "b": StatedCapacity(),
            "c": StatedCapacity(),
        },
    )
    assert (parts["a"].share.cpus, parts["a"].share.memory_bytes) == (Decimal(2), 8 * GIB)
    assert (parts["b"].share.cpus, parts["c"].share.memory_bytes) == (Decimal(3), 12 * GIB)
    parts = split_capacity(
        MACHINE, {"a": StatedCapacity(memory_bytes=8 * GIB), "b": StatedCapacity()}
    )
    assert parts["a"].share.cpus == parts["b"].share.cpus == 4
    assert parts["b"].share.memory_bytes == 24 * GIB


def test_stated_capacity_may_exceed_machine() -> None:
    parts = split_capacity(
        MACHINE, {"a": StatedCapacity(16, 64 * GIB), "b": StatedCapacity(16, 64 * GIB)}
    )
    assert {(part.share.cpus, part.share.memory_bytes) for part in parts.values()} == {
        (Decimal(16), 64 * GIB)
    }


@pytest.mark.parametrize(
    ("stated", "what"),
    [(StatedCapacity(cpus=8), "CPUs"), (StatedCapacity(memory_bytes=32 * GIB), "memory")],
)
def test_node_without_remaining_capacity_is_rejected_by_name(
    stated: StatedCapacity, what: str
) -> None:
    with pytest.raises(InvalidInput, match=f"machine has no {what} left for node b"):
        split_capacity(MACHINE, {"a": stated, "b": StatedCapacity()})

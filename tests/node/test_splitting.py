"""What each of the nodes of one machine has of it."""

from decimal import Decimal

import pytest

from winpod.node.facts import Share
from winpod.node.splitting import Stated, split
from winpod.windows.errors import InvalidInput

GIB = 1 << 30
MACHINE = Share(Decimal(8), 32 * GIB, 100 * GIB)


def test_a_node_that_is_alone_has_the_whole_machine() -> None:
    (part,) = split(MACHINE, {"a": Stated()}).values()
    assert (part.share, part.nodes) == (MACHINE, 1)


def test_nodes_that_state_nothing_have_equal_parts() -> None:
    parts = split(MACHINE, {"a": Stated(), "b": Stated(), "c": Stated()})
    assert len({part.share for part in parts.values()}) == 1
    assert parts["a"].share.cpus == Decimal("2.666")
    assert parts["a"].share.memory_bytes % 1024 == 0
    assert 31 * GIB < 3 * parts["a"].share.memory_bytes <= 32 * GIB
    assert {part.nodes for part in parts.values()} == {3}


def test_what_a_node_states_is_its_own_and_the_others_split_the_rest() -> None:
    parts = split(
        MACHINE, {"a": Stated(cpus=2, memory_bytes=8 * GIB), "b": Stated(), "c": Stated()}
    )
    assert (parts["a"].share.cpus, parts["a"].share.memory_bytes) == (Decimal(2), 8 * GIB)
    assert (parts["b"].share.cpus, parts["c"].share.memory_bytes) == (Decimal(3), 12 * GIB)
    parts = split(MACHINE, {"a": Stated(memory_bytes=8 * GIB), "b": Stated()})
    assert parts["a"].share.cpus == parts["b"].share.cpus == 4
    assert parts["b"].share.memory_bytes == 24 * GIB


def test_statements_win_over_what_the_machine_has() -> None:
    parts = split(MACHINE, {"a": Stated(16, 64 * GIB), "b": Stated(16, 64 * GIB)})
    assert {(part.share.cpus, part.share.memory_bytes) for part in parts.values()} == {
        (Decimal(16), 64 * GIB)
    }


@pytest.mark.parametrize(
    ("stated", "what"), [(Stated(cpus=8), "CPUs"), (Stated(memory_bytes=32 * GIB), "memory")]
)
def test_a_node_that_nothing_is_left_for_is_refused_by_name(stated: Stated, what: str) -> None:
    with pytest.raises(InvalidInput, match=f"machine's {what} is left for the node b"):
        split(MACHINE, {"a": stated, "b": Stated()})

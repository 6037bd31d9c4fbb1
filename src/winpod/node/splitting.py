"""How the nodes of one machine split it: each has what it states, and an equal part of the rest.

Pure. A statement counts even where the machine has less; what is left over then is nothing, and a
node that states nothing cannot have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal

from winpod.node.facts import Share
from winpod.windows.errors import InvalidInput

_MILLICORE = Decimal("0.001")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Stated:
    """What somebody said that a node has; None is a part of what is left."""

    cpus: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a node has of a machine of so many CPUs, and among how many nodes that is split."""

    share: Share
    machine_cpus: int
    nodes: int = 1


def split(machine: Share, nodes: Mapping[str, Stated]) -> dict[str, Part]:
    """The part of each node, by its name."""
    cpus = _dealt("CPUs", machine.cpus, {name: told.cpus for name, told in nodes.items()})
    memory = _dealt(
        "memory",
        Decimal(machine.memory_bytes),
        {name: told.memory_bytes for name, told in nodes.items()},
    )
    return {
        name: Part(
            Share(
                cpus[name].quantize(_MILLICORE, ROUND_DOWN),
                int(memory[name]) // _KIB * _KIB,
                machine.disk_bytes // len(nodes),
            ),
            int(machine.cpus),
            len(nodes),
        )
        for name in nodes
    }


def _dealt(what: str, amount: Decimal, stated: Mapping[str, int | None]) -> dict[str, Decimal]:
    told = {name: Decimal(number) for name, number in stated.items() if number is not None}
    silent = [name for name in stated if name not in told]
    left = amount - sum(told.values())
    if silent and left <= 0:
        raise InvalidInput(
            f"Nothing of the machine's {what} is left for the node {silent[0]}: other nodes state "
            "all of it.",
            "State less for them, or state what this one has too.",
        )
    return told | {name: left / len(silent) for name in silent}

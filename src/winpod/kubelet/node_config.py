"""The configuration of a node: identity, capacity and allocatable, and how nodes share a machine.

Allocatable is the node's share of the machine minus the reservations for the system, the agent and
the eviction thresholds. Nodes of one machine get the capacity they state and an equal share of the
rest. Stated capacity may exceed the machine; then a node that states none cannot get any.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, Decimal
from pathlib import Path

from winpod.errors import InvalidInput, PermissionDenied
from winpod.kubelet.eviction.thresholds import EvictionThresholds
from winpod.labels import ARCH_LABEL, BUILD_LABEL, HOSTNAME_LABEL, OS_LABEL
from winpod.placement.model import Taint
from winpod.windows.builds import Build

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Capacity:
    """CPU, memory and disk of a machine, or a share of them."""

    cpus: Decimal = Decimal(0)
    memory_bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(
            self.cpus + other.cpus,
            self.memory_bytes + other.memory_bytes,
            self.disk_bytes + other.disk_bytes,
        )


@dataclass(frozen=True, slots=True)
class ReservedCapacity:
    """Capacity withheld from pods. `eviction` is kept free by evicting pods."""

    system: Capacity = Capacity()
    kube: Capacity = Capacity()
    eviction: Capacity = Capacity(memory_bytes=500 * MIB)

    @property
    def total(self) -> Capacity:
        return self.system + self.kube + self.eviction


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Static configuration of one node.

    `root` is the directory of the node's own files; `handlers` are those that can start.
    `cpus` are the machine's, on which container limits are based; `own_cpus` are the node's share,
    None for all. Memory and disk are the node's share. `nodes_here` is how many nodes share the
    machine and its agent. Containers of a simulated node do not exist: they cannot be connected
    to, and use no resources.
    """

    name: str
    build: Build
    root: Path
    cpus: int = 1
    own_cpus: Decimal | None = None
    memory_bytes: int = 0
    disk_bytes: int = 0
    max_pods: int = 110
    reserved: ReservedCapacity = ReservedCapacity()
    thresholds: EvictionThresholds = field(default_factory=EvictionThresholds)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    handlers: frozenset[str] = frozenset()
    internal_ip: str = ""
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = "cluster.local"
    pod_cidr: str = ""
    log_root: Path = Path("/var/log/pods")
    is_simulated: bool = False
    nodes_here: int = 1

    @property
    def all_labels(self) -> dict[str, str]:
        """The labels of every Windows node, and the node's own."""
        return {
            OS_LABEL: "windows",
            ARCH_LABEL: "amd64",
            HOSTNAME_LABEL: self.name,
            BUILD_LABEL: str(self.build.base),
            **self.labels,
        }

    def capacity(self) -> dict[str, Decimal]:
        return {
            "cpu": Decimal(self.cpus) if self.own_cpus is None else self.own_cpus,
            "memory": Decimal(self.memory_bytes),
            "ephemeral-storage": Decimal(self.disk_bytes),
            "pods": Decimal(self.max_pods),
        }

    def allocatable(self) -> dict[str, Decimal]:
        kept = self.reserved.total
        taken = {
            "cpu": kept.cpus,
            "memory": Decimal(kept.memory_bytes),
            "ephemeral-storage": Decimal(kept.disk_bytes),
        }
        return {
            name: max(amount - taken.get(name, Decimal(0)), Decimal(0))
            for name, amount in self.capacity().items()
        }


_MILLICORE = Decimal("0.001")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class StatedCapacity:
    """Capacity configured for a node; None is an equal share of the rest."""

    cpus: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CapacityShare:
    """A node's share of a machine with `machine_cpus` CPUs that `nodes` nodes split."""

    share: Capacity
    machine_cpus: int
    nodes: int = 1


def machine_capacity(root: Path) -> Capacity:
    """Return the capacity of this machine, with the disk of the root directory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        root.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(root).total
    except OSError as error:
        raise PermissionDenied(
            f"Cannot use {root} as the root directory: {error.strerror}.",
            "Use sudo, or choose another --root.",
        ) from None
    return Capacity(Decimal(len(os.sched_getaffinity(0))), memory, disk)


def split_capacity(
    machine: Capacity, nodes: Mapping[str, StatedCapacity]
) -> dict[str, CapacityShare]:
    """Return the share of each node by name."""
    cpus = _split("CPUs", machine.cpus, {name: stated.cpus for name, stated in nodes.items()})
    memory = _split(
        "memory",
        Decimal(machine.memory_bytes),
        {name: stated.memory_bytes for name, stated in nodes.items()},
    )
    return {
        name: CapacityShare(
            Capacity(
                cpus[name].quantize(_MILLICORE, ROUND_DOWN),
                int(memory[name]) // _KIB * _KIB,
                machine.disk_bytes // len(nodes),
            ),
            int(machine.cpus),
            len(nodes),
        )
        for name in nodes
    }


def _split(resource: str, amount: Decimal, stated: Mapping[str, int | None]) -> dict[str, Decimal]:
    amounts = {name: Decimal(number) for name, number in stated.items() if number is not None}
    unstated = [name for name in stated if name not in amounts]
    left = amount - sum(amounts.values())
    if unstated and left <= 0:
        raise InvalidInput(
            f"The machine has no {resource} left for node {unstated[0]}: other nodes state "
            "all of it.",
            "State less for the other nodes, or state a value for this one.",
        )
    return amounts | {name: left / len(unstated) for name in unstated}

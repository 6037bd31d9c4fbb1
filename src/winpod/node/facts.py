"""What a node is and has: the facts that pods are admitted by and that its Node object tells.

What pods may use is the node's part of the machine less what is set aside for the system, for the
agent, and for the room below which pods are evicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from winpod.node.thresholds import Thresholds
from winpod.windows.builds import Build
from winpod.windows.objects import ARCH_LABEL, BUILD_LABEL, HOSTNAME_LABEL, OS_LABEL, Taint

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a machine."""

    cpus: Decimal = Decimal(0)
    memory_bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(
            self.cpus + other.cpus,
            self.memory_bytes + other.memory_bytes,
            self.disk_bytes + other.disk_bytes,
        )


@dataclass(frozen=True, slots=True)
class Reserved:
    """What pods do not get. `eviction` is the room that is kept free by evicting them."""

    system: Share = Share()
    kube: Share = Share()
    eviction: Share = Share(memory_bytes=500 * MIB)

    @property
    def total(self) -> Share:
        return self.system + self.kube + self.eviction


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`root` is the directory of the node's own files; `handlers` are those that can start.

    `cpus` are the machine's, which limits of containers are counted by; `own_cpus` of them are the
    node's, all where it does not say. `nodes_here` is how many nodes share the machine and its
    agent. Memory and disk are the node's.

    The containers of a simulated node cannot be connected to, and use nothing of this machine.
    """

    name: str
    build: Build
    root: Path
    cpus: int = 1
    own_cpus: Decimal | None = None
    memory_bytes: int = 0
    disk_bytes: int = 0
    max_pods: int = 110
    reserved: Reserved = Reserved()
    thresholds: Thresholds = field(default_factory=Thresholds)
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
        """Those that every Windows node has, and the node's own."""
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

"""Options of `winpod node`, and files that describe several nodes.

A node file is a YAML document with a list `nodes`, whose entries use the names of the options, and
`count` for several equal nodes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path

import yaml

from winpod.config import Subnet
from winpod.errors import InvalidInput, PermissionDenied
from winpod.field_reader import Field, InvalidField
from winpod.kubelet.eviction.thresholds import EvictionThresholds
from winpod.kubelet.node.node_status import WINDOWS_TAINT
from winpod.kubelet.node_config import (
    Capacity,
    CapacityShare,
    NodeConfig,
    ReservedCapacity,
    StatedCapacity,
    split_capacity,
)
from winpod.placement.model import Taint
from winpod.quantities import parse_quantity
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build

_KEYS = (
    "name",
    "count",
    "build",
    "simulated",
    "runtime",
    "kubeconfig",
    "labels",
    "taints",
    "cpus",
    "memory",
    "max_pods",
    "pod_cidr",
)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of one node.

    `runtime` is the socket of a CRI runtime; without one the node runs its own. `kubeconfig` is set
    for a node of several that has its own identity.
    """

    name: str
    build: Build = DEFAULT_HOST
    runtime: str = ""
    kubeconfig: Path | None = None
    is_simulated: bool = False
    stated_capacity: StatedCapacity = field(default_factory=StatedCapacity)
    max_pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = (WINDOWS_TAINT,)
    reserved: ReservedCapacity = field(default_factory=ReservedCapacity)
    thresholds: EvictionThresholds = field(default_factory=EvictionThresholds)
    pod_cidr: str = ""
    cluster_cidr: Subnet | None = None
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = "cluster.local"
    internal_ip: str = ""

    def node_config(
        self,
        root: Path,
        log_root: Path,
        handlers: Iterable[str],
        share: CapacityShare,
        address: str = "",
        pod_cidr: str = "",
    ) -> NodeConfig:
        """Return the node's configuration; `address` and `pod_cidr` are defaults."""
        return NodeConfig(
            name=self.name,
            build=self.build,
            root=root,
            cpus=share.machine_cpus,
            own_cpus=share.share.cpus,
            memory_bytes=share.share.memory_bytes,
            disk_bytes=share.share.disk_bytes,
            max_pods=self.max_pods,
            reserved=replace(self.reserved, eviction=self._eviction_reserve(share.share)),
            thresholds=self.thresholds,
            labels=self.labels,
            taints=self.taints,
            handlers=frozenset(handlers),
            internal_ip=self.internal_ip or address,
            cluster_dns=self.cluster_dns,
            cluster_domain=self.cluster_domain,
            pod_cidr=self.pod_cidr or pod_cidr,
            log_root=log_root,
            is_simulated=self.is_simulated,
            nodes_here=share.nodes,
        )

    def _eviction_reserve(self, share: Capacity) -> Capacity:
        memory, disk = self.thresholds.memory, self.thresholds.node_disk
        return Capacity(
            Decimal(0), memory.bytes_of(share.memory_bytes), disk.bytes_of(share.disk_bytes)
        )


SIMULATED_MACHINE = Capacity(Decimal(32), memory_bytes=128 << 30, disk_bytes=1 << 40)


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


def split_among_nodes(nodes: Sequence[NodeOptions], root: Path) -> dict[str, CapacityShare]:
    """Return the share of each node: real ones split this machine, simulated ones get their own."""
    real = {node.name: node.stated_capacity for node in nodes if not node.is_simulated}
    simulated = (node for node in nodes if node.is_simulated)
    simulated_shares = (
        split_capacity(SIMULATED_MACHINE, {node.name: node.stated_capacity}) for node in simulated
    )
    real_shares = split_capacity(machine_capacity(root), real) if real else {}
    return {
        name: share for shares in (real_shares, *simulated_shares) for name, share in shares.items()
    }


def parse_taint(text: str) -> Taint:
    """Parse `os=windows:NoSchedule` or `dedicated:NoExecute`."""
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise InvalidInput(
            f'"{text}" is not a valid taint.', "Write for example KEY=VALUE:NoSchedule."
        )
    return Taint(key, value, effect)


def parse_label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise InvalidInput(f'"{text}" is not a valid label.', "Write KEY=VALUE.")
    return key, value


def parse_capacity(text: str) -> Capacity:
    """Parse `cpu=500m,memory=1Gi,ephemeral-storage=10Gi`; all parts are optional."""
    amounts = dict(parse_label(part) for part in text.split(",") if part)
    if unknown := amounts.keys() - {"cpu", "memory", "ephemeral-storage"}:
        raise InvalidInput(
            f'"{", ".join(sorted(unknown))}" cannot be reserved.',
            "Reserve cpu, memory or ephemeral-storage.",
        )
    return Capacity(
        _amount(amounts.get("cpu", "0")),
        int(_amount(amounts.get("memory", "0"))),
        int(_amount(amounts.get("ephemeral-storage", "0"))),
    )


def _amount(text: str) -> Decimal:
    amount = parse_quantity(text)
    if amount is None or amount < 0:
        raise InvalidInput(f'"{text}" is not a valid quantity.', "Write for example 500m or 1Gi.")
    return amount


def parse_subnet(text: str) -> Subnet:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidInput(f"{text} is not a valid subnet: {error}.") from None


def read_nodes(file: Path, common: NodeOptions) -> list[NodeOptions]:
    """Read a node file; options that an entry does not set are those of `common`."""
    try:
        document = Field(yaml.safe_load(file.read_text()))
        document.reject_unknown_keys("nodes")
        nodes = [node for at in document.get("nodes").items() for node in _nodes(at, common)]
    except (OSError, ValueError, yaml.YAMLError, InvalidInput) as error:
        raise InvalidInput(f"{file} is not a valid node file: {error}") from None
    names = [node.name for node in nodes]
    duplicates = (
        sorted({name for name in names if names.count(name) > 1}) if len(names) < 100 else []
    )
    if not nodes or duplicates:
        raise InvalidInput(
            f"{file} lists {f'node {duplicates[0]} twice' if duplicates else 'no nodes'}.",
            "Write a list: nodes: [{name: win-1, build: '2019'}].",
        )
    return nodes


def _nodes(at: Field, common: NodeOptions) -> Iterator[NodeOptions]:
    at.reject_unknown_keys(*_KEYS)
    name = at.get("name").required_text()
    is_simulated = at.get("simulated").flag() or common.is_simulated
    stated = StatedCapacity(
        cpus=int(at.get("cpus").number(1, 1, 4096)) if at.get("cpus") else None,
        memory_bytes=int(at.get("memory").quantity()) if at.get("memory") else None,
    )
    kubeconfig_file = at.get("kubeconfig").text()
    options = replace(
        common,
        name=name,
        build=_build(at.get("build"), common.build),
        runtime=at.get("runtime").text(common.runtime),
        kubeconfig=Path(kubeconfig_file).absolute() if kubeconfig_file else None,
        is_simulated=is_simulated,
        stated_capacity=stated,
        max_pods=int(at.get("max_pods").number(common.max_pods, 1, 100_000)),
        labels={**common.labels, **dict(at.get("labels").text_map())},
        taints=tuple(map(parse_taint, at.get("taints").text_list()))
        if at.get("taints")
        else common.taints,
        pod_cidr=at.get("pod_cidr").text(common.pod_cidr),
    )
    count = int(at.get("count").number(0, 0, 100_000))
    if not count:
        yield options
    for number in range(count):
        yield replace(options, name=f"{name}-{number}")


def _build(at: Field, default: Build) -> Build:
    if isinstance(at.value, int):
        raise InvalidField(at.path, "must be text (put it in quotes)")
    return parse_build(at.text()) if at else default

"""What a person says about a node that they want: the options of `winpod node`, and files of them.

A file of nodes is a YAML document: `nodes`, a list of settings by the names of the options, each
with a `count` where many are alike.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path

import yaml

from winpod.network.settings import Subnet
from winpod.node.facts import NodeFacts, Reserved, Share
from winpod.node.node_status import WINDOWS_TAINT
from winpod.node.thresholds import Thresholds
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Taint
from winpod.windows.quantities import parse_quantity
from winpod.windows.reading import At, InvalidField

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
class Size:
    """A part of a machine, or of one that is only said to be there."""

    cpus: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """`runtime` is the socket of a CRI runtime; without one the node has its own. `kubeconfig` is
    for one of many nodes that has an identity of its own.
    """

    name: str
    build: Build = DEFAULT_HOST
    runtime: str = ""
    kubeconfig: Path | None = None
    is_simulated: bool = False
    size: Size | None = None
    max_pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = (WINDOWS_TAINT,)
    reserved: Reserved = field(default_factory=Reserved)
    thresholds: Thresholds = field(default_factory=Thresholds)
    pod_cidr: str = ""
    cluster_cidr: Subnet | None = None
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = "cluster.local"
    internal_ip: str = ""

    def facts(
        self,
        root: Path,
        log_root: Path,
        handlers: Iterable[str],
        address: str = "",
        pod_cidr: str = "",
    ) -> NodeFacts:
        """`address` and `pod_cidr` are for a node that states none."""
        size = self.size or (SIMULATED_SIZE if self.is_simulated else machine_size(root))
        return NodeFacts(
            name=self.name,
            build=self.build,
            root=root,
            cpus=size.cpus,
            memory_bytes=size.memory_bytes,
            disk_bytes=size.disk_bytes,
            max_pods=self.max_pods,
            reserved=replace(self.reserved, eviction=self._kept_free(size)),
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
        )

    def _kept_free(self, size: Size) -> Share:
        memory, disk = self.thresholds.memory, self.thresholds.node_disk
        return Share(Decimal(0), memory.of(size.memory_bytes), disk.of(size.disk_bytes))


SIMULATED_SIZE = Size(cpus=32, memory_bytes=128 << 30, disk_bytes=1 << 40)


def machine_size(root: Path) -> Size:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    root.mkdir(parents=True, exist_ok=True)
    return Size(len(os.sched_getaffinity(0)), memory, shutil.disk_usage(root).total)


def parse_taint(text: str) -> Taint:
    """`os=windows:NoSchedule`, or without a value `dedicated:NoExecute`."""
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise InvalidInput(f'"{text}" is no taint.', "Write KEY=VALUE:NoSchedule.")
    return Taint(key, value, effect)


def parse_label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise InvalidInput(f'"{text}" is no label.', "Write KEY=VALUE.")
    return key, value


def parse_share(text: str) -> Share:
    """`cpu=500m,memory=1Gi,ephemeral-storage=10Gi`, of which any may be left out."""
    amounts = dict(parse_label(part) for part in text.split(",") if part)
    if unknown := amounts.keys() - {"cpu", "memory", "ephemeral-storage"}:
        raise InvalidInput(
            f'"{", ".join(sorted(unknown))}" cannot be reserved.',
            "cpu, memory and ephemeral-storage can.",
        )
    return Share(
        _amount(amounts.get("cpu", "0")),
        int(_amount(amounts.get("memory", "0"))),
        int(_amount(amounts.get("ephemeral-storage", "0"))),
    )


def _amount(text: str) -> Decimal:
    amount = parse_quantity(text)
    if amount is None or amount < 0:
        raise InvalidInput(f'"{text}" is no quantity.', "Write it as Kubernetes does: 500m, 1Gi.")
    return amount


def parse_subnet(text: str) -> Subnet:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidInput(f"{text} is no subnet: {error}.") from None


def read_nodes(file: Path, common: NodeSettings) -> list[NodeSettings]:
    """Every node that a file names; what it does not say is as in `common`."""
    try:
        document = At(yaml.safe_load(file.read_text()))
        document.allow("nodes")
        nodes = [node for at in document.get("nodes").items() for node in _nodes(at, common)]
    except (OSError, ValueError, yaml.YAMLError, InvalidInput) as error:
        raise InvalidInput(f"{file} is no file of nodes: {error}") from None
    names = [node.name for node in nodes]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 100 else []
    if not nodes or twice:
        raise InvalidInput(
            f"{file} names {'the node ' + twice[0] + ' twice' if twice else 'no nodes'}.",
            "It is a list: nodes: [{name: win-1, build: '2019'}].",
        )
    return nodes


def _nodes(at: At, common: NodeSettings) -> Iterator[NodeSettings]:
    at.allow(*_KEYS)
    name = at.get("name").required_text()
    is_simulated = at.get("simulated").flag() or common.is_simulated
    size = common.size or (SIMULATED_SIZE if is_simulated else None)
    if size or at.get("cpus") or at.get("memory"):
        whole = size or machine_size(Path("/"))
        memory = at.get("memory").amount() if at.get("memory") else whole.memory_bytes
        size = replace(
            whole,
            cpus=int(at.get("cpus").number(whole.cpus, 1, 4096)),
            memory_bytes=int(memory),
        )
    told_file = at.get("kubeconfig").text()
    told = replace(
        common,
        name=name,
        build=_build(at.get("build"), common.build),
        runtime=at.get("runtime").text(common.runtime),
        kubeconfig=Path(told_file).absolute() if told_file else None,
        is_simulated=is_simulated,
        size=size,
        max_pods=int(at.get("max_pods").number(common.max_pods, 1, 100_000)),
        labels={**common.labels, **dict(at.get("labels").pairs())},
        taints=tuple(map(parse_taint, at.get("taints").texts()))
        if at.get("taints")
        else common.taints,
        pod_cidr=at.get("pod_cidr").text(common.pod_cidr),
    )
    count = int(at.get("count").number(0, 0, 100_000))
    if not count:
        yield told
    for number in range(count):
        yield replace(told, name=f"{name}-{number}")


def _build(at: At, otherwise: Build) -> Build:
    if isinstance(at.value, int):
        raise InvalidField(at.path, "must be text (put it in quotes)")
    return parse_build(at.text()) if at else otherwise

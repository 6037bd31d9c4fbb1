"""What a person says about a node that they want: the options of `winpod node`, and files of them.

A file of nodes is a YAML document: `nodes`, a list of settings by the names of the options, each
with a `count` where many are alike.
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

from winpod.network.settings import Subnet
from winpod.node.facts import NodeFacts, Reserved, Share
from winpod.node.node_status import WINDOWS_TAINT
from winpod.node.splitting import Part, Stated, split
from winpod.node.thresholds import Thresholds
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build
from winpod.windows.errors import InvalidInput, PermissionDenied
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
class NodeSettings:
    """`runtime` is the socket of a CRI runtime; without one the node has its own. `kubeconfig` is
    for one of many nodes that has an identity of its own. `stated` is what it is said to have.
    """

    name: str
    build: Build = DEFAULT_HOST
    runtime: str = ""
    kubeconfig: Path | None = None
    is_simulated: bool = False
    stated: Stated = field(default_factory=Stated)
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
        part: Part,
        address: str = "",
        pod_cidr: str = "",
    ) -> NodeFacts:
        """`address` and `pod_cidr` are for a node that states none."""
        return NodeFacts(
            name=self.name,
            build=self.build,
            root=root,
            cpus=part.machine_cpus,
            own_cpus=part.share.cpus,
            memory_bytes=part.share.memory_bytes,
            disk_bytes=part.share.disk_bytes,
            max_pods=self.max_pods,
            reserved=replace(self.reserved, eviction=self._kept_free(part.share)),
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
            nodes_here=part.nodes,
        )

    def _kept_free(self, part: Share) -> Share:
        memory, disk = self.thresholds.memory, self.thresholds.node_disk
        return Share(Decimal(0), memory.of(part.memory_bytes), disk.of(part.disk_bytes))


SIMULATED_MACHINE = Share(Decimal(32), memory_bytes=128 << 30, disk_bytes=1 << 40)


def this_machine(root: Path) -> Share:
    """With the disk that a directory is on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        root.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(root).total
    except OSError as error:
        raise PermissionDenied(
            f"{root} cannot be the root: {error.strerror}.", "Use sudo, or choose another --root."
        ) from None
    return Share(Decimal(len(os.sched_getaffinity(0))), memory, disk)


def parts_of(nodes: Sequence[NodeSettings], root: Path) -> dict[str, Part]:
    """What each node has: real ones split this machine, simulated ones have one each."""
    real = {node.name: node.stated for node in nodes if not node.is_simulated}
    simulated = (node for node in nodes if node.is_simulated)
    alone = (split(SIMULATED_MACHINE, {node.name: node.stated}) for node in simulated)
    parts = split(this_machine(root), real) if real else {}
    return {name: part for found in (parts, *alone) for name, part in found.items()}


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
    stated = Stated(
        cpus=int(at.get("cpus").number(1, 1, 4096)) if at.get("cpus") else None,
        memory_bytes=int(at.get("memory").amount()) if at.get("memory") else None,
    )
    told_file = at.get("kubeconfig").text()
    told = replace(
        common,
        name=name,
        build=_build(at.get("build"), common.build),
        runtime=at.get("runtime").text(common.runtime),
        kubeconfig=Path(told_file).absolute() if told_file else None,
        is_simulated=is_simulated,
        stated=stated,
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

"""Options of `winpod node`, and files that describe several nodes.

The option classes hold the values as given; `NodeSetup` combines and parses them. A node file is a
YAML document with a list `nodes`, whose entries use the names of the options, and `count` for
several equal nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

import typer
import yaml

from winpod.config import Config, Subnet
from winpod.errors import InvalidInput
from winpod.field_reader import Field, InvalidField
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.kubelet.eviction.thresholds import EvictionThresholds, parse_thresholds
from winpod.kubelet.node.certificate_manager import NodeIdentity
from winpod.kubelet.node.node_status import WINDOWS_TAINT, osversion_labels
from winpod.kubelet.node_config import (
    Capacity,
    CapacityShare,
    NodeConfig,
    ReservedCapacity,
    StatedCapacity,
    machine_capacity,
    split_capacity,
)
from winpod.placement.model import Taint
from winpod.quantities import parse_duration, parse_quantity
from winpod.windows.builds import Build, parse_build

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
class ConnectionOptions:
    """How to connect to the cluster: a kubeconfig, which a bootstrap may have to create."""

    kubeconfig: Annotated[
        Path,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubeconfig of the node. Written by the bootstrap.",
        ),
    ]
    bootstrap_kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--bootstrap-kubeconfig",
            metavar="FILE",
            help="Kubeconfig to request the node's client certificate with.",
        ),
    ] = None
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="kubeadm bootstrap token, instead of a bootstrap kubeconfig.",
        ),
    ] = ""
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="API server URL. Used with --token.")
    ] = ""
    authority: Annotated[
        Path | None,
        typer.Option(
            "--certificate-authority", metavar="FILE", help="CA bundle of the API server."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """One node. Without `runtime`, the socket of a CRI runtime, the node runs its own."""

    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Node name (default: the host name).")
    ] = ""
    build: Annotated[
        str,
        typer.Option(
            "--build",
            metavar="BUILD",
            help="Windows build of the node, such as 2019 or 10.0.20348.2113.",
        ),
    ] = ""
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="SOCKET",
            help="CRI endpoint to use instead of the built-in runtime.",
        ),
    ] = ""
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated", help="Simulate pods without running containers, for scale tests."
        ),
    ] = False
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Node label. May be repeated."),
    ] = None
    osversion_labels: Annotated[
        bool,
        typer.Option(
            "--osversion-labels",
            help="Also set beta.kubernetes.io/osversion and the Hyper-V label.",
        ),
    ] = False
    register_taint: Annotated[
        list[str] | None,
        typer.Option(
            "--register-taint",
            metavar="TAINT",
            help=f"Taint to register with (default: {WINDOWS_TAINT}; '' for none).",
        ),
    ] = None
    max_pods: Annotated[
        int, typer.Option("--max-pods", metavar="NUMBER", help="Maximum number of pods.")
    ] = 110


@dataclass(frozen=True, slots=True)
class ReservationOptions:
    """Resources withheld from pods, and when to reclaim them."""

    system_reserved: Annotated[
        str,
        typer.Option(
            "--system-reserved",
            metavar="AMOUNTS",
            help="Resources reserved for the system: cpu=500m,memory=1Gi.",
        ),
    ] = ""
    kube_reserved: Annotated[
        str,
        typer.Option(
            "--kube-reserved", metavar="AMOUNTS", help="Resources reserved for the node agent."
        ),
    ] = ""
    eviction_hard: Annotated[
        str,
        typer.Option(
            "--eviction-hard",
            metavar="SIGNAL<AMOUNT,...",
            help="Hard eviction thresholds (default: memory.available<500Mi, "
            "nodefs.available<10%, imagefs.available<15%).",
        ),
    ] = ""
    pressure_transition: Annotated[
        str,
        typer.Option(
            "--eviction-pressure-transition-period",
            metavar="DURATION",
            help="Time to wait before leaving a pressure condition.",
        ),
    ] = "5m"
    image_age: Annotated[
        str,
        typer.Option(
            "--minimum-image-ttl-duration",
            metavar="DURATION",
            help="Minimum age of an unused image before garbage collection.",
        ),
    ] = "2m"

    @property
    def thresholds(self) -> EvictionThresholds:
        return replace(
            parse_thresholds(self.eviction_hard, EvictionThresholds()),
            transition_period=parse_duration(self.pressure_transition),
            image_age=parse_duration(self.image_age),
        )

    def reserved(self, share: Capacity) -> ReservedCapacity:
        """Return what is withheld from the pods of a node with this share of the machine."""
        thresholds = self.thresholds
        return ReservedCapacity(
            parse_capacity(self.system_reserved),
            parse_capacity(self.kube_reserved),
            eviction=Capacity(
                Decimal(0),
                thresholds.memory.bytes_of(share.memory_bytes),
                thresholds.node_disk.bytes_of(share.disk_bytes),
            ),
        )


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    pod_cidr: Annotated[
        str,
        typer.Option(
            "--pod-cidr", metavar="CIDR", help="Pod CIDR of the node if the cluster allocates none."
        ),
    ] = ""
    cluster_cidr: Annotated[
        str,
        typer.Option(
            "--cluster-cidr",
            metavar="CIDR",
            help="CIDR of all pods. Traffic to it is not masqueraded.",
        ),
    ] = ""
    cluster_dns: Annotated[
        list[str] | None,
        typer.Option("--cluster-dns", metavar="IP", help="Cluster DNS server. May be repeated."),
    ] = None
    cluster_domain: Annotated[
        str, typer.Option("--cluster-domain", metavar="DOMAIN", help="Cluster DNS domain.")
    ] = "cluster.local"
    node_ip: Annotated[
        str,
        typer.Option(
            "--node-ip",
            metavar="IP",
            help="Node IP (default: source address of the route to the API server).",
        ),
    ] = ""

    @property
    def cluster_subnet(self) -> Subnet | None:
        return parse_subnet(self.cluster_cidr) if self.cluster_cidr else None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Port and certificate of the kubelet API.

    Without files, the cluster signs a certificate, or the node signs it itself.
    """

    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", help="Port of the kubelet API; 0 picks a free one."),
    ] = 10250
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert-file", metavar="FILE", help="TLS certificate for the kubelet API."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-private-key-file", metavar="FILE", help="Private key of the TLS certificate."
        ),
    ] = None
    self_signed: Annotated[
        bool,
        typer.Option(
            "--self-signed",
            help="Serve with a self-signed certificate instead of requesting one from the cluster.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    manifests: Annotated[
        Path | None,
        typer.Option("--manifests", metavar="DIR", help="Directory of static pod manifests."),
    ] = None
    pod_logs: Annotated[
        Path, typer.Option("--pod-logs", metavar="DIR", help="Directory for container logs.")
    ] = Path("/var/log/pods")


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """Everything needed to run one node. Invalid options are rejected on creation."""

    config: Config
    connection: ConnectionOptions
    node: NodeOptions
    reservations: ReservationOptions = field(default_factory=ReservationOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    directories: DirectoryOptions = field(default_factory=DirectoryOptions)
    stated_capacity: StatedCapacity = field(default_factory=StatedCapacity)

    def __post_init__(self) -> None:
        if bool(self.server.tls_certificate) != bool(self.server.tls_key):
            raise InvalidInput("--tls-cert-file and --tls-private-key-file must be given together.")
        _ = self.build, self.labels, self.taints, self.network.cluster_subnet
        _ = self.reservations.reserved(Capacity())

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def build(self) -> Build:
        return parse_build(self.node.build) if self.node.build else self.config.host_build

    @property
    def labels(self) -> dict[str, str]:
        return dict(map(parse_label, self.node.label or ()))

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints to register with: the Windows taint by default, none for an empty text."""
        given = self.node.register_taint or (str(WINDOWS_TAINT),)
        return tuple(parse_taint(text) for text in given if text)

    @property
    def root(self) -> Path:
        return self.config.root / "nodes" / self.name

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity(self.name, self.connection.kubeconfig, self.root / "pki")

    def require_readable(self) -> None:
        """Check the input files before anything is created; a bootstrap creates the kubeconfig."""
        if not self.connection.bootstrap_kubeconfig and not self.connection.token:
            read_kubeconfig(self.connection.kubeconfig)
        manifests = self.directories.manifests
        if manifests and manifests.exists() and not manifests.is_dir():
            raise InvalidInput(
                f"{manifests} is not a directory.",
                "Set --manifests to a directory with one file for each static pod.",
            )

    def node_config(
        self, handlers: Iterable[str], share: CapacityShare, address: str = "", pod_cidr: str = ""
    ) -> NodeConfig:
        """Return the node's configuration; `address` and `pod_cidr` are defaults."""
        handlers = frozenset(handlers)
        extra_labels = osversion_labels(self.build, handlers) if self.node.osversion_labels else {}
        return NodeConfig(
            name=self.name,
            build=self.build,
            root=self.root,
            cpus=share.machine_cpus,
            own_cpus=share.share.cpus,
            memory_bytes=share.share.memory_bytes,
            disk_bytes=share.share.disk_bytes,
            max_pods=self.node.max_pods,
            reserved=self.reservations.reserved(share.share),
            thresholds=self.reservations.thresholds,
            labels=extra_labels | self.labels,
            taints=self.taints,
            handlers=handlers,
            internal_ip=self.network.node_ip or address,
            cluster_dns=tuple(self.network.cluster_dns or ()),
            cluster_domain=self.network.cluster_domain,
            pod_cidr=self.network.pod_cidr or pod_cidr,
            log_root=self.directories.pod_logs.absolute(),
            is_simulated=self.node.simulated,
            nodes_here=share.nodes,
        )


SIMULATED_MACHINE = Capacity(Decimal(32), memory_bytes=128 << 30, disk_bytes=1 << 40)


def split_among_nodes(nodes: Sequence[NodeSetup]) -> dict[str, CapacityShare]:
    """Return the share of each node: real ones split this machine, simulated ones get their own."""
    real = {node.name: node.stated_capacity for node in nodes if not node.node.simulated}
    simulated = (node for node in nodes if node.node.simulated)
    simulated_shares = (
        split_capacity(SIMULATED_MACHINE, {node.name: node.stated_capacity}) for node in simulated
    )
    real_shares = split_capacity(machine_capacity(nodes[0].config.root), real) if real else {}
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


def read_nodes(file: Path, common: NodeSetup) -> list[NodeSetup]:
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


def _nodes(at: Field, common: NodeSetup) -> Iterator[NodeSetup]:
    at.reject_unknown_keys(*_KEYS)
    name = at.get("name").required_text()
    labels = [f"{key}={value}" for key, value in at.get("labels").text_map()]
    kubeconfig_file = at.get("kubeconfig").text()
    setup = replace(
        common,
        connection=replace(common.connection, kubeconfig=Path(kubeconfig_file).absolute())
        if kubeconfig_file
        else common.connection,
        node=replace(
            common.node,
            name=name,
            build=_build(at.get("build")) or common.node.build,
            runtime=at.get("runtime").text(common.node.runtime),
            simulated=at.get("simulated").flag() or common.node.simulated,
            label=[*(common.node.label or ()), *labels],
            register_taint=list(at.get("taints").text_list()) or [""]
            if at.get("taints")
            else common.node.register_taint,
            max_pods=int(at.get("max_pods").number(common.node.max_pods, 1, 100_000)),
        ),
        network=replace(common.network, pod_cidr=at.get("pod_cidr").text(common.network.pod_cidr)),
        stated_capacity=StatedCapacity(
            cpus=int(at.get("cpus").number(1, 1, 4096)) if at.get("cpus") else None,
            memory_bytes=int(at.get("memory").quantity()) if at.get("memory") else None,
        ),
    )
    count = int(at.get("count").number(0, 0, 100_000))
    if not count:
        yield setup
    for number in range(count):
        yield replace(setup, node=replace(setup.node, name=f"{name}-{number}"))


def _build(at: Field) -> str:
    if isinstance(at.value, int):
        raise InvalidField(at.path, "must be text (put it in quotes)")
    return at.text()

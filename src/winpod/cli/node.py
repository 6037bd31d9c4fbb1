"""`winpod node`: run Windows nodes of a Kubernetes cluster on this machine."""

from __future__ import annotations

import asyncio
import logging
import platform
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.options import Root
from winpod.config import read_config
from winpod.errors import InvalidInput
from winpod.kubelet.eviction.thresholds import EvictionThresholds, parse_thresholds
from winpod.kubelet.node.multi_node import run_nodes
from winpod.kubelet.node.node_options import (
    NodeOptions,
    parse_capacity,
    parse_label,
    parse_subnet,
    parse_taint,
    read_nodes,
)
from winpod.kubelet.node.node_setup import ClusterConnection, NodeSetup, ServerOptions
from winpod.kubelet.node.node_status import WINDOWS_TAINT
from winpod.kubelet.node_config import Capacity, ReservedCapacity
from winpod.placement.model import Taint
from winpod.quantities import parse_duration
from winpod.windows.builds import parse_build

_log = logging.getLogger("winpod")


def command(
    kubeconfig: Annotated[
        Path,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubeconfig of the node. Written by the bootstrap.",
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Node name (default: the host name).")
    ] = "",
    build: Annotated[
        str,
        typer.Option(
            "--build",
            metavar="BUILD",
            help="Windows build of the node, such as 2019 or 10.0.20348.2113.",
        ),
    ] = "",
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="FILE", help="Run the nodes defined in this file."),
    ] = None,
    bootstrap_kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--bootstrap-kubeconfig",
            metavar="FILE",
            help="Kubeconfig to request the node's client certificate with.",
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="kubeadm bootstrap token, instead of a bootstrap kubeconfig.",
        ),
    ] = "",
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="API server URL. Used with --token.")
    ] = "",
    authority: Annotated[
        Path | None,
        typer.Option(
            "--certificate-authority", metavar="FILE", help="CA bundle of the API server."
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="SOCKET",
            help="CRI endpoint to use instead of the built-in runtime.",
        ),
    ] = "",
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated", help="Simulate pods without running containers, for scale tests."
        ),
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Node label. May be repeated."),
    ] = None,
    document_labels: Annotated[
        bool,
        typer.Option(
            "--osversion-labels",
            help="Also set beta.kubernetes.io/osversion and the Hyper-V label.",
        ),
    ] = False,
    register_taint: Annotated[
        list[str] | None,
        typer.Option(
            "--register-taint",
            metavar="TAINT",
            help=f"Taint to register with (default: {WINDOWS_TAINT}; '' for none).",
        ),
    ] = None,
    max_pods: Annotated[
        int, typer.Option("--max-pods", metavar="NUMBER", help="Maximum number of pods.")
    ] = 110,
    system_reserved: Annotated[
        str,
        typer.Option(
            "--system-reserved",
            metavar="AMOUNTS",
            help="Resources reserved for the system: cpu=500m,memory=1Gi.",
        ),
    ] = "",
    kube_reserved: Annotated[
        str,
        typer.Option(
            "--kube-reserved", metavar="AMOUNTS", help="Resources reserved for the node agent."
        ),
    ] = "",
    eviction_hard: Annotated[
        str,
        typer.Option(
            "--eviction-hard",
            metavar="SIGNAL<AMOUNT,...",
            help="Hard eviction thresholds (default: memory.available<500Mi, "
            "nodefs.available<10%, imagefs.available<15%).",
        ),
    ] = "",
    pressure_transition: Annotated[
        str,
        typer.Option(
            "--eviction-pressure-transition-period",
            metavar="DURATION",
            help="Time to wait before leaving a pressure condition.",
        ),
    ] = "5m",
    image_age: Annotated[
        str,
        typer.Option(
            "--minimum-image-ttl-duration",
            metavar="DURATION",
            help="Minimum age of an unused image before garbage collection.",
        ),
    ] = "2m",
    pod_cidr: Annotated[
        str,
        typer.Option(
            "--pod-cidr", metavar="CIDR", help="Pod CIDR of the node if the cluster allocates none."
        ),
    ] = "",
    cluster_cidr: Annotated[
        str,
        typer.Option(
            "--cluster-cidr",
            metavar="CIDR",
            help="CIDR of all pods. Traffic to it is not masqueraded.",
        ),
    ] = "",
    cluster_dns: Annotated[
        list[str] | None,
        typer.Option("--cluster-dns", metavar="IP", help="Cluster DNS server. May be repeated."),
    ] = None,
    cluster_domain: Annotated[
        str, typer.Option("--cluster-domain", metavar="DOMAIN", help="Cluster DNS domain.")
    ] = "cluster.local",
    node_ip: Annotated[
        str,
        typer.Option(
            "--node-ip",
            metavar="IP",
            help="Node IP (default: source address of the route to the API server).",
        ),
    ] = "",
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", help="Port of the kubelet API; 0 picks a free one."),
    ] = 10250,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert-file", metavar="FILE", help="TLS certificate for the kubelet API."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-private-key-file", metavar="FILE", help="Private key of the TLS certificate."
        ),
    ] = None,
    self_signed: Annotated[
        bool,
        typer.Option(
            "--self-signed",
            help="Serve with a self-signed certificate instead of requesting one from the cluster.",
        ),
    ] = False,
    manifests: Annotated[
        Path | None,
        typer.Option("--manifests", metavar="DIR", help="Directory of static pod manifests."),
    ] = None,
    pod_logs: Annotated[
        Path, typer.Option("--pod-logs", metavar="DIR", help="Directory for container logs.")
    ] = Path("/var/log/pods"),
    root: Root = None,
) -> None:
    """Join a Kubernetes cluster as one or more Windows nodes.

    Pods keep running when this process stops, and are recovered when it starts again. Simulated
    pods end with the process.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    level = config.runtime.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    if bool(tls_certificate) != bool(tls_key):
        raise InvalidInput("--tls-cert-file and --tls-private-key-file must be given together.")
    settings = NodeOptions(
        name=(name or platform.node()).lower(),
        build=parse_build(build) if build else config.host_build,
        runtime=runtime,
        is_simulated=simulated,
        max_pods=max_pods,
        labels=dict(map(parse_label, label or ())),
        taints=taints_to_register(register_taint),
        reserved=ReservedCapacity(
            parse_capacity(system_reserved) if system_reserved else Capacity(),
            parse_capacity(kube_reserved) if kube_reserved else Capacity(),
        ),
        thresholds=replace(
            parse_thresholds(eviction_hard, EvictionThresholds()),
            transition_period=parse_duration(pressure_transition),
            image_age=parse_duration(image_age),
        ),
        pod_cidr=pod_cidr,
        cluster_cidr=parse_subnet(cluster_cidr) if cluster_cidr else None,
        cluster_dns=tuple(cluster_dns or ()),
        cluster_domain=cluster_domain,
        internal_ip=node_ip,
    )
    cluster = ClusterConnection(
        kubeconfig.absolute(), bootstrap_kubeconfig, server, token, authority
    )
    server_options = ServerOptions(
        port=port, certificate=tls_certificate, key=tls_key, is_signed=not self_signed
    )
    node_options = read_nodes(nodes, settings) if nodes else [settings]
    setups = [
        NodeSetup(
            options,
            replace(cluster, kubeconfig=options.kubeconfig or cluster.kubeconfig),
            replace(server_options, port=port and port + number),
            config,
            pod_logs.absolute(),
            manifests,
            document_labels,
        )
        for number, options in enumerate(node_options)
    ]
    asyncio.run(_until_stopped(setups))


def taints_to_register(values: Sequence[str] | None) -> tuple[Taint, ...]:
    """Parse --register-taint. Defaults to the Windows taint; '' registers none."""
    return tuple(parse_taint(text) for text in values or (str(WINDOWS_TAINT),) if text)


async def _until_stopped(nodes: list[NodeSetup]) -> None:
    running = asyncio.create_task(run_nodes(nodes))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("Node is shutting down; its pods keep running")

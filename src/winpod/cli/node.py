"""`winpod node`: Windows nodes of a Kubernetes cluster, on this machine."""

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
from winpod.cri.config import read_config
from winpod.node.facts import Reserved, Share
from winpod.node.fleet import run_nodes
from winpod.node.joining import Cluster, Joined, Serving
from winpod.node.node_status import WINDOWS_TAINT
from winpod.node.settings import (
    NodeSettings,
    parse_label,
    parse_share,
    parse_subnet,
    parse_taint,
    read_nodes,
)
from winpod.node.thresholds import Thresholds, parse_duration, parse_thresholds
from winpod.windows.builds import parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Taint

_log = logging.getLogger("winpod")


def command(
    kubeconfig: Annotated[
        Path,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="The cluster, and who the node is there; a bootstrap writes it.",
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The node's name, else this machine's.")
    ] = "",
    build: Annotated[
        str, typer.Option("--build", metavar="BUILD", help="Its Windows: 2019, 10.0.20348.2113.")
    ] = "",
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="FILE", help="Many nodes at once, from a file of them."),
    ] = None,
    bootstrap_kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--bootstrap-kubeconfig", metavar="FILE", help="To ask for the node's certificate with."
        ),
    ] = None,
    token: Annotated[
        str, typer.Option("--token", metavar="TOKEN", help="The same, with a token of kubeadm.")
    ] = "",
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="The API server that knows the token.")
    ] = "",
    authority: Annotated[
        Path | None,
        typer.Option(
            "--certificate-authority", metavar="FILE", help="Whom to believe when joining."
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime", metavar="SOCKET", help="A CRI runtime to use, instead of its own."
        ),
    ] = "",
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Run nothing: pods only seem to run, for scale.")
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Labels of its own.")
    ] = None,
    document_labels: Annotated[
        bool,
        typer.Option(
            "--osversion-labels", help="Also beta.kubernetes.io/osversion, and Hyper-V's."
        ),
    ] = False,
    register_taint: Annotated[
        list[str] | None,
        typer.Option(
            "--register-taint",
            metavar="TAINT",
            help=f"Taints at its registration, else {WINDOWS_TAINT}; '' for none.",
        ),
    ] = None,
    max_pods: Annotated[
        int, typer.Option("--max-pods", metavar="NUMBER", help="How many pods it takes.")
    ] = 110,
    system_reserved: Annotated[
        str,
        typer.Option("--system-reserved", metavar="AMOUNTS", help="cpu=500m,memory=1Gi: no pod's."),
    ] = "",
    kube_reserved: Annotated[
        str, typer.Option("--kube-reserved", metavar="AMOUNTS", help="The same, for the agent.")
    ] = "",
    eviction_hard: Annotated[
        str,
        typer.Option(
            "--eviction-hard",
            metavar="SIGNAL<AMOUNT,...",
            help="Room below which pods are evicted, else memory.available<500Mi,"
            "nodefs.available<10%,imagefs.available<15%.",
        ),
    ] = "",
    pressure_transition: Annotated[
        str,
        typer.Option(
            "--eviction-pressure-transition-period",
            metavar="DURATION",
            help="How long a pressure is told after it is over.",
        ),
    ] = "5m",
    image_age: Annotated[
        str,
        typer.Option(
            "--minimum-image-ttl-duration",
            metavar="DURATION",
            help="How old an image is before it can be removed for its room.",
        ),
    ] = "2m",
    pod_cidr: Annotated[
        str, typer.Option("--pod-cidr", metavar="CIDR", help="Where the cluster allocates none.")
    ] = "",
    cluster_cidr: Annotated[
        str,
        typer.Option(
            "--cluster-cidr", metavar="CIDR", help="Of all pods, who see each other's addresses."
        ),
    ] = "",
    cluster_dns: Annotated[
        list[str] | None,
        typer.Option("--cluster-dns", metavar="IP", help="The cluster's name servers."),
    ] = None,
    cluster_domain: Annotated[
        str, typer.Option("--cluster-domain", metavar="DOMAIN", help="Where its names end.")
    ] = "cluster.local",
    node_ip: Annotated[
        str, typer.Option("--node-ip", metavar="IP", help="Its address, else the one that leads.")
    ] = "",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Of the node's own API; 0 is any.")
    ] = 10250,
    tls_certificate: Annotated[
        Path | None,
        typer.Option("--tls-cert-file", metavar="FILE", help="To serve with, with its key."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-private-key-file", metavar="FILE", help="Its key.")
    ] = None,
    self_signed: Annotated[
        bool,
        typer.Option("--self-signed", help="Serve with its own word; else the cluster signs."),
    ] = False,
    manifests: Annotated[
        Path | None,
        typer.Option("--manifests", metavar="DIR", help="Manifests of static pods."),
    ] = None,
    pod_logs: Annotated[
        Path, typer.Option("--pod-logs", metavar="DIR", help="Where logs of containers are.")
    ] = Path("/var/log/pods"),
    root: Root = None,
) -> None:
    """Join a Kubernetes cluster as Windows nodes, and run the pods that it sends.

    Pods go on when it stops, and it finds them again when it starts. Simulated ones end with it.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    level = config.runtime.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    if bool(tls_certificate) != bool(tls_key):
        raise InvalidInput("--tls-cert-file and --tls-private-key-file go together.")
    settings = NodeSettings(
        name=(name or platform.node()).lower(),
        build=parse_build(build) if build else config.host_build,
        runtime=runtime,
        is_simulated=simulated,
        max_pods=max_pods,
        labels=dict(map(parse_label, label or ())),
        taints=registered_taints(register_taint),
        reserved=Reserved(
            parse_share(system_reserved) if system_reserved else Share(),
            parse_share(kube_reserved) if kube_reserved else Share(),
        ),
        thresholds=replace(
            parse_thresholds(eviction_hard, Thresholds()),
            hold=parse_duration(pressure_transition),
            image_age=parse_duration(image_age),
        ),
        pod_cidr=pod_cidr,
        cluster_cidr=parse_subnet(cluster_cidr) if cluster_cidr else None,
        cluster_dns=tuple(cluster_dns or ()),
        cluster_domain=cluster_domain,
        internal_ip=node_ip,
    )
    cluster = Cluster(kubeconfig.absolute(), bootstrap_kubeconfig, server, token, authority)
    serving = Serving(
        port=port, certificate=tls_certificate, key=tls_key, is_signed=not self_signed
    )
    every = read_nodes(nodes, settings) if nodes else [settings]
    joined = [
        Joined(
            one,
            replace(cluster, kubeconfig=one.kubeconfig or cluster.kubeconfig),
            replace(serving, port=port and port + number),
            config,
            pod_logs.absolute(),
            manifests,
            document_labels,
        )
        for number, one in enumerate(every)
    ]
    asyncio.run(_until_stopped(joined))


def registered_taints(told: Sequence[str] | None) -> tuple[Taint, ...]:
    """Of a node that registers: the usual one where none is told, and none where '' is."""
    return tuple(parse_taint(text) for text in told or (str(WINDOWS_TAINT),) if text)


async def _until_stopped(nodes: list[Joined]) -> None:
    running = asyncio.create_task(run_nodes(nodes))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("the node stops; its pods go on")

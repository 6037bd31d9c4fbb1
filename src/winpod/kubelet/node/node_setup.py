"""Sets up nodes that join a cluster: credentials, runtime, agent and kubelet API.

The runtime runs in this process, or is connected to at a socket. Each node may have its own
identity; nodes that share a kubeconfig share its connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.metrics_core import Metric

from winpod.clock import utc_now
from winpod.concurrency import supervise
from winpod.cri.assemble import RuntimeLocation, assemble
from winpod.cri.daemon import DaemonInfo
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError
from winpod.k8s.auth import ApiServerAuthorizer
from winpod.k8s.certificates import CertificateSubject, read_validity, validity_of
from winpod.k8s.client import ApiClient
from winpod.k8s.discovery import discover_cluster
from winpod.k8s.informer import Reflector
from winpod.k8s.kubeconfig import RestConfig, normalize_url, read_kubeconfig, token_config
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.api_objects import ApiObjectSource, ClusterInformers, pods_of_node_selector
from winpod.kubelet.kubelet import KubeletDeps
from winpod.kubelet.node.agent import NodeAgent
from winpod.kubelet.node.certificate_manager import (
    NodeIdentity,
    RenewalErrors,
    bootstrap_client_certificate,
    certificate_metric_families,
    ensure_serving_certificate,
    needs_bootstrap,
    rotate_client_certificate,
    rotate_serving_certificate,
    watch_kubeconfig,
    write_client_ca,
)
from winpod.kubelet.node.node_options import ConnectionOptions, NodeSetup
from winpod.kubelet.node.node_status import MachineInfo
from winpod.kubelet.node_config import CapacityShare, NodeConfig
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.server.metrics import FamilySource
from winpod.kubelet.server.server import KubeletServer
from winpod.kubelet.server.tls import TlsFiles
from winpod.kubelet.volumes.manager import VolumeManager

_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - the API server connects to the kubelet API
_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


def runtime_location(node: NodeSetup) -> RuntimeLocation:
    """Return the runtime settings of a node.

    Nodes of a machine share images and base; everything else is the node's own. Its pods get a
    bridge of their own, with the subnet that the cluster assigns to the node.
    """
    config = node.config
    network = config.network
    if network.cni is None:
        name = hashlib.sha256(node.name.encode()).hexdigest()[:8]
        network = replace(
            network, subnets=(), bridge=f"winpod-{name}", cluster=node.network.cluster_subnet
        )
    runtime = replace(config.runtime, socket=node.root / "cri.sock", tcp="")
    return RuntimeLocation(
        node.root,
        node.build,
        config.images,
        config.handlers,
        network,
        runtime,
        config.hypervisor,
        shared=config.root,
    )


@asynccontextmanager
async def run_runtime(location: RuntimeLocation) -> AsyncIterator[CriClient]:
    """Run the runtime in this process while the context is open; containers keep running after."""
    socket = location.runtime.socket
    async with assemble(location) as server:
        await server.start(f"unix:{socket}")
        daemon_info = DaemonInfo(
            str(socket), str(location.host.base), os.getpid(), background=False
        )
        daemon_info.write(location.root)
        try:
            async with connect_runtime(f"unix:{socket}") as client:
                yield client
        finally:
            await server.stop()
            daemon_info.remove(location.root)


@asynccontextmanager
async def connect_runtime(target: str) -> AsyncIterator[CriClient]:
    client = CriClient(target if ":" in target else f"unix:{target}")
    try:
        yield client
    finally:
        await client.close()


async def available_handlers(client: CriClient) -> frozenset[str]:
    """Return the handlers that the runtime can start; wait until it answers."""
    while True:
        try:
            status = await client.call("Status", api.StatusRequest())
            return frozenset(h.name for h in status.runtime_handlers if h.name)
        except WinpodError as error:
            _log.warning("Waiting for the container runtime: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)


_BOOTSTRAP_RETRY_SECONDS = 2.0


async def bootstrap_config(options: ConnectionOptions) -> RestConfig | None:
    """Return the credentials to request a client certificate with, if there are any."""
    if options.bootstrap_kubeconfig:
        return read_kubeconfig(options.bootstrap_kubeconfig, option="--bootstrap-kubeconfig")
    if not options.token:
        return None
    if not options.server:
        raise InvalidInput("--token requires the address of the API server.", "Set --server.")
    if options.authority:
        return _config_with_ca(options.authority, options.server, options.token)
    return await discover_cluster(options.server, options.token)


async def connect_cluster(options: ConnectionOptions, identity: NodeIdentity) -> RestConfig:
    """Return the config of the kubeconfig; bootstrap first if needed, with retries."""
    while True:
        try:
            config = await bootstrap_config(options) if needs_bootstrap(identity) else None
            if config:
                await bootstrap_client_certificate(identity, config)
            return read_kubeconfig(identity.kubeconfig)
        except Unavailable as error:
            _log.warning("Waiting for the API server: %s", error)
            await asyncio.sleep(_BOOTSTRAP_RETRY_SECONDS)


def _config_with_ca(authority: Path, server: str, token: str) -> RestConfig:
    try:
        content = authority.read_bytes()
        if not content.strip():
            raise ValueError("it is empty")
        return token_config(normalize_url(server), token, content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError) else error
        raise InvalidInput(
            f"Failed to read the CA bundle {authority}: {reason}.",
            "Set --certificate-authority to a file with certificates in PEM format.",
        ) from None


async def run_node(node: NodeSetup, part: CapacityShare) -> None:
    """Run a node until cancelled. Its pods keep running."""
    node.require_readable()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_runtime(node))
        _make_directory(node.root)
        rest_config = await connect_cluster(node.connection, node.identity)
        server = ApiClient(rest_config)
        stack.push_async_callback(server.close)
        address = node.network.node_ip or source_address(rest_config.url)
        node_config = node.node_config(await available_handlers(client), part, address)
        cluster = ClusterInformers(server)
        objects = ApiObjectSource(server, node_config.name, cluster)
        volumes = VolumeManager(objects, node_config)
        agent = NodeAgent(
            server,
            KubeletDeps(client, node_config, objects, volumes),
            MachineInfo(),
            manifests=node.directories.manifests,
            invalidate_namespace=objects.invalidate_namespace,
            invalidate_pod=objects.invalidate_pod,
        )
        authorizer = ApiServerAuthorizer(server, node_config.name)
        subject = _subject(node_config)
        files, renewals = _tls_files(node, subject, rest_config), RenewalErrors()
        certificate_metrics = _certificate_metrics(rest_config, files, renewals)
        kubelet_server = KubeletServer(
            ServerContext(node_config, agent.kubelet.runtime, agent.kubelet, objects),
            authorizer,
            certificate_metrics,
        )
        await kubelet_server.start(files, _ALL_ADDRESSES, node.server.port)
        stack.push_async_callback(kubelet_server.close)
        agent.registration.set_server_port(kubelet_server.port)
        pods = Reflector(
            server, v1.Pod, "/api/v1/pods", agent, pods_of_node_selector(node_config.name)
        )
        _log.info(
            "Starting node %s (%s), API server %s",
            *(node_config.name, node_config.build.describe(), rest_config.url),
        )
        await _run_all(
            supervise("objects", objects.run),
            supervise("services", cluster.run),
            supervise("pods", pods.run),
            supervise("access", lambda: watch_kubeconfig(node.identity, rest_config, server)),
            _rotate_client(node, server, renewals),
            _rotate_serving(node, subject, server, renewals),
            agent.run(),
        )


def _make_directory(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionDenied(
            f"Failed to create {root}: {error.strerror}.", "Use sudo, or choose another --root."
        ) from None


@asynccontextmanager
async def _runtime(node: NodeSetup) -> AsyncIterator[CriClient]:
    if node.node.runtime:
        async with connect_runtime(node.node.runtime) as client:
            yield client
    else:
        async with run_runtime(runtime_location(node)) as client:
            yield client


def source_address(url: str) -> str:
    """Return the local address of the route to a URL."""
    parts = urlsplit(url)
    try:
        addresses = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)
        with socket.socket(addresses[0][0], socket.SOCK_DGRAM) as probe:
            probe.connect(addresses[0][4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(f"Found no route to {url}: {error.strerror}.", "Set --node-ip.") from None


def _subject(node_config: NodeConfig) -> CertificateSubject:
    name = f"system:node:{node_config.name}"
    addresses = (node_config.internal_ip,) if node_config.internal_ip else ()
    return CertificateSubject(name, names=(node_config.name,), addresses=addresses)


def _tls_files(node: NodeSetup, subject: CertificateSubject, rest_config: RestConfig) -> TlsFiles:
    write_client_ca(node.identity, rest_config)
    trusted = node.identity.client_ca
    if node.server.tls_certificate and node.server.tls_key:
        return TlsFiles(node.server.tls_certificate, node.server.tls_key, trusted)
    ensure_serving_certificate(node.identity, subject)
    return TlsFiles(node.identity.serving, node.identity.serving, trusted)


def _certificate_metrics(
    rest_config: RestConfig, files: TlsFiles, renewals: RenewalErrors
) -> FamilySource:
    """Return a source of certificate metrics."""

    def collect() -> Iterable[Metric]:
        client, serving = validity_of(rest_config.chain), read_validity(files.certificate)
        return certificate_metric_families(client, serving, renewals, utc_now())

    return collect


async def _rotate_client(node: NodeSetup, server: ApiClient, renewals: RenewalErrors) -> None:
    """Rotate the client certificate, unless it was provided by others."""
    identity, bootstrap = node.identity, partial(bootstrap_config, node.connection)
    if identity.client.exists():
        await supervise(
            "client", lambda: rotate_client_certificate(identity, server, bootstrap, renewals)
        )


async def _rotate_serving(
    node: NodeSetup, subject: CertificateSubject, server: ApiClient, renewals: RenewalErrors
) -> None:
    if not node.server.self_signed and not node.server.tls_certificate:
        await supervise(
            "serving", lambda: rotate_serving_certificate(node.identity, subject, server, renewals)
        )


async def _run_all(*parts: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)

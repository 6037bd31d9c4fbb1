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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightkube.models import core_v1 as v1
from prometheus_client.metrics_core import Metric

from winpod.clock import utc_now
from winpod.concurrency import supervise
from winpod.config import Config
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
from winpod.kubelet.api_objects import ApiObjectSource, ClusterInformers, pods_of_node_selector
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
from winpod.kubelet.node.node_options import NodeOptions
from winpod.kubelet.node.node_status import MachineInfo, osversion_labels
from winpod.kubelet.node_config import CapacityShare, NodeConfig
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.server.metrics import FamilySource
from winpod.kubelet.server.server import KubeletServer
from winpod.kubelet.server.tls import TlsFiles
from winpod.kubelet.volumes.manager import VolumeManager

_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


def runtime_location(node: NodeOptions, root: Path, config: Config) -> RuntimeLocation:
    """Return the runtime settings of a node.

    Nodes of a machine share images and base; everything else is the node's own. Its pods get a
    bridge of their own, with the subnet that the cluster assigns to the node.
    """
    network = config.network
    if network.cni is None:
        name = hashlib.sha256(node.name.encode()).hexdigest()[:8]
        network = replace(network, subnets=(), bridge=f"winpod-{name}", cluster=node.cluster_cidr)
    runtime = replace(config.runtime, socket=root / "cri.sock", tcp="")
    return RuntimeLocation(
        root,
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


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """How to connect to a cluster: a kubeconfig, which a bootstrap may have to create."""

    kubeconfig: Path
    bootstrap_kubeconfig: Path | None = None
    server: str = ""
    token: str = ""
    authority: Path | None = None

    def require_readable(self) -> None:
        """Check the kubeconfig, unless a bootstrap creates it."""
        if not self.bootstrap_kubeconfig and not self.token:
            read_kubeconfig(self.kubeconfig)

    async def bootstrap(self) -> RestConfig | None:
        if self.bootstrap_kubeconfig:
            return read_kubeconfig(self.bootstrap_kubeconfig, "--bootstrap-kubeconfig")
        if not self.token:
            return None
        if not self.server:
            raise InvalidInput("--token requires the address of the API server.", "Set --server.")
        if self.authority:
            return _config_with_ca(self.authority, self.server, self.token)
        return await discover_cluster(self.server, self.token)

    async def connect(self, identity: NodeIdentity) -> RestConfig:
        """Return the config of the kubeconfig; bootstrap first if needed, with retries."""
        while True:
            try:
                bootstrap_config = await self.bootstrap() if needs_bootstrap(identity) else None
                if bootstrap_config:
                    await bootstrap_client_certificate(identity, bootstrap_config)
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


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Address and certificate of the kubelet API.

    Without files, the cluster signs a certificate, or the node signs it itself.
    """

    host: str = "0.0.0.0"  # noqa: S104 - the API server is elsewhere
    port: int = 10250
    certificate: Path | None = None
    key: Path | None = None
    is_signed: bool = True


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """Everything needed to run one node."""

    settings: NodeOptions
    cluster: ClusterConnection
    serving: ServerOptions
    config: Config
    log_root: Path
    manifests: Path | None = None
    with_document_labels: bool = False

    @property
    def root(self) -> Path:
        return self.config.root / "nodes" / self.settings.name

    def require_readable(self) -> None:
        """Check the inputs before anything is created."""
        self.cluster.require_readable()
        if self.manifests and self.manifests.exists() and not self.manifests.is_dir():
            raise InvalidInput(
                f"{self.manifests} is not a directory.",
                "Set --manifests to a directory with one file for each static pod.",
            )

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity(self.settings.name, self.cluster.kubeconfig, self.root / "pki")


async def run_node(node: NodeSetup, part: CapacityShare) -> None:
    """Run a node until cancelled. Its pods keep running."""
    node.require_readable()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_runtime(node))
        _make_directory(node.root)
        rest_config = await node.cluster.connect(node.identity)
        server = ApiClient(rest_config)
        stack.push_async_callback(server.close)
        node_config = await _node_config(node, client, rest_config, part)
        cluster = ClusterInformers(server)
        objects = ApiObjectSource(server, node_config.name, cluster)
        volumes = VolumeManager(objects, node_config)
        agent = NodeAgent(
            server,
            client,
            node_config,
            MachineInfo(),
            objects,
            volumes,
            manifests=node.manifests,
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
        await kubelet_server.start(files, node.serving.host, node.serving.port)
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
    if node.settings.runtime:
        async with connect_runtime(node.settings.runtime) as client:
            yield client
    else:
        async with run_runtime(runtime_location(node.settings, node.root, node.config)) as client:
            yield client


async def _node_config(
    node: NodeSetup, client: CriClient, rest_config: RestConfig, part: CapacityShare
) -> NodeConfig:
    settings = node.settings
    handlers = await available_handlers(client)
    if node.with_document_labels:
        labels = {**osversion_labels(settings.build, handlers), **settings.labels}
        settings = replace(settings, labels=labels)
    address = settings.internal_ip or source_address(rest_config.url)
    return settings.node_config(node.root, node.log_root, handlers, part, address)


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
    options = node.serving
    if options.certificate and options.key:
        return TlsFiles(options.certificate, options.key, trusted)
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
    identity, bootstrap = node.identity, node.cluster.bootstrap
    if identity.client.exists():
        await supervise(
            "client", lambda: rotate_client_certificate(identity, server, bootstrap, renewals)
        )


async def _rotate_serving(
    node: NodeSetup, subject: CertificateSubject, server: ApiClient, renewals: RenewalErrors
) -> None:
    if node.serving.is_signed and not node.serving.certificate:
        await supervise(
            "serving", lambda: rotate_serving_certificate(node.identity, subject, server, renewals)
        )


async def _run_all(*parts: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)

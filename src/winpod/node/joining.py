"""Nodes that join a cluster: their credentials, their runtimes, their agents and their own APIs.

Every node may have an identity of its own. Nodes that share one kubeconfig share its connections,
and those that are simulated share a single watch of pods.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightkube.models import core_v1 as v1
from prometheus_client.metrics_core import Metric

from winpod.cri.config import Config
from winpod.cri.rpc import Client
from winpod.node.access import Access, full_url, read_kubeconfig, token_access
from winpod.node.agent import Agent, for_good
from winpod.node.api import ApiServer
from winpod.node.api_source import ApiObjects, ClusterWide, of_node
from winpod.node.certificate_metrics import Renewals, certificate_families
from winpod.node.certificates import Subject, read_validity, utc_now, validity_of
from winpod.node.credentials import (
    Identity,
    bootstrap,
    ensure_serving,
    keep_access,
    keep_client,
    keep_serving,
    needs_bootstrap,
    write_authority,
)
from winpod.node.discovery import discover
from winpod.node.facts import NodeFacts
from winpod.node.following import Following
from winpod.node.node_status import Machine, document_labels
from winpod.node.runtimes import handlers_of, place_of, runtime_at, runtime_of
from winpod.node.server import NodeServer
from winpod.node.server_auth import ApiGate
from winpod.node.server_listening import ServingFiles
from winpod.node.server_metrics import Counted
from winpod.node.server_parts import Parts
from winpod.node.settings import NodeSettings
from winpod.node.splitting import Part
from winpod.node.volumes import Volumes
from winpod.windows.errors import InvalidInput, PermissionDenied, Unavailable

_RETRY_SECONDS = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """How a cluster is reached: as a kubeconfig says, which a bootstrap may have to write."""

    kubeconfig: Path
    bootstrap_kubeconfig: Path | None = None
    server: str = ""
    token: str = ""
    authority: Path | None = None

    def refuse_unreadable(self) -> None:
        """What a bootstrap writes is not there yet."""
        if not self.bootstrap_kubeconfig and not self.token:
            read_kubeconfig(self.kubeconfig)

    async def bootstrap(self) -> Access | None:
        if self.bootstrap_kubeconfig:
            return read_kubeconfig(self.bootstrap_kubeconfig, "--bootstrap-kubeconfig")
        if not self.token:
            return None
        if not self.server:
            raise InvalidInput("--token needs the address of the API server.", "Give --server.")
        if self.authority:
            return _believing(self.authority, self.server, self.token)
        return await discover(self.server, self.token)

    async def access(self, identity: Identity) -> Access:
        """As the kubeconfig says; a bootstrap that it takes is tried until it is answered."""
        while True:
            try:
                joining = await self.bootstrap() if needs_bootstrap(identity) else None
                if joining:
                    await bootstrap(identity, joining)
                return read_kubeconfig(identity.kubeconfig)
            except Unavailable as error:
                _log.warning("the node waits for its cluster: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)


def _believing(authority: Path, server: str, token: str) -> Access:
    try:
        content = authority.read_bytes()
        if not content.strip():
            raise ValueError("it is empty")
        return token_access(full_url(server), token, content)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, FileNotFoundError) else error
        raise InvalidInput(
            f"{authority} has no authority to believe: {why}.",
            "--certificate-authority names a file with certificates in PEM form.",
        ) from None


@dataclass(frozen=True, slots=True)
class Serving:
    """The node's own API: where it listens, and with whose certificate.

    Without files the cluster is asked to sign one, or the node vouches for itself.
    """

    host: str = "0.0.0.0"  # noqa: S104 - the API server is elsewhere
    port: int = 10250
    certificate: Path | None = None
    key: Path | None = None
    is_signed: bool = True


@dataclass(frozen=True, slots=True)
class Joined:
    """Everything of one node that joins."""

    settings: NodeSettings
    cluster: Cluster
    serving: Serving
    config: Config
    log_root: Path
    manifests: Path | None = None
    with_document_labels: bool = False

    @property
    def root(self) -> Path:
        return self.config.root / "nodes" / self.settings.name

    def refuse_unreadable(self) -> None:
        """Before anything is made."""
        self.cluster.refuse_unreadable()
        if self.manifests and self.manifests.exists() and not self.manifests.is_dir():
            raise InvalidInput(
                f"{self.manifests} is no directory.",
                "--manifests names one, with a file for each static pod.",
            )

    @property
    def identity(self) -> Identity:
        return Identity(self.settings.name, self.cluster.kubeconfig, self.root / "pki")


async def run_node(node: Joined, part: Part) -> None:
    """Until it is cancelled. Pods go on then."""
    node.refuse_unreadable()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_runtime(node))
        _make_directory(node.root)
        access = await node.cluster.access(node.identity)
        server = ApiServer(access)
        stack.push_async_callback(server.close)
        facts = await _facts(node, client, access, part)
        cluster = ClusterWide(server)
        objects = ApiObjects(server, facts.name, cluster)
        volumes = Volumes(objects, facts)
        agent = Agent(
            server,
            client,
            facts,
            Machine(),
            objects,
            volumes,
            manifests=node.manifests,
            forget=objects.forget,
            forget_pod=objects.forget_pod,
        )
        gate = ApiGate(server, facts.name)
        subject = _subject(facts)
        files, renewals = _files(node, subject, access), Renewals()
        counted = _certificates_counted(access, files, renewals)
        own = NodeServer(Parts(facts, client, agent.engine, objects), gate, counted)
        await own.start(files, node.serving.host, node.serving.port)
        stack.push_async_callback(own.close)
        agent.registration.listens_at(own.port)
        pods = Following(server, v1.Pod, "/api/v1/pods", agent, of_node(facts.name))
        _log.info("%s, %s, at %s", facts.name, facts.build.describe(), access.url)
        await _together(
            for_good("objects", objects.run),
            for_good("services", cluster.run),
            for_good("pods", pods.run),
            for_good("access", lambda: keep_access(node.identity, access, server)),
            _client_kept(node, server, renewals),
            _serving_kept(node, subject, server, renewals),
            agent.run(),
        )


def _make_directory(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionDenied(
            f"{root} cannot be made: {error.strerror}.", "Use sudo, or choose another --root."
        ) from None


@asynccontextmanager
async def _runtime(node: Joined) -> AsyncIterator[Client]:
    if node.settings.runtime:
        async with runtime_at(node.settings.runtime) as client:
            yield client
    else:
        async with runtime_of(place_of(node.settings, node.root, node.config)) as client:
            yield client


async def _facts(node: Joined, client: Client, access: Access, part: Part) -> NodeFacts:
    settings = node.settings
    handlers = await handlers_of(client)
    if node.with_document_labels:
        labels = {**document_labels(settings.build, handlers), **settings.labels}
        settings = replace(settings, labels=labels)
    address = settings.internal_ip or address_towards(access.url)
    return settings.facts(node.root, node.log_root, handlers, part, address)


def address_towards(url: str) -> str:
    """The address of this machine that the other side sees."""
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as asked:
            asked.connect(found[0][4])
            return str(asked.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"no address of this machine leads to {url}: {error.strerror}.", "Give --node-ip."
        ) from None


def _subject(facts: NodeFacts) -> Subject:
    name = f"system:node:{facts.name}"
    addresses = (facts.internal_ip,) if facts.internal_ip else ()
    return Subject(name, names=(facts.name,), addresses=addresses)


def _files(node: Joined, subject: Subject, access: Access) -> ServingFiles:
    write_authority(node.identity, access)
    trusted = node.identity.authority
    given = node.serving
    if given.certificate and given.key:
        return ServingFiles(given.certificate, given.key, trusted)
    ensure_serving(node.identity, subject)
    return ServingFiles(node.identity.serving, node.identity.serving, trusted)


def _certificates_counted(access: Access, files: ServingFiles, renewals: Renewals) -> Counted:
    """As they are when they are asked for."""

    def count() -> Iterable[Metric]:
        client, serving = validity_of(access.chain), read_validity(files.certificate)
        return certificate_families(client, serving, renewals, utc_now())

    return count


async def _client_kept(node: Joined, server: ApiServer, renewals: Renewals) -> None:
    """A certificate that somebody else gave is theirs to renew."""
    identity, joining = node.identity, node.cluster.bootstrap
    if identity.client.exists():
        await for_good("client", lambda: keep_client(identity, server, joining, renewals))


async def _serving_kept(
    node: Joined, subject: Subject, server: ApiServer, renewals: Renewals
) -> None:
    if node.serving.is_signed and not node.serving.certificate:
        await for_good("serving", lambda: keep_serving(node.identity, subject, server, renewals))


async def _together(*parts: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)

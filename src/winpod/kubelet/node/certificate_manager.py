"""Client and serving certificates of the node: bootstrap, rotation, and expiry metrics.

A node without a client certificate requests one with a bootstrap token; before it expires, the node
renews it with its own identity. Files replaced on disk, by the node or by others, take effect
without a restart. Private keys never leave the node's directory.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from pathlib import Path

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from winpod.clock import utc_now
from winpod.errors import PermissionDenied, WinpodError
from winpod.files import write_atomic
from winpod.k8s.certificates import (
    CertificateSubject,
    PrivateKey,
    Validity,
    node_subject,
    read_validity,
    write_chain,
)
from winpod.k8s.client import ApiClient
from winpod.k8s.csr import CLIENT_SIGNER, SERVING_SIGNER
from winpod.k8s.kubeconfig import RestConfig, write_kubeconfig
from winpod.k8s.models import certificates_v1 as certificates
from winpod.k8s.models.meta_v1 import ObjectMeta

_CLIENT, _SERVING = "kubelet_certificate_manager_client", "kubelet_certificate_manager_server"


@dataclass(slots=True)
class RenewalErrors:
    """Counts failed certificate requests."""

    client_errors: int = 0
    serving_errors: int = 0


def certificate_metric_families(
    client: Validity | None, serving: Validity | None, renewals: RenewalErrors, now: datetime
) -> Iterator[Metric]:
    for name, validity, help_text in (
        (f"{_CLIENT}_ttl_seconds", client, "Seconds until the client certificate expires."),
        (f"{_SERVING}_ttl_seconds", serving, "Seconds until the serving certificate expires."),
    ):
        left = (validity.ends - now).total_seconds() if validity else inf
        yield GaugeMetricFamily(name, f"{help_text} +Inf if there is none.", left)
    for name, errors in (
        (f"{_CLIENT}_expiration_renew_errors", renewals.client_errors),
        ("kubelet_server_expiration_renew_errors", renewals.serving_errors),
    ):
        family = Metric(name, "Number of failed certificate renewals.", "unknown")
        family.add_sample(name, {}, errors)
        yield family


_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_POLL_CSR_SECONDS = 2.0
_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 10.0
_WATCH_SECONDS = 1.0
_APPROVAL_TIMEOUT = 15 * 60.0
_MAX_SLEEP = 3600.0
_log = logging.getLogger(__name__)


class CertificateNotIssued(PermissionDenied):
    """The certificate request was denied, failed, or not approved in time."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Files of a node's identity: its kubeconfig and its certificates."""

    node: str
    kubeconfig: Path
    folder: Path

    @property
    def client(self) -> Path:
        return self.folder / "client.pem"

    @property
    def client_ca(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def serving(self) -> Path:
        return self.folder / "serving.pem"


def needs_bootstrap(identity: NodeIdentity) -> bool:
    """Whether the kubeconfig is missing, or its bootstrapped certificate has expired."""
    is_expired = identity.client.exists() and not _is_valid(identity.client)
    return is_expired or not identity.kubeconfig.exists()


async def bootstrap_client_certificate(identity: NodeIdentity, access: RestConfig) -> None:
    """Request a client certificate with bootstrap credentials, and write a kubeconfig for it."""
    api = ApiClient(access)
    try:
        await _renew_client(identity, api)
    finally:
        await api.close()
    write_kubeconfig(identity.kubeconfig, access.url, access.ca_data, identity.client)


async def watch_kubeconfig(identity: NodeIdentity, access: RestConfig, api: ApiClient) -> None:
    """Reload credentials whenever the kubeconfig or a file it refers to changes."""
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            if access.is_outdated() and access.reload():
                _log.info("Reloaded the kubeconfig of node %s", identity.node)
                api.reconnect()
            write_client_ca(identity, access)
        except WinpodError as error:
            _log.warning("Failed to reload the kubeconfig of node %s: %s", identity.node, error)
            await asyncio.sleep(_RETRY_SECONDS)


def write_client_ca(identity: NodeIdentity, access: RestConfig) -> None:
    """Write the cluster CA for the kubelet API, which verifies its clients with it."""
    file = identity.client_ca
    if not file.exists() or file.read_bytes() != access.ca_data:
        write_atomic(file, access.ca_data)


async def rotate_client_certificate(
    identity: NodeIdentity,
    api: ApiClient,
    bootstrap_config: Callable[[], Awaitable[RestConfig | None]],
    renewals: RenewalErrors,
) -> None:
    """Renew the bootstrapped certificate for as long as this runs.

    If it has expired, after a suspend or a clock change, bootstrap again.
    """

    async def renew() -> None:
        try:
            access = None if _is_valid(identity.client) else await bootstrap_config()
            if access:
                await bootstrap_client_certificate(identity, access)
            else:
                await _renew_client(identity, api)
        except WinpodError:
            renewals.client_errors += 1
            raise

    await _rotate(identity.client, renew)


def ensure_serving_certificate(identity: NodeIdentity, subject: CertificateSubject) -> None:
    """Self-sign a serving certificate unless a valid one exists."""
    if not _is_valid(identity.serving):
        key = PrivateKey.new()
        write_chain(identity.serving, key.self_signed(subject, utc_now()), key)


async def rotate_serving_certificate(
    identity: NodeIdentity, subject: CertificateSubject, api: ApiClient, renewals: RenewalErrors
) -> None:
    """Request a serving certificate from the cluster, and renew it for as long as this runs."""

    async def renew() -> None:
        key = PrivateKey.new()
        try:
            chain = await _request_certificate(
                api, key.request(subject), SERVING_SIGNER, "server auth"
            )
        except WinpodError:
            renewals.serving_errors += 1
            raise
        write_chain(identity.serving, chain, key)

    alternatives = {*subject.names, *subject.addresses}
    await _rotate(identity.serving, renew, lambda v: v.is_signed and v.alternatives == alternatives)


async def _renew_client(identity: NodeIdentity, api: ApiClient) -> None:
    key = PrivateKey.new()
    request = key.request(node_subject(identity.node))
    write_chain(
        identity.client, await _request_certificate(api, request, CLIENT_SIGNER, "client auth"), key
    )


def _is_valid(chain: Path) -> bool:
    validity = read_validity(chain)
    return validity is not None and validity.is_valid(utc_now())


async def _rotate(
    chain: Path,
    renew: Callable[[], Awaitable[None]],
    is_suitable: Callable[[Validity], bool] = lambda _: True,
) -> None:
    """Renew a certificate early, and retry until it succeeds. Sleeps are short as clocks may jump.

    Signers backdate certificates, so a new one with a short lifetime may be due at once.
    """
    while True:
        validity = read_validity(chain)
        is_usable = validity is not None and is_suitable(validity)
        left = validity.renew_at - utc_now() if validity and is_usable else timedelta()
        if left > timedelta():
            await asyncio.sleep(min(left.total_seconds(), _MAX_SLEEP))
            continue
        try:
            await renew()
            _log.info("Rotated certificate %s", chain)
            await asyncio.sleep(_PAUSE_SECONDS)
        except WinpodError as error:
            _log.warning("Failed to rotate certificate %s: %s", chain.name, error)
            await asyncio.sleep(_RETRY_SECONDS)


async def _request_certificate(api: ApiClient, request: bytes, signer: str, usage: str) -> bytes:
    """Create a certificate signing request, and return the certificate once it is issued."""
    csr = certificates.CertificateSigningRequest(
        metadata=ObjectMeta(generateName="csr-"),
        spec=certificates.CertificateSigningRequestSpec(
            request=base64.b64encode(request).decode(),
            signerName=signer,
            usages=["digital signature", usage],
        ),
    )
    created = await api.create(_REQUESTS, csr)
    name = (created.metadata and created.metadata.name) or ""
    try:
        async with asyncio.timeout(_APPROVAL_TIMEOUT):
            while True:
                current = await api.get(
                    certificates.CertificateSigningRequest, f"{_REQUESTS}/{name}"
                )
                status = current.status if current else None
                if status and status.certificate:
                    return base64.b64decode(status.certificate)
                _raise_if_denied(name, status)
                await asyncio.sleep(_POLL_CSR_SECONDS)
    except TimeoutError:
        raise CertificateNotIssued(
            f"The certificate request {name} was not approved in time.",
            f"Run: kubectl certificate approve {name}",
        ) from None


def _raise_if_denied(
    name: str, status: certificates.CertificateSigningRequestStatus | None
) -> None:
    for condition in (status.conditions or ()) if status else ():
        if condition.type in ("Denied", "Failed"):
            raise CertificateNotIssued(
                f"The certificate request {name} was not signed: {condition.message or ''} "
                f"({condition.type}: {condition.reason})."
            )

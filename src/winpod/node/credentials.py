"""Who this node is to the cluster: its client certificate and its serving certificate.

A node that has none asks for them with a bootstrap token and keeps what it was given; before one
ends, it asks again as itself. What is replaced on disk, by the node or by others, is used without a
restart. A private key never leaves the node's directory.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lightkube.models import certificates_v1 as certificates
from lightkube.models.meta_v1 import ObjectMeta

from winpod.node.access import Access, write_kubeconfig
from winpod.node.api import ApiServer
from winpod.node.certificate_metrics import Renewals
from winpod.node.certificates import (
    Key,
    Subject,
    Validity,
    of_node,
    read_validity,
    utc_now,
    write_chain,
    write_whole,
)
from winpod.windows.errors import PermissionDenied, WinpodError

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_ASK_AGAIN = 2.0
_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 15 * 60.0
_LONGEST_SLEEP = 3600.0
_log = logging.getLogger(__name__)


class NotSigned(PermissionDenied):
    """The cluster has denied a certificate, or nobody approved it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's own files: its kubeconfig, and the certificates it was given."""

    node: str
    kubeconfig: Path
    folder: Path

    @property
    def client(self) -> Path:
        return self.folder / "client.pem"

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def serving(self) -> Path:
        return self.folder / "serving.pem"


def needs_bootstrap(identity: Identity) -> bool:
    """Whether there is no kubeconfig yet, or the certificate that was made for it is over."""
    is_over = identity.client.exists() and not _is_good(identity.client)
    return is_over or not identity.kubeconfig.exists()


async def bootstrap(identity: Identity, access: Access) -> None:
    """Ask for a certificate as somebody who may join, and write the kubeconfig that names it."""
    api = ApiServer(access)
    try:
        await _renew_client(identity, api)
    finally:
        await api.close()
    write_kubeconfig(identity.kubeconfig, access.url, access.authority, identity.client)


async def keep_access(identity: Identity, access: Access, api: ApiServer) -> None:
    """As the kubeconfig and the files that it names say, whoever replaces them."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            if access.is_outdated() and access.read_again():
                _log.info("%s goes on with the new credentials of its kubeconfig", identity.node)
                api.reconnect()
            write_authority(identity, access)
        except WinpodError as error:
            _log.warning("%s goes on with the credentials it had: %s", identity.node, error)
            await asyncio.sleep(_RETRY_SECONDS)


def write_authority(identity: Identity, access: Access) -> None:
    """For the node's own API, whose clients it vouches for too."""
    file = identity.authority
    if not file.exists() or file.read_bytes() != access.authority:
        write_whole(file, access.authority)


async def keep_client(
    identity: Identity,
    api: ApiServer,
    joining: Callable[[], Awaitable[Access | None]],
    renewals: Renewals,
) -> None:
    """Renew the certificate that was bootstrapped, for as long as this runs.

    One that is over, after a long sleep or a jump of the clock, is asked for as at the beginning.
    """

    async def renew() -> None:
        try:
            access = None if _is_good(identity.client) else await joining()
            if access:
                await bootstrap(identity, access)
            else:
                await _renew_client(identity, api)
        except WinpodError:
            renewals.client_errors += 1
            raise

    await _keep(identity.client, renew)


def ensure_serving(identity: Identity, subject: Subject) -> None:
    """Something to serve with before anybody signed: the last certificate, else its own word."""
    if not _is_good(identity.serving):
        key = Key.new()
        write_chain(identity.serving, key.self_signed(subject, utc_now()), key)


async def keep_serving(
    identity: Identity, subject: Subject, api: ApiServer, renewals: Renewals
) -> None:
    """A serving certificate that the cluster signs, renewed for as long as this runs."""

    async def renew() -> None:
        key = Key.new()
        try:
            chain = await _signed(api, key.request(subject), SERVING_SIGNER, "server auth")
        except WinpodError:
            renewals.serving_errors += 1
            raise
        write_chain(identity.serving, chain, key)

    wanted = {*subject.names, *subject.addresses}
    await _keep(identity.serving, renew, lambda v: v.is_signed and v.alternatives == wanted)


async def _renew_client(identity: Identity, api: ApiServer) -> None:
    key = Key.new()
    request = key.request(of_node(identity.node))
    write_chain(identity.client, await _signed(api, request, CLIENT_SIGNER, "client auth"), key)


def _is_good(chain: Path) -> bool:
    validity = read_validity(chain)
    return validity is not None and validity.is_good(utc_now())


async def _keep(
    chain: Path,
    renew: Callable[[], Awaitable[None]],
    serves: Callable[[Validity], bool] = lambda _: True,
) -> None:
    """Asks early, and again and again where it is not answered: the clock may jump as well.

    Signers date certificates back, so that one of a short life may look old when it is new.
    """
    while True:
        validity = read_validity(chain)
        is_wanted = validity is not None and serves(validity)
        left = validity.renew_at - utc_now() if validity and is_wanted else timedelta()
        if left > timedelta():
            await asyncio.sleep(min(left.total_seconds(), _LONGEST_SLEEP))
            continue
        try:
            await renew()
            _log.info("%s is a new certificate", chain)
            await asyncio.sleep(_PAUSE_SECONDS)
        except WinpodError as error:
            _log.warning("no new certificate for %s: %s", chain.name, error)
            await asyncio.sleep(_RETRY_SECONDS)


async def _signed(api: ApiServer, request: bytes, signer: str, usage: str) -> bytes:
    """The certificate that the cluster gives for a request, once somebody has approved it."""
    asked = certificates.CertificateSigningRequest(
        metadata=ObjectMeta(generateName="csr-"),
        spec=certificates.CertificateSigningRequestSpec(
            request=base64.b64encode(request).decode(),
            signerName=signer,
            usages=["digital signature", usage],
        ),
    )
    made = await api.create(_REQUESTS, asked)
    name = (made.metadata and made.metadata.name) or ""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                found = await api.get(certificates.CertificateSigningRequest, f"{_REQUESTS}/{name}")
                status = found.status if found else None
                if status and status.certificate:
                    return base64.b64decode(status.certificate)
                _raise_if_denied(name, status)
                await asyncio.sleep(_ASK_AGAIN)
    except TimeoutError:
        raise NotSigned(
            f"nobody approved the certificate request {name}.",
            f"kubectl certificate approve {name}",
        ) from None


def _raise_if_denied(
    name: str, status: certificates.CertificateSigningRequestStatus | None
) -> None:
    for condition in (status.conditions or ()) if status else ():
        if condition.type in ("Denied", "Failed"):
            raise NotSigned(
                f"the certificate request {name} was not signed: {condition.message or ''} "
                f"({condition.type}: {condition.reason})."
            )

"""Approval of kubelet certificates of instances.

A request is approved only if its names, groups, usages and addresses are exactly those of one
instance, and the requester is that instance. All other requests are left to other approvers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from cryptography import x509
from cryptography.x509.oid import NameOID

from winpod.clock import truncate_to_seconds, utc_now
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.csr import CLIENT_SIGNER, SERVING_SIGNER
from winpod.k8s.models import certificates_v1 as certificates
from winpod.labels import BOOTSTRAP_GROUP

NODES, NODE_USER = "system:nodes", "system:node:"
BOOTSTRAP_USER = "system:bootstrap:"
_USAGES = {CLIENT_SIGNER: "client auth", SERVING_SIGNER: "server auth"}
_KEY_USAGES = ({"digital signature"}, {"digital signature", "key encipherment"})


@dataclass(frozen=True, slots=True)
class KnownInstance:
    """Recorded facts of an instance: node name, addresses and tokens.

    `names` and `addresses` are allowed in its serving certificate. None of it is claimed by the
    instance itself.
    """

    instance: str
    node: str
    names: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """A CertificateSigningRequest, with the requester as authenticated by the API server."""

    signer: str
    username: str
    groups: frozenset[str]
    usages: frozenset[str]
    csr_pem: bytes


@dataclass(frozen=True, slots=True)
class CertificateVerdict:
    """`instance` is the subject of the request, empty if it concerns no instance.

    `problem` is why it is not approved, empty if it is.
    """

    instance: str = ""
    problem: str = ""

    @property
    def is_approved(self) -> bool:
        return bool(self.instance) and not self.problem


_NOT_APPLICABLE = CertificateVerdict()


def evaluate_csr(request: CertificateRequest, known: Sequence[KnownInstance]) -> CertificateVerdict:
    if request.signer not in _USAGES:
        return _NOT_APPLICABLE
    try:
        csr = x509.load_pem_x509_csr(request.csr_pem)
    except ValueError:
        return _NOT_APPLICABLE
    common_names = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    subject = str(common_names[0].value) if len(common_names) == 1 else ""
    token = request.username.removeprefix(BOOTSTRAP_USER)
    subjects = [
        candidate
        for candidate in known
        if candidate.node and f"{NODE_USER}{candidate.node}" == subject
    ]
    token_owners = [
        candidate for candidate in known if candidate.node and token in candidate.tokens
    ]
    if not subjects and not token_owners:
        return _NOT_APPLICABLE
    instance = (subjects or token_owners)[0]
    if len(subjects) > 1:
        return CertificateVerdict(
            instance.instance, f"{len(subjects)} instances have the host name of its subject"
        )
    return CertificateVerdict(instance.instance, _problem(request, csr, instance))


def _problem(
    request: CertificateRequest, csr: x509.CertificateSigningRequest, known: KnownInstance
) -> str:
    username = f"{NODE_USER}{known.node}"
    subject = [(attribute.oid, attribute.value) for attribute in csr.subject]
    if sorted(subject, key=str) != sorted(
        [(NameOID.ORGANIZATION_NAME, NODES), (NameOID.COMMON_NAME, username)], key=str
    ):
        actual = csr.subject.rfc4514_string()
        return f"its subject is {actual}, and must be O={NODES},CN={username}"
    if not csr.is_signature_valid:
        return "its signature does not match its key"
    usage = _USAGES[request.signer]
    if request.usages not in [{usage, *extra} for extra in _KEY_USAGES]:
        return f"its usages are {_listed(request.usages)}, and must be {usage}, digital signature"
    return _requester_problem(request, known, username) or _san_problem(request, csr, known)


def _requester_problem(request: CertificateRequest, known: KnownInstance, username: str) -> str:
    if request.username == username and NODES in request.groups:
        return ""
    if request.signer == CLIENT_SIGNER and request.username.startswith(BOOTSTRAP_USER):
        token = request.username.removeprefix(BOOTSTRAP_USER)
        if token in known.tokens and BOOTSTRAP_GROUP in request.groups:
            return ""
    return f"its requester {request.username} is not the instance"


def _san_problem(
    request: CertificateRequest, csr: x509.CertificateSigningRequest, known: KnownInstance
) -> str:
    try:
        values = [extension.value for extension in csr.extensions]
    except (ValueError, x509.DuplicateExtension):
        return "its extensions cannot be read"
    if not values:
        return "" if request.signer == CLIENT_SIGNER else "it has no host name or address"
    san = values[0]
    if len(values) > 1 or not isinstance(san, x509.SubjectAlternativeName):
        return "it has extensions other than the subject alternative name"
    if request.signer == CLIENT_SIGNER:
        return "it has host names or addresses, which a client certificate must not have"
    names = set(san.get_values_for_type(x509.DNSName))
    addresses = {str(value) for value in san.get_values_for_type(x509.IPAddress)}
    if len(names) + len(addresses) != len(list(san)) or not (names or addresses):
        return "its alternative names are not host names and addresses, each once"
    allowed = {str(ip_address(value)) for value in known.addresses}
    allowed_names = {known.node, *known.names}
    if unknown := names - allowed_names:
        return f"it has the name {_listed(unknown)}, the instance is {_listed(allowed_names)}"
    if unknown := addresses - allowed:
        return (
            f"it has the address {_listed(unknown)}, the instance has {_listed(allowed) or 'none'}"
        )
    return ""


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(texts))


REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def to_csr(obj: certificates.CertificateSigningRequest) -> CertificateRequest:
    spec = obj.spec
    try:
        csr_pem = base64.b64decode(spec.request)
    except binascii.Error:
        csr_pem = b""
    return CertificateRequest(
        spec.signerName,
        spec.username or "",
        frozenset(spec.groups or ()),
        frozenset(spec.usages or ()),
        csr_pem,
    )


async def approve_csr(
    api: ApiClient, obj: certificates.CertificateSigningRequest, verdict: CertificateVerdict
) -> None:
    obj.status = obj.status or certificates.CertificateSigningRequestStatus()
    obj.status.conditions = [_approval(verdict)]
    try:
        await api.replace(f"{REQUESTS}/{csr_name(obj)}/approval", obj)
    except ApiError as error:
        if not (error.is_conflict or error.is_not_found):
            raise


def csr_name(obj: certificates.CertificateSigningRequest) -> str:
    return (obj.metadata and obj.metadata.name) or ""


def _approval(verdict: CertificateVerdict) -> certificates.CertificateSigningRequestCondition:
    return certificates.CertificateSigningRequestCondition(
        type="Approved",
        status="True",
        reason="WinpodInstance",
        message=f"The request matches the instance {verdict.instance}.",
        lastUpdateTime=truncate_to_seconds(utc_now()),
    )

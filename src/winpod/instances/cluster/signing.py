"""Whose certificates are signed: those of instances that are being made nodes, and are nodes.

A request is approved only where its names, groups, usages and addresses are exactly those of one
instance, and whoever asks is that instance. A request of somebody else is left to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from cryptography import x509
from cryptography.x509.oid import NameOID

from winpod.node.credentials import CLIENT_SIGNER, SERVING_SIGNER

NODES, NODE_USER = "system:nodes", "system:node:"
BOOTSTRAP_USER, BOOTSTRAP_GROUP = "system:bootstrap:", "system:bootstrappers:winpod"
_USAGES = {CLIENT_SIGNER: "client auth", SERVING_SIGNER: "server auth"}
_KEY_USAGES = ({"digital signature"}, {"digital signature", "key encipherment"})


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an instance: its node's name, where it is, and the tokens it was given.

    The names and addresses are those that its serving certificate may have. None of it is the
    instance's own word.
    """

    instance: str
    node: str
    names: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """A CertificateSigningRequest, as the API server vouches for it; `asks` is its PEM."""

    signer: str
    username: str
    groups: frozenset[str]
    usages: frozenset[str]
    asks: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """`instance` is whom the request is about, nobody where it is not ours to judge.

    `problem` is why it is not approved, and empty where it is.
    """

    instance: str = ""
    problem: str = ""

    @property
    def is_approved(self) -> bool:
        return bool(self.instance) and not self.problem


_NOT_OURS = Verdict()


def judge(request: Request, known: Sequence[Known]) -> Verdict:
    if request.signer not in _USAGES:
        return _NOT_OURS
    try:
        asked = x509.load_pem_x509_csr(request.asks)
    except ValueError:
        return _NOT_OURS
    names = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    subject = str(names[0].value) if len(names) == 1 else ""
    token = request.username.removeprefix(BOOTSTRAP_USER)
    meant = [one for one in known if one.node and f"{NODE_USER}{one.node}" == subject]
    users = [one for one in known if one.node and token in one.tokens]
    if not meant and not users:
        return _NOT_OURS
    instance = (meant or users)[0]
    if len(meant) > 1:
        return Verdict(
            instance.instance, f"{len(meant)} instances have the host name that it is for"
        )
    return Verdict(instance.instance, _problem(request, asked, instance))


def _problem(request: Request, asked: x509.CertificateSigningRequest, known: Known) -> str:
    wanted = f"{NODE_USER}{known.node}"
    subject = [(attribute.oid, attribute.value) for attribute in asked.subject]
    if sorted(subject, key=str) != sorted(
        [(NameOID.ORGANIZATION_NAME, NODES), (NameOID.COMMON_NAME, wanted)], key=str
    ):
        shown = asked.subject.rfc4514_string()
        return f"its subject is {shown}, and must be O={NODES},CN={wanted}"
    if not asked.is_signature_valid:
        return "it is not signed with the key that it is for"
    usage = _USAGES[request.signer]
    if request.usages not in [{usage, *more} for more in _KEY_USAGES]:
        return f"its usages are {_listed(request.usages)}, and must be {usage}, digital signature"
    return _who_asks(request, known, wanted) or _alternatives(request, asked, known)


def _who_asks(request: Request, known: Known, wanted: str) -> str:
    if request.username == wanted and NODES in request.groups:
        return ""
    if request.signer == CLIENT_SIGNER and request.username.startswith(BOOTSTRAP_USER):
        token = request.username.removeprefix(BOOTSTRAP_USER)
        if token in known.tokens and BOOTSTRAP_GROUP in request.groups:
            return ""
    return f"it was asked for by {request.username}, who is not the instance"


def _alternatives(request: Request, asked: x509.CertificateSigningRequest, known: Known) -> str:
    try:
        values = [extension.value for extension in asked.extensions]
    except (ValueError, x509.DuplicateExtension):
        return "its extensions cannot be read"
    if not values:
        return "" if request.signer == CLIENT_SIGNER else "it names neither host nor address"
    found = values[0]
    if len(values) > 1 or not isinstance(found, x509.SubjectAlternativeName):
        return "it asks for more than names and addresses"
    if request.signer == CLIENT_SIGNER:
        return "it names hosts or addresses, which a client's certificate must not"
    names = set(found.get_values_for_type(x509.DNSName))
    addresses = {str(one) for one in found.get_values_for_type(x509.IPAddress)}
    if len(names) + len(addresses) != len(list(found)) or not (names or addresses):
        return "what it names is not hosts and addresses, each once"
    allowed = {str(ip_address(one)) for one in known.addresses}
    own = {known.node, *known.names}
    if strange := names - own:
        return f"it names {_listed(strange)}, and the instance is {_listed(own)}"
    if strange := addresses - allowed:
        return f"it names {_listed(strange)}, and the instance is at {_listed(allowed) or 'none'}"
    return ""


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(texts))

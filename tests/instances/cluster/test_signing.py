"""Certificates are approved for exactly the instances that were configured, and for nobody else."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from winpod.instances.cluster.signing import BOOTSTRAP_GROUP, Known, Request, judge
from winpod.node.certificates import Key, Subject
from winpod.node.credentials import CLIENT_SIGNER, SERVING_SIGNER

NODE = "system:node:win-a"
KNOWN = (
    Known(
        "10.0.0.5", "win-a", frozenset(["a.example"]), frozenset(["10.0.0.5"]), frozenset(["tok"])
    ),
    Known("10.0.0.6", "win-ab", addresses=frozenset(["10.0.0.6"])),
)
CLIENT = Request(
    CLIENT_SIGNER,
    "system:bootstrap:tok",
    frozenset(["system:bootstrappers", BOOTSTRAP_GROUP, "system:authenticated"]),
    frozenset(["client auth", "digital signature"]),
    b"",
)
RENEWAL = replace(CLIENT, username=NODE, groups=frozenset(["system:nodes"]))
SERVING = replace(
    RENEWAL, signer=SERVING_SIGNER, usages=frozenset(["server auth", "digital signature"])
)
ADDRESSED = Subject(NODE, names=("win-a", "a.example"), addresses=("10.0.0.5",))


def asking(request: Request, subject: Subject) -> Request:
    return replace(request, asks=Key.new().request(subject))


def test_a_new_instance_a_renewal_and_a_serving_certificate_are_approved() -> None:
    for request, subject in (
        (CLIENT, Subject(NODE)),
        (RENEWAL, Subject(NODE)),
        (replace(CLIENT, usages=CLIENT.usages | {"key encipherment"}), Subject(NODE)),
        (SERVING, ADDRESSED),
        (SERVING, Subject(NODE, names=("win-a",))),
        (SERVING, Subject(NODE, addresses=("10.0.0.5",))),
    ):
        verdict = judge(asking(request, subject), KNOWN)
        assert verdict.is_approved, verdict
        assert verdict.instance == "10.0.0.5"


REFUSED = {
    "of another's name": (CLIENT, Subject("system:node:win-ab")),
    "of a name that nobody has": (CLIENT, Subject("system:node:win")),
    "of an administrator": (CLIENT, Subject("admin", group="system:masters")),
    "of another group": (CLIENT, Subject(NODE, group="system:masters")),
    "with another's token": (replace(CLIENT, username="system:bootstrap:other"), Subject(NODE)),
    "with a token of another group": (
        replace(CLIENT, groups=frozenset(["system:bootstrappers:kubeadm"])),
        Subject(NODE),
    ),
    "by an administrator": (replace(CLIENT, username="admin"), Subject(NODE)),
    "by another node": (replace(RENEWAL, username="system:node:win-ab"), Subject(NODE)),
    "by a name that no node has": (
        replace(RENEWAL, groups=frozenset(["system:authenticated"])),
        Subject(NODE),
    ),
    "of a client that names hosts": (CLIENT, Subject(NODE, names=("win-a",))),
    "of a client that serves": (replace(CLIENT, usages=SERVING.usages), Subject(NODE)),
    "that signs": (replace(CLIENT, usages=CLIENT.usages | {"cert sign"}), Subject(NODE)),
    "without a signature's usage": (
        replace(CLIENT, usages=frozenset(["client auth"])),
        Subject(NODE),
    ),
    "to serve with a token": (
        replace(CLIENT, signer=SERVING_SIGNER, usages=SERVING.usages),
        ADDRESSED,
    ),
    "to serve without names": (SERVING, Subject(NODE)),
    "to serve at another's address": (SERVING, Subject(NODE, addresses=("10.0.0.6",))),
    "to serve at its address and another": (
        SERVING,
        Subject(NODE, addresses=("10.0.0.5", "10.96.0.1")),
    ),
    "to serve as somebody else": (SERVING, Subject(NODE, names=("kubernetes.default",))),
    "to serve as a name like its own": (SERVING, Subject(NODE, names=("win-a.evil",))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_is_not_exactly_an_instance_s_own_is_not_approved(case: str) -> None:
    verdict = judge(asking(*REFUSED[case]), KNOWN)
    assert not verdict.is_approved


def test_a_request_about_somebody_else_s_node_is_left_alone_without_a_word() -> None:
    strange = replace(CLIENT, username="system:bootstrap:abc123")
    verdict = judge(asking(strange, Subject("system:node:linux-1")), KNOWN)
    assert not verdict.instance
    assert not verdict.problem
    assert not judge(replace(CLIENT, signer="example.com/other"), KNOWN).instance
    assert not judge(replace(CLIENT, asks=b"nonsense"), KNOWN).instance


def test_a_request_that_claims_to_be_an_instance_s_and_is_not_is_told_with_what_is_wrong() -> None:
    verdict = judge(asking(SERVING, Subject(NODE, addresses=("10.0.0.6",))), KNOWN)
    assert verdict.instance == "10.0.0.5"
    assert verdict.problem == "it names 10.0.0.6, and the instance is at 10.0.0.5"
    stolen = judge(asking(CLIENT, Subject("system:node:master")), KNOWN)
    assert stolen.instance == "10.0.0.5"
    assert "O=system:nodes" in stolen.problem


def signed(
    *attributes: tuple[x509.ObjectIdentifier, str], more: x509.ExtensionType | None
) -> bytes:
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    if more:
        builder = builder.add_extension(more, critical=False)
    made = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


OWN = ((NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, NODE))


@pytest.mark.parametrize(
    "asks",
    [
        signed(*OWN, (NameOID.ORGANIZATION_NAME, "system:masters"), more=None),
        signed(*OWN, (NameOID.COMMON_NAME, "system:node:master"), more=None),
        signed(*OWN, (NameOID.ORGANIZATIONAL_UNIT_NAME, "x"), more=None),
        signed(OWN[1], more=None),
        signed(*OWN, more=x509.BasicConstraints(ca=True, path_length=None)),
        signed(*OWN, more=x509.SubjectAlternativeName([x509.RFC822Name("a@b.example")])),
    ],
)
def test_more_in_a_request_than_a_kubelet_asks_for_is_not_approved(asks: bytes) -> None:
    assert not judge(replace(CLIENT, asks=asks), KNOWN).is_approved


def test_a_serving_certificate_for_anything_but_hosts_and_addresses_is_not_approved() -> None:
    for strange in (
        x509.UniformResourceIdentifier("https://win-a"),
        x509.RFC822Name("win-a@a.example"),
    ):
        names = [x509.DNSName("win-a"), x509.IPAddress(ip_address("10.0.0.5")), strange]
        asks = signed(*OWN, more=x509.SubjectAlternativeName(names))
        assert not judge(replace(SERVING, asks=asks), KNOWN).is_approved

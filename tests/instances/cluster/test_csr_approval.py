"""Certificates are approved for exactly the configured instances."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from winpod.instances.cluster.csr_approval import CertificateRequest, KnownInstance, evaluate_csr
from winpod.k8s.certificates import CertificateSubject, PrivateKey
from winpod.k8s.csr import CLIENT_SIGNER, SERVING_SIGNER
from winpod.labels import BOOTSTRAP_GROUP

NODE = "system:node:win-a"
KNOWN = (
    KnownInstance(
        "10.0.0.5", "win-a", frozenset(["a.example"]), frozenset(["10.0.0.5"]), frozenset(["tok"])
    ),
    KnownInstance("10.0.0.6", "win-ab", addresses=frozenset(["10.0.0.6"])),
)
CLIENT = CertificateRequest(
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
ADDRESSED = CertificateSubject(NODE, names=("win-a", "a.example"), addresses=("10.0.0.5",))


def with_subject(request: CertificateRequest, subject: CertificateSubject) -> CertificateRequest:
    return replace(request, csr_pem=PrivateKey.new().request(subject))


def test_bootstrap_renewal_and_serving_certificates_are_approved() -> None:
    for request, subject in (
        (CLIENT, CertificateSubject(NODE)),
        (RENEWAL, CertificateSubject(NODE)),
        (replace(CLIENT, usages=CLIENT.usages | {"key encipherment"}), CertificateSubject(NODE)),
        (SERVING, ADDRESSED),
        (SERVING, CertificateSubject(NODE, names=("win-a",))),
        (SERVING, CertificateSubject(NODE, addresses=("10.0.0.5",))),
    ):
        verdict = evaluate_csr(with_subject(request, subject), KNOWN)
        assert verdict.is_approved, verdict
        assert verdict.instance == "10.0.0.5"


REFUSED = {
    "of another's name": (CLIENT, CertificateSubject("system:node:win-ab")),
    "for an unknown node": (CLIENT, CertificateSubject("system:node:win")),
    "of an administrator": (CLIENT, CertificateSubject("admin", group="system:masters")),
    "of another group": (CLIENT, CertificateSubject(NODE, group="system:masters")),
    "with another's token": (
        replace(CLIENT, username="system:bootstrap:other"),
        CertificateSubject(NODE),
    ),
    "with a token of another group": (
        replace(CLIENT, groups=frozenset(["system:bootstrappers:kubeadm"])),
        CertificateSubject(NODE),
    ),
    "by an administrator": (replace(CLIENT, username="admin"), CertificateSubject(NODE)),
    "by another node": (replace(RENEWAL, username="system:node:win-ab"), CertificateSubject(NODE)),
    "by a name that no node has": (
        replace(RENEWAL, groups=frozenset(["system:authenticated"])),
        CertificateSubject(NODE),
    ),
    "of a client that names hosts": (CLIENT, CertificateSubject(NODE, names=("win-a",))),
    "of a client that serves": (replace(CLIENT, usages=SERVING.usages), CertificateSubject(NODE)),
    "that signs": (replace(CLIENT, usages=CLIENT.usages | {"cert sign"}), CertificateSubject(NODE)),
    "without a signature's usage": (
        replace(CLIENT, usages=frozenset(["client auth"])),
        CertificateSubject(NODE),
    ),
    "to serve with a token": (
        replace(CLIENT, signer=SERVING_SIGNER, usages=SERVING.usages),
        ADDRESSED,
    ),
    "to serve without names": (SERVING, CertificateSubject(NODE)),
    "to serve at another's address": (SERVING, CertificateSubject(NODE, addresses=("10.0.0.6",))),
    "to serve at its address and another": (
        SERVING,
        CertificateSubject(NODE, addresses=("10.0.0.5", "10.96.0.1")),
    ),
    "serving certificate with a foreign name": (
        SERVING,
        CertificateSubject(NODE, names=("kubernetes.default",)),
    ),
    "to serve as a name like its own": (SERVING, CertificateSubject(NODE, names=("win-a.evil",))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_request_that_does_not_match_exactly_is_not_approved(case: str) -> None:
    verdict = evaluate_csr(with_subject(*REFUSED[case]), KNOWN)
    assert not verdict.is_approved


def test_request_for_a_foreign_node_is_ignored() -> None:
    foreign = replace(CLIENT, username="system:bootstrap:abc123")
    verdict = evaluate_csr(with_subject(foreign, CertificateSubject("system:node:linux-1")), KNOWN)
    assert not verdict.instance
    assert not verdict.problem
    assert not evaluate_csr(replace(CLIENT, signer="example.com/other"), KNOWN).instance
    assert not evaluate_csr(replace(CLIENT, csr_pem=b"nonsense"), KNOWN).instance


def test_false_claim_is_reported_with_the_problem() -> None:
    verdict = evaluate_csr(
        with_subject(SERVING, CertificateSubject(NODE, addresses=("10.0.0.6",))), KNOWN
    )
    assert verdict.instance == "10.0.0.5"
    assert verdict.problem == "it has the address 10.0.0.6, the instance has 10.0.0.5"
    stolen = evaluate_csr(with_subject(CLIENT, CertificateSubject("system:node:master")), KNOWN)
    assert stolen.instance == "10.0.0.5"
    assert "O=system:nodes" in stolen.problem


def signed(
    *attributes: tuple[x509.ObjectIdentifier, str], extension: x509.ExtensionType | None
) -> bytes:
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    if extension:
        builder = builder.add_extension(extension, critical=False)
    made = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


OWN = ((NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, NODE))


@pytest.mark.parametrize(
    "csr_pem",
    [
        signed(*OWN, (NameOID.ORGANIZATION_NAME, "system:masters"), extension=None),
        signed(*OWN, (NameOID.COMMON_NAME, "system:node:master"), extension=None),
        signed(*OWN, (NameOID.ORGANIZATIONAL_UNIT_NAME, "x"), extension=None),
        signed(OWN[1], extension=None),
        signed(*OWN, extension=x509.BasicConstraints(ca=True, path_length=None)),
        signed(*OWN, extension=x509.SubjectAlternativeName([x509.RFC822Name("a@b.example")])),
    ],
)
def test_additional_subject_or_extensions_are_not_approved(csr_pem: bytes) -> None:
    assert not evaluate_csr(replace(CLIENT, csr_pem=csr_pem), KNOWN).is_approved


def test_serving_certificate_with_other_alternative_names_is_not_approved() -> None:
    for foreign in (
        x509.UniformResourceIdentifier("https://win-a"),
        x509.RFC822Name("win-a@a.example"),
    ):
        names = [x509.DNSName("win-a"), x509.IPAddress(ip_address("10.0.0.5")), foreign]
        csr_pem = signed(*OWN, extension=x509.SubjectAlternativeName(names))
        assert not evaluate_csr(replace(SERVING, csr_pem=csr_pem), KNOWN).is_approved

"""Private keys, certificate signing requests, and the validity of certificates in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winpod.files import write_atomic

_SELF_SIGNED_DAYS = 365
_RENEW_FRACTION = 0.8


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """Subject of a certificate; names and addresses are for serving certificates."""

    name: str
    group: str = "system:nodes"
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def distinguished_name(self) -> x509.Name:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.group),
                x509.NameAttribute(NameOID.COMMON_NAME, self.name),
            ]
        )

    def alternative_names(self) -> list[x509.GeneralName]:
        return [
            *(x509.DNSName(name) for name in self.names),
            *(x509.IPAddress(ip_address(address)) for address in self.addresses),
        ]


def node_subject(name: str) -> CertificateSubject:
    return CertificateSubject(f"system:node:{name}")


@dataclass(frozen=True, slots=True)
class PrivateKey:
    private: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> PrivateKey:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    def pem(self) -> bytes:
        return self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def request(self, subject: CertificateSubject) -> bytes:
        """Return a certificate signing request in PEM format."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject.distinguished_name())
        if alternatives := subject.alternative_names():
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        signed = builder.sign(self.private, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def self_signed(self, subject: CertificateSubject, now: datetime) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject.distinguished_name())
            .issuer_name(subject.distinguished_name())
            .public_key(self.private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=_SELF_SIGNED_DAYS))
            .add_extension(x509.SubjectAlternativeName(subject.alternative_names()), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        signed = builder.sign(self.private, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Validity:
    """Validity period of a certificate, its alternative names, and whether it is CA-signed."""

    begins: datetime
    ends: datetime
    alternatives: frozenset[str] = frozenset()
    is_signed: bool = True

    @property
    def renew_at(self) -> datetime:
        return self.begins + (self.ends - self.begins) * _RENEW_FRACTION

    def is_valid(self, now: datetime) -> bool:
        return now < self.ends


def read_validity(chain: Path) -> Validity | None:
    """Return the validity of the certificate in a file, or None."""
    try:
        return validity_of(chain.read_bytes())
    except OSError:
        return None


def validity_of(chain: bytes) -> Validity | None:
    """Return the validity of the first certificate of a chain, or None."""
    try:
        certificate = x509.load_pem_x509_certificate(chain)
    except ValueError:
        return None
    return Validity(
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        frozenset(_alternatives(certificate)),
        certificate.issuer != certificate.subject,
    )


def write_chain(file: Path, chain: bytes, key: PrivateKey) -> None:
    """Write chain and key to one file."""
    write_atomic(file, chain.rstrip() + b"\n" + key.pem())


def _alternatives(certificate: x509.Certificate) -> Iterable[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from names.get_values_for_type(x509.DNSName)
    yield from (str(address) for address in names.get_values_for_type(x509.IPAddress))

"""Keys, requests for certificates, and how long a certificate is good for. No I/O but files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_OWN_DAYS = 365
_RENEW_AT = 0.8


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is about; names and addresses are for servers."""

    name: str
    group: str = "system:nodes"
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def distinguished(self) -> x509.Name:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.group),
                x509.NameAttribute(NameOID.COMMON_NAME, self.name),
            ]
        )

    def alternatives(self) -> list[x509.GeneralName]:
        return [
            *(x509.DNSName(name) for name in self.names),
            *(x509.IPAddress(ip_address(address)) for address in self.addresses),
        ]


def of_node(name: str) -> Subject:
    return Subject(f"system:node:{name}")


@dataclass(frozen=True, slots=True)
class Key:
    private: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> Key:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    def pem(self) -> bytes:
        return self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def request(self, subject: Subject) -> bytes:
        """What a signer is asked to sign."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject.distinguished())
        if alternatives := subject.alternatives():
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        signed = builder.sign(self.private, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def self_signed(self, subject: Subject, now: datetime) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject.distinguished())
            .issuer_name(subject.distinguished())
            .public_key(self.private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=_OWN_DAYS))
            .add_extension(x509.SubjectAlternativeName(subject.alternatives()), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        signed = builder.sign(self.private, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Validity:
    """Of a certificate in a file, which somebody else signed or nobody; it is renewed in time."""

    begins: datetime
    ends: datetime
    alternatives: frozenset[str] = frozenset()
    is_signed: bool = True

    @property
    def renew_at(self) -> datetime:
        return self.begins + (self.ends - self.begins) * _RENEW_AT

    def is_good(self, now: datetime) -> bool:
        return now < self.ends


def read_validity(chain: Path) -> Validity | None:
    """None where there is no certificate in the file."""
    try:
        return validity_of(chain.read_bytes())
    except OSError:
        return None


def validity_of(chain: bytes) -> Validity | None:
    """Of the first certificate in it, if there is one."""
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


def write_chain(file: Path, chain: bytes, key: Key) -> None:
    """Both in one file."""
    write_whole(file, chain.rstrip() + b"\n" + key.pem())


def write_whole(file: Path, content: bytes) -> None:
    """The file appears whole, and only its owner reads it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    new.replace(file)


def _alternatives(certificate: x509.Certificate) -> Iterable[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from found.get_values_for_type(x509.DNSName)
    yield from (str(address) for address in found.get_values_for_type(x509.IPAddress))


def utc_now() -> datetime:
    return datetime.now(UTC)

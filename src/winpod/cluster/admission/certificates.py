"""The webhook's certificates: an authority of its own, and what it signs. Pure.

The authority is new well before it ends, and the one before it stays trusted until its end, so that
whoever still serves with a certificate of the old one is believed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winpod.node.certificates import Key

_AUTHORITY_DAYS, _SERVING_DAYS = 3650, 365
_RENEW_AT = 0.8


@dataclass(frozen=True, slots=True)
class Certificates:
    """All in PEM form. `bundle` are the authorities to trust, the newest first."""

    bundle: bytes
    authority_key: bytes
    chain: bytes
    key: bytes


def are_good(found: Certificates, names: Collection[str], now: datetime) -> bool:
    """Whether they serve for these names, and for a while."""
    authority = _good_authority(found, now)
    if authority is None:
        return False
    try:
        serving = x509.load_pem_x509_certificate(found.chain)
        key = serialization.load_pem_private_key(found.key, None)
        serving.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    is_pair = key.public_key() == serving.public_key()
    return is_pair and not _ends_soon(serving, now) and set(names) <= _names_of(serving)


def renew(found: Certificates | None, names: Collection[str], now: datetime) -> Certificates:
    """New ones to serve with, by the authority there is while it lasts, else by a new one."""
    authority = _good_authority(found, now) if found else None
    if found is None or authority is None:
        key = Key.new()
        authority = _new_authority(key, now)
        bundle = b"".join(map(_pem, (authority, *_still_good(found, now))))
    else:
        key, bundle = Key(_load_key(found.authority_key)), found.bundle
    serving = Key.new()
    chain = _pem(_sign(serving, names, key, authority, now))
    return Certificates(bundle, key.pem(), chain, serving.pem())


def _good_authority(found: Certificates, now: datetime) -> x509.Certificate | None:
    try:
        newest = x509.load_pem_x509_certificates(found.bundle)[0]
        key = _load_key(found.authority_key)
    except (ValueError, TypeError, IndexError):
        return None
    is_pair = key.public_key() == newest.public_key()
    return newest if is_pair and not _ends_soon(newest, now) else None


def _still_good(found: Certificates | None, now: datetime) -> Iterable[x509.Certificate]:
    try:
        known = x509.load_pem_x509_certificates(found.bundle) if found else []
    except ValueError:
        return ()
    return [one for one in known if one.not_valid_after_utc > now]


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("not a key that this authority makes")
    return key


def _ends_soon(certificate: x509.Certificate, now: datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begins + (ends - begins) * _RENEW_AT


def _new_authority(key: Key, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"winpod webhook {now:%Y-%m-%d}")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(key, name, name, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key.private, hashes.SHA256())
    )


def _sign(
    key: Key, names: Collection[str], by: Key, authority: x509.Certificate, now: datetime
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "winpod webhook")])
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    return (
        _builder(key, subject, authority.subject, now, _SERVING_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(by.private, hashes.SHA256())
    )


def _builder(
    key: Key, subject: x509.Name, issuer: x509.Name, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = (str(address) for address in found.get_values_for_type(x509.IPAddress))
    return {*found.get_values_for_type(x509.DNSName), *addresses}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

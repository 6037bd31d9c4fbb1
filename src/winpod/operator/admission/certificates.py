"""The webhook's CA and serving certificate, in a Secret shared by all replicas.

The CA is renewed well before it expires, and the previous one stays in the bundle until it expires,
so that replicas still serving with its certificate are trusted. The replica that finds certificates
missing or about to expire writes new ones; on a conflict it uses what another replica wrote.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winpod.clock import utc_now
from winpod.errors import Unavailable
from winpod.k8s.certificates import PrivateKey
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.k8s.objects import SlimStruct
from winpod.labels import MANAGED_BY_LABEL, MANAGED_BY_VALUE, WEBHOOK_CONFIGURATION, WEBHOOK_SECRET

_CA_DAYS, _SERVING_DAYS = 3650, 365
_RENEW_AT = 0.8


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificates and keys in PEM. `bundle` has the trusted CAs, the newest first."""

    bundle: bytes
    authority_key: bytes
    chain: bytes
    key: bytes


def are_valid(current: Certificates, names: Collection[str], now: datetime) -> bool:
    """Whether the certificates match these names and do not expire soon."""
    ca = _valid_ca(current, now)
    if ca is None:
        return False
    try:
        serving = x509.load_pem_x509_certificate(current.chain)
        key = serialization.load_pem_private_key(current.key, None)
        serving.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    is_pair = key.public_key() == serving.public_key()
    return is_pair and not _expires_soon(serving, now) and set(names) <= _names_of(serving)


def renew_certificates(
    current: Certificates | None, names: Collection[str], now: datetime
) -> Certificates:
    """Issue a new serving certificate, with the current CA if still valid, else a new one."""
    ca = _valid_ca(current, now) if current else None
    if current is None or ca is None:
        key = PrivateKey.new()
        ca = _new_ca(key, now)
        bundle = b"".join(map(_pem, (ca, *_unexpired_cas(current, now))))
    else:
        key, bundle = PrivateKey(_load_key(current.authority_key)), current.bundle
    serving = PrivateKey.new()
    chain = _pem(_sign(serving, names, key, ca, now))
    return Certificates(bundle, key.pem(), chain, serving.pem())


def _valid_ca(current: Certificates, now: datetime) -> x509.Certificate | None:
    try:
        newest = x509.load_pem_x509_certificates(current.bundle)[0]
        key = _load_key(current.authority_key)
    except (ValueError, TypeError, IndexError):
        return None
    is_pair = key.public_key() == newest.public_key()
    return newest if is_pair and not _expires_soon(newest, now) else None


def _unexpired_cas(current: Certificates | None, now: datetime) -> Iterable[x509.Certificate]:
    try:
        bundle = x509.load_pem_x509_certificates(current.bundle) if current else []
    except ValueError:
        return ()
    return [certificate for certificate in bundle if certificate.not_valid_after_utc > now]


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("not an elliptic curve key")
    return key


def _expires_soon(certificate: x509.Certificate, now: datetime) -> bool:
    not_before, not_after = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= not_before + (not_after - not_before) * _RENEW_AT


def _new_ca(key: PrivateKey, now: datetime) -> x509.Certificate:
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
        _builder(key, name, name, now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key.private, hashes.SHA256())
    )


def _sign(
    key: PrivateKey,
    names: Collection[str],
    ca_key: PrivateKey,
    ca: x509.Certificate,
    now: datetime,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "winpod webhook")])
    names_extension = x509.SubjectAlternativeName([_general_name(name) for name in names])
    return (
        _builder(key, subject, ca.subject, now, _SERVING_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names_extension, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key.private, hashes.SHA256())
    )


def _builder(
    key: PrivateKey, subject: x509.Name, issuer: x509.Name, now: datetime, days: int
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


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        current = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = (str(address) for address in current.get_values_for_type(x509.IPAddress))
    return {*current.get_values_for_type(x509.DNSName), *addresses}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
_MAX_ATTEMPTS = 5
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"


class _ClientConfig(SlimStruct):
    ca_bundle: str = ""


class _Webhook(SlimStruct):
    name: str
    client_config: _ClientConfig


class _Configuration(SlimStruct):
    webhooks: list[_Webhook] | None = None


async def shared_certificates(
    api: ApiClient, namespace: str, names: Collection[str]
) -> Certificates:
    """Return the certificates in the Secret, renewed first if necessary."""
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    for _ in range(_MAX_ATTEMPTS):
        secret = await api.get(v1.Secret, f"{secrets}/{WEBHOOK_SECRET}")
        current = _decode(secret)
        if current and are_valid(current, names, utc_now()):
            return current
        try:
            renewed = renew_certificates(current, names, utc_now())
            if secret is None:
                await api.create(secrets, _secret(renewed, namespace))
            else:
                secret.data = _encode(renewed)
                await api.replace(f"{secrets}/{WEBHOOK_SECRET}", secret)
        except ApiError as error:
            if not error.is_conflict:
                raise
        else:
            return renewed
    raise Unavailable(f"failed to update Secret {WEBHOOK_SECRET}: too many conflicts.")


async def inject_ca_bundle(api: ApiClient, bundle: bytes) -> bool:
    """Set the CA bundle in both webhook configurations; return whether both exist."""
    text = base64.b64encode(bundle).decode()
    for kind in ("mutating", "validating"):
        path = f"{_CONFIGURATIONS}/{kind}webhookconfigurations/{WEBHOOK_CONFIGURATION}"
        current = await api.get(_Configuration, path)
        if current is None:
            return False
        outdated = [
            certificate.name
            for certificate in current.webhooks or ()
            if certificate.client_config.ca_bundle != text
        ]
        if outdated:
            patches = [{"name": name, "clientConfig": {"caBundle": text}} for name in outdated]
            await api.patch(_Configuration, path, {"webhooks": patches})
    return True


def _secret(renewed: Certificates, namespace: str) -> v1.Secret:
    return v1.Secret(
        metadata=ObjectMeta(
            name=WEBHOOK_SECRET, namespace=namespace, labels={MANAGED_BY_LABEL: MANAGED_BY_VALUE}
        ),
        type="kubernetes.io/tls",
        data=_encode(renewed),
    )


def _encode(renewed: Certificates) -> dict[str, str]:
    values = (renewed.bundle, renewed.authority_key, renewed.chain, renewed.key)
    return {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, values, strict=True)}


def _decode(secret: v1.Secret | None) -> Certificates | None:
    data = (secret.data or {}) if secret else {}
    try:
        return Certificates(*(base64.b64decode(data[key], validate=True) for key in _KEYS))
    except (KeyError, ValueError):
        return None

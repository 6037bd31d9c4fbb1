"""Client certificates of API servers and of unknown authorities."""

from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winpod.clock import utc_now
from winpod.k8s.certificates import PrivateKey
from winpod.operator.admission.certificates import Certificates, renew_certificates

API_SERVERS, STRANGERS = (renew_certificates(None, ("x",), utc_now()) for _ in range(2))


def client_certificate(authority: Certificates) -> bytes:
    """Issue a client certificate with its key, like that of an API server."""
    by = serialization.load_pem_private_key(authority.authority_key, None)
    assert isinstance(by, ec.EllipticCurvePrivateKey)
    key = PrivateKey.new()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api server")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.load_pem_x509_certificate(authority.bundle).subject)
        .public_key(key.private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(utc_now() - timedelta(hours=1))
        .not_valid_after(utc_now() + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(by, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.pem()

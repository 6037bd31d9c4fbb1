"""Who is answered at the webhook's port, by real handshakes on loopback."""

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winpod.cluster.admission.certificates import Certificates, renew
from winpod.cluster.admission.server import serving_context
from winpod.node.certificates import Key, utc_now
from winpod.windows.errors import InvalidInput

SERVING = renew(None, ("localhost",), utc_now())
API_SERVERS, STRANGERS = (renew(None, ("x",), utc_now()) for _ in range(2))


def client_certificate(authority: Certificates) -> bytes:
    """With its key, as an API server has it to show."""
    by = serialization.load_pem_private_key(authority.authority_key, None)
    assert isinstance(by, ec.EllipticCurvePrivateKey)
    key = Key.new()
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


async def is_answered(folder: Path, authority: Path | None, shown: bytes = b"") -> bool:
    serving = serving_context(authority)
    (folder / "serving.pem").write_bytes(SERVING.chain + SERVING.key)
    serving.load_cert_chain(folder / "serving.pem")
    asking = ssl.create_default_context(cadata=SERVING.bundle.decode())
    if shown:
        (folder / "client.pem").write_bytes(shown)
        asking.load_cert_chain(folder / "client.pem")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"answer")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=asking, server_hostname="localhost"
            )
            heard = await reader.read()
            writer.close()
        except (ssl.SSLError, ConnectionError):
            return False
        return heard == b"answer"


async def test_everybody_is_answered_where_no_authority_is_given(tmp_path: Path) -> None:
    assert await is_answered(tmp_path, None)


async def test_only_who_has_a_certificate_of_the_authority_is_answered(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(API_SERVERS.bundle)
    assert await is_answered(tmp_path, authority, client_certificate(API_SERVERS))
    assert not await is_answered(tmp_path, authority)
    assert not await is_answered(tmp_path, authority, client_certificate(STRANGERS))
    a_server_s = API_SERVERS.chain + API_SERVERS.key
    assert not await is_answered(tmp_path, authority, a_server_s)


def test_an_authority_that_cannot_be_read_is_never_left_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        serving_context(tmp_path / "nowhere")
    for content in ("", "nonsense"):
        (tmp_path / "ca.crt").write_text(content)
        with pytest.raises(InvalidInput, match="cannot be read as the authority"):
            serving_context(tmp_path / "ca.crt")

"""Node certificates, kubeconfigs, and cluster discovery with a token."""

import asyncio
import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

import pytest
from cryptography import x509

from winpod.errors import Unavailable
from winpod.k8s.certificates import (
    CertificateSubject,
    PrivateKey,
    Validity,
    node_subject,
    read_validity,
    validity_of,
    write_chain,
)
from winpod.k8s.discovery import is_signed
from winpod.k8s.kubeconfig import read_kubeconfig, write_kubeconfig
from winpod.kubelet.node.certificate_manager import (
    NodeIdentity,
    RenewalErrors,
    certificate_metric_families,
    ensure_serving_certificate,
    needs_bootstrap,
)
from winpod.kubelet.node.node_options import ConnectionOptions
from winpod.kubelet.node.node_setup import connect_cluster

NOW = datetime.now(UTC)
SERVER = CertificateSubject("system:node:win-1", names=("win-1",), addresses=("10.0.0.9",))


def test_client_request_has_node_name_and_group() -> None:
    request = x509.load_pem_x509_csr(PrivateKey.new().request(node_subject("win-1")))
    assert request.subject.rfc4514_string() == "CN=system:node:win-1,O=system:nodes"
    assert request.is_signature_valid
    assert len(list(request.extensions)) == 0


def test_serving_request_has_node_addresses() -> None:
    request = x509.load_pem_x509_csr(PrivateKey.new().request(SERVER))
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["win-1"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.9"]


def test_certificate_is_renewed_before_expiry() -> None:
    validity = Validity(NOW, NOW + timedelta(days=10))
    assert validity.renew_at == NOW + timedelta(days=8)
    assert validity.is_valid(NOW + timedelta(days=9))
    assert not validity.is_valid(NOW + timedelta(days=10))


def test_chain_file_is_private_and_readable(tmp_path: Path) -> None:
    key = PrivateKey.new()
    chain = tmp_path / "pki/serving.pem"
    write_chain(chain, key.self_signed(SERVER, NOW), key)
    assert chain.stat().st_mode & 0o777 == 0o600
    found = read_validity(chain)
    assert found
    assert found.is_valid(NOW)
    assert found.alternatives == {"win-1", "10.0.0.9"}
    assert read_validity(tmp_path / "none.pem") is None


def test_serving_certificate_is_self_signed_until_issued(tmp_path: Path) -> None:
    identity = NodeIdentity("win-1", tmp_path / "kubeconfig", tmp_path / "pki")
    ensure_serving_certificate(identity, SERVER)
    first = identity.serving.read_bytes()
    ensure_serving_certificate(identity, SERVER)
    assert identity.serving.read_bytes() == first
    found = read_validity(identity.serving)
    assert found
    assert not found.is_signed


def test_written_kubeconfig_is_read_back(tmp_path: Path) -> None:
    key = PrivateKey.new()
    chain, file = tmp_path / "client.pem", tmp_path / "kubeconfig"
    certificate = key.self_signed(node_subject("win-1"), NOW)
    write_chain(chain, certificate, key)
    write_kubeconfig(file, "https://127.0.0.1:6443", certificate, chain)
    access = read_kubeconfig(file)
    assert access.url == "https://127.0.0.1:6443"
    assert access.ca_data == certificate
    assert file.stat().st_mode & 0o777 == 0o600


def test_client_certificate_is_reloaded_after_unauthorized(tmp_path: Path) -> None:
    chain, file = tmp_path / "client.pem", tmp_path / "kubeconfig"

    def renew() -> None:
        key = PrivateKey.new()
        write_chain(chain, key.self_signed(node_subject("win-1"), NOW), key)

    renew()
    write_kubeconfig(file, "https://127.0.0.1:6443", b"", chain)
    access = read_kubeconfig(file)
    first = access.ssl_context
    assert not access.reload()
    renew()
    assert access.reload()
    assert access.ssl_context is not first


async def test_joined_node_needs_no_token_after_restart(tmp_path: Path) -> None:
    identity = NodeIdentity("win-1", tmp_path / "kubeconfig", tmp_path / "pki")
    key = PrivateKey.new()
    write_chain(identity.client, key.self_signed(node_subject("win-1"), NOW), key)
    write_kubeconfig(identity.kubeconfig, "https://127.0.0.1:1", b"", identity.client)
    options = ConnectionOptions(
        identity.kubeconfig, server="https://127.0.0.1:1", token="abcdef.0123456789abcdef"
    )
    async with asyncio.timeout(60):
        assert (await connect_cluster(options, identity)).chain == identity.client.read_bytes()


def test_expired_certificate_requires_bootstrap(tmp_path: Path) -> None:
    identity = NodeIdentity("win-1", tmp_path / "kubeconfig", tmp_path / "pki")
    assert needs_bootstrap(identity)
    key = PrivateKey.new()
    for began, is_needed in ((NOW, False), (NOW - timedelta(days=400), True)):
        write_chain(identity.client, key.self_signed(node_subject("win-1"), began), key)
        write_kubeconfig(identity.kubeconfig, "https://127.0.0.1:1", b"", identity.client)
        assert needs_bootstrap(identity) == is_needed
    identity.client.unlink()
    assert not needs_bootstrap(identity)


def test_replaced_ca_is_reloaded(tmp_path: Path) -> None:
    chain, file, authority = (tmp_path / name for name in ("client.pem", "kubeconfig", "ca.pem"))

    def replace(target: Path) -> bytes:
        key = PrivateKey.new()
        content = key.self_signed(SERVER, NOW)
        write_chain(target, content, key)
        return content

    replace(chain)
    first = replace(authority)
    write_kubeconfig(file, "https://127.0.0.1:6443", first, chain)
    document = json.loads(file.read_text())
    document["clusters"][0]["cluster"] = {"server": "https://a", "certificate-authority": "ca.pem"}
    file.write_text(json.dumps(document))
    access = read_kubeconfig(file)
    assert not access.is_outdated()
    second = replace(authority)
    assert access.is_outdated()
    assert access.reload()
    assert second in access.ca_data
    assert not access.is_outdated()
    file.write_text("{")
    assert access.is_outdated()
    with pytest.raises(Unavailable, match="kubeconfig"):
        access.reload()
    assert access.is_outdated()
    assert second in access.ca_data


async def test_token_file_is_cached_and_reread_when_rejected(
    tmp_path: Path,
) -> None:
    file, token = tmp_path / "kubeconfig", tmp_path / "token"
    write_kubeconfig(file, "https://127.0.0.1:6443", b"", tmp_path / "none.pem")
    document = json.loads(file.read_text())
    document["users"][0]["user"] = {"tokenFile": "token"}
    file.write_text(json.dumps(document))
    token.write_text("one")
    access = read_kubeconfig(file)
    assert await access.headers() == {"Authorization": "Bearer one"}
    token.write_text("two")
    assert await access.headers() == {"Authorization": "Bearer one"}
    access.reload()
    assert await access.headers() == {"Authorization": "Bearer two"}


def test_certificate_expiry_metrics(tmp_path: Path) -> None:
    client = validity_of(PrivateKey.new().self_signed(node_subject("win-1"), NOW))
    absent = read_validity(tmp_path / "while-it-is-replaced.pem")
    told = certificate_metric_families(
        client, absent, RenewalErrors(serving_errors=2), NOW + timedelta(days=1)
    )
    found = {family.name: family.samples[0].value for family in told}
    assert 360 * 86400 < found["kubelet_certificate_manager_client_ttl_seconds"] < 365 * 86400
    assert found["kubelet_certificate_manager_server_ttl_seconds"] == inf
    assert found["kubelet_certificate_manager_client_expiration_renew_errors"] == 0
    assert found["kubelet_server_expiration_renew_errors"] == 2


def test_cluster_info_signature_requires_token() -> None:
    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    content, secret = "clusters: []", "0123456789abcdef"
    header = encoded(b'{"alg":"HS256","kid":"abcdef"}')
    signed = f"{header}.{encoded(content.encode())}".encode()
    mac = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    signature = f"{header}..{encoded(mac)}"
    assert is_signed(content, signature, secret)
    assert not is_signed(content + " ", signature, secret)
    assert not is_signed(content, signature, "f" * 16)
    assert not is_signed(content, "", secret)

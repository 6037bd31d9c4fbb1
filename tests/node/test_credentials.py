"""Certificates of a node, and clusters that prove that they know a token."""

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

from winpod.node.access import read_kubeconfig, write_kubeconfig
from winpod.node.certificate_metrics import Renewals, certificate_families
from winpod.node.certificates import (
    Key,
    Subject,
    Validity,
    of_node,
    read_validity,
    validity_of,
    write_chain,
)
from winpod.node.credentials import Identity, ensure_serving, needs_bootstrap
from winpod.node.discovery import is_signed
from winpod.node.joining import Cluster
from winpod.windows.errors import Unavailable

NOW = datetime.now(UTC)
SERVER = Subject("system:node:win-1", names=("win-1",), addresses=("10.0.0.9",))


def test_a_node_asks_for_a_certificate_in_its_own_name_and_group() -> None:
    request = x509.load_pem_x509_csr(Key.new().request(of_node("win-1")))
    assert request.subject.rfc4514_string() == "CN=system:node:win-1,O=system:nodes"
    assert request.is_signature_valid
    assert len(list(request.extensions)) == 0


def test_a_serving_request_names_the_nodes_addresses() -> None:
    request = x509.load_pem_x509_csr(Key.new().request(SERVER))
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["win-1"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.9"]


def test_a_certificate_is_renewed_before_it_ends() -> None:
    validity = Validity(NOW, NOW + timedelta(days=10))
    assert validity.renew_at == NOW + timedelta(days=8)
    assert validity.is_good(NOW + timedelta(days=9))
    assert not validity.is_good(NOW + timedelta(days=10))


def test_a_chain_is_written_for_its_owner_only_and_read_back(tmp_path: Path) -> None:
    key = Key.new()
    chain = tmp_path / "pki/serving.pem"
    write_chain(chain, key.self_signed(SERVER, NOW), key)
    assert chain.stat().st_mode & 0o777 == 0o600
    found = read_validity(chain)
    assert found
    assert found.is_good(NOW)
    assert found.alternatives == {"win-1", "10.0.0.9"}
    assert read_validity(tmp_path / "none.pem") is None


def test_a_node_serves_with_its_own_word_until_somebody_signs(tmp_path: Path) -> None:
    identity = Identity("win-1", tmp_path / "kubeconfig", tmp_path / "pki")
    ensure_serving(identity, SERVER)
    first = identity.serving.read_bytes()
    ensure_serving(identity, SERVER)
    assert identity.serving.read_bytes() == first
    found = read_validity(identity.serving)
    assert found
    assert not found.is_signed


def test_a_kubeconfig_that_was_written_is_read_back(tmp_path: Path) -> None:
    key = Key.new()
    chain, file = tmp_path / "client.pem", tmp_path / "kubeconfig"
    certificate = key.self_signed(of_node("win-1"), NOW)
    write_chain(chain, certificate, key)
    write_kubeconfig(file, "https://127.0.0.1:6443", certificate, chain)
    access = read_kubeconfig(file)
    assert access.url == "https://127.0.0.1:6443"
    assert access.authority == certificate
    assert file.stat().st_mode & 0o777 == 0o600


def test_who_the_server_no_longer_knows_reads_its_certificate_again(tmp_path: Path) -> None:
    chain, file = tmp_path / "client.pem", tmp_path / "kubeconfig"

    def renew() -> None:
        key = Key.new()
        write_chain(chain, key.self_signed(of_node("win-1"), NOW), key)

    renew()
    write_kubeconfig(file, "https://127.0.0.1:6443", b"", chain)
    access = read_kubeconfig(file)
    first = access.trust
    assert not access.read_again()
    renew()
    assert access.read_again()
    assert access.trust is not first


async def test_a_node_that_has_joined_comes_back_without_its_token(tmp_path: Path) -> None:
    identity = Identity("win-1", tmp_path / "kubeconfig", tmp_path / "pki")
    key = Key.new()
    write_chain(identity.client, key.self_signed(of_node("win-1"), NOW), key)
    write_kubeconfig(identity.kubeconfig, "https://127.0.0.1:1", b"", identity.client)
    cluster = Cluster(
        identity.kubeconfig, server="https://127.0.0.1:1", token="abcdef.0123456789abcdef"
    )
    async with asyncio.timeout(60):
        assert (await cluster.access(identity)).chain == identity.client.read_bytes()


def test_a_certificate_that_is_over_makes_a_node_join_anew(tmp_path: Path) -> None:
    identity = Identity("win-1", tmp_path / "kubeconfig", tmp_path / "pki")
    assert needs_bootstrap(identity)
    key = Key.new()
    for began, is_needed in ((NOW, False), (NOW - timedelta(days=400), True)):
        write_chain(identity.client, key.self_signed(of_node("win-1"), began), key)
        write_kubeconfig(identity.kubeconfig, "https://127.0.0.1:1", b"", identity.client)
        assert needs_bootstrap(identity) == is_needed
    identity.client.unlink()
    assert not needs_bootstrap(identity)


def test_an_authority_that_is_replaced_is_noticed_and_believed(tmp_path: Path) -> None:
    chain, file, authority = (tmp_path / name for name in ("client.pem", "kubeconfig", "ca.pem"))

    def replace(target: Path) -> bytes:
        key = Key.new()
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
    assert access.read_again()
    assert second in access.authority
    assert not access.is_outdated()
    file.write_text("{")
    assert access.is_outdated()
    with pytest.raises(Unavailable, match="kubeconfig"):
        access.read_again()
    assert access.is_outdated()
    assert second in access.authority


async def test_a_token_in_a_file_is_kept_for_a_while_and_read_again_when_it_is_refused(
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
    access.read_again()
    assert await access.headers() == {"Authorization": "Bearer two"}


def test_alerts_are_told_how_long_certificates_are_good(tmp_path: Path) -> None:
    client = validity_of(Key.new().self_signed(of_node("win-1"), NOW))
    absent = read_validity(tmp_path / "while-it-is-replaced.pem")
    told = certificate_families(client, absent, Renewals(serving_errors=2), NOW + timedelta(days=1))
    found = {family.name: family.samples[0].value for family in told}
    assert 360 * 86400 < found["kubelet_certificate_manager_client_ttl_seconds"] < 365 * 86400
    assert found["kubelet_certificate_manager_server_ttl_seconds"] == inf
    assert found["kubelet_certificate_manager_client_expiration_renew_errors"] == 0
    assert found["kubelet_server_expiration_renew_errors"] == 2


def test_only_who_knows_a_token_can_have_signed() -> None:
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

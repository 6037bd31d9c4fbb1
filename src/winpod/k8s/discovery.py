"""Discovers a cluster's CA with a kubeadm bootstrap token.

The cluster publishes its address and CA in the cluster-info ConfigMap, with a signature that only a
holder of the token can create.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import ssl

import yaml

from winpod.errors import InvalidInput, PermissionDenied
from winpod.field_reader import Field
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import RestConfig, normalize_url, token_config
from winpod.k8s.models import core_v1 as v1

_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


async def discover_cluster(server: str, token: str) -> RestConfig:
    """Return a config with the bootstrap token, for a cluster that proves that it knows it."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidInput(
            f'"{token[:6]}..." is not a bootstrap token.',
            "Create one with: kubeadm token create. It has the form abcdef.0123456789abcdef.",
        )
    url = normalize_url(server)
    cluster_info = await _read_cluster_info(url)
    if cluster_info is None:
        raise PermissionDenied(
            f"{url} does not publish a cluster-info ConfigMap.",
            "Set --certificate-authority or --bootstrap-kubeconfig.",
        )
    kubeconfig = cluster_info.get("kubeconfig", "")
    if not is_signed(kubeconfig, cluster_info.get(f"jws-kubeconfig-{match[1]}", ""), match[2]):
        raise PermissionDenied(
            f"The cluster-info of {url} is not signed with token {match[1]}.",
            "The token may have expired. Create one with: kubeadm token create",
        )
    cluster = next(Field(yaml.safe_load(kubeconfig)).get("clusters").items(), Field({})).get(
        "cluster"
    )
    authority = base64.b64decode(cluster.get("certificate-authority-data").text())
    return token_config(url, token, authority)


async def _read_cluster_info(url: str) -> dict[str, str] | None:
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    api = ApiClient(RestConfig(url, unverified))
    try:
        config_map = await api.get(v1.ConfigMap, _CLUSTER_INFO)
    finally:
        await api.close()
    return dict(config_map.data or {}) if config_map else None


def is_signed(content: str, signature: str, secret: str) -> bool:
    """Whether a detached JWS (HMAC SHA-256) matches the content and the secret."""
    header, _, rest = signature.partition(".")
    algorithm = _decode(header)
    signed = f"{header}.{_encode(content.encode())}".encode()
    expected = _encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
    is_hmac = b'"HS256"' in algorithm
    return is_hmac and hmac.compare_digest(expected, rest.rpartition(".")[2])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""

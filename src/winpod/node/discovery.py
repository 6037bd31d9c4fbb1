"""A cluster found with a kubeadm token alone: whom to trust there, proven by the token itself.

The cluster publishes where it is and its authority to everybody, with a signature that only
somebody who knows the token can have made.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import ssl

import yaml
from lightkube.models import core_v1 as v1

from winpod.node.access import Access, full_url, token_access
from winpod.node.api import ApiServer
from winpod.windows.errors import InvalidInput, PermissionDenied
from winpod.windows.reading import At

_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


async def discover(server: str, token: str) -> Access:
    """Access with a bootstrap token, to the cluster that proves that it knows it."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidInput(
            f'"{token[:6]}..." is not a bootstrap token.',
            "kubeadm token create prints one: six characters, a point, sixteen characters.",
        )
    url = full_url(server)
    told = await _published(url)
    if told is None:
        raise PermissionDenied(
            f"{url} publishes no cluster-info for nodes that join.",
            "Give its authority with --certificate-authority, or a --bootstrap-kubeconfig.",
        )
    kubeconfig = told.get("kubeconfig", "")
    if not is_signed(kubeconfig, told.get(f"jws-kubeconfig-{match[1]}", ""), match[2]):
        raise PermissionDenied(
            f"{url} does not know the token {match[1]}, or is not the cluster it says it is.",
            "Tokens expire: kubeadm token create",
        )
    cluster = next(At(yaml.safe_load(kubeconfig)).get("clusters").items(), At({})).get("cluster")
    authority = base64.b64decode(cluster.get("certificate-authority-data").text())
    return token_access(url, token, authority)


async def _published(url: str) -> dict[str, str] | None:
    nobody_trusted = ssl.create_default_context()
    nobody_trusted.check_hostname = False
    nobody_trusted.verify_mode = ssl.CERT_NONE
    api = ApiServer(Access(url, nobody_trusted))
    try:
        found = await api.get(v1.ConfigMap, _CLUSTER_INFO)
    finally:
        await api.close()
    return dict(found.data or {}) if found else None


def is_signed(content: str, signature: str, secret: str) -> bool:
    """Whether a detached JWS of HMAC SHA-256 is of this content and this secret."""
    header, _, rest = signature.partition(".")
    algorithm = _decoded(header)
    signed = f"{header}.{_encoded(content.encode())}".encode()
    expected = _encoded(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
    is_hmac = b'"HS256"' in algorithm
    return is_hmac and hmac.compare_digest(expected, rest.rpartition(".")[2])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""

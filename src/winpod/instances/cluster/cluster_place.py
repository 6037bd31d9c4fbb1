"""Where instances reach the cluster, and whom they believe there.

What the settings say goes first, then what the cluster publishes for those who join. A service's
address inside the cluster is no way in from outside, and is never given to an instance.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import yaml
from lightkube.models import core_v1 as v1

from winpod.node.access import Access
from winpod.node.api import ApiServer, Refused
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import At

_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """`authority` is a certificate, as PEM."""

    url: str
    authority: str


async def find_cluster(api: ApiServer, access: Access, said: str) -> ClusterPlace:
    """`said` is the URL that the settings say, if they do."""
    published = await _published(api)
    is_inside = access.token_file is not None
    url = said or published.url or ("" if is_inside else access.url)
    authority = access.authority.decode() or published.authority
    if not url or not authority:
        raise InvalidInput(
            "where instances reach the API server is not known: there is no cluster-info in "
            "kube-public that says it.",
            "Set instances.apiServer in the operator's settings.",
        )
    return ClusterPlace(url, authority)


async def _published(api: ApiServer) -> ClusterPlace:
    try:
        found = await api.get(v1.ConfigMap, _CLUSTER_INFO)
    except Refused as error:
        if not error.is_forbidden:
            raise
        found = None
    text = ((found.data or {}) if found else {}).get("kubeconfig", "")
    try:
        clusters = At(yaml.safe_load(text)).get("clusters")
        cluster = next(clusters.items(), At({})).get("cluster")
        authority = base64.b64decode(cluster.get("certificate-authority-data").text())
        return ClusterPlace(cluster.get("server").text().rstrip("/"), authority.decode())
    except (yaml.YAMLError, binascii.Error, UnicodeDecodeError, InvalidInput):
        return ClusterPlace("", "")

"""API server URL and CA that instances use to join.

The settings come first, then what the cluster publishes in cluster-info. The in-cluster service
address is not reachable from outside and is never given to an instance.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import yaml

from winpod.errors import InvalidInput
from winpod.field_reader import Field
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.models import core_v1 as v1

_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """`authority` is the CA certificate as PEM."""

    url: str
    authority: str


async def find_cluster_endpoint(
    api: ApiClient, access: RestConfig, configured: str
) -> ClusterEndpoint:
    """Find the endpoint; `configured` is the URL of the settings, if any."""
    published = await _published(api)
    is_inside = access.token_file is not None
    url = configured or published.url or ("" if is_inside else access.url)
    authority = access.ca_data.decode() or published.authority
    if not url or not authority:
        raise InvalidInput(
            "the API server URL for instances is unknown: there is no cluster-info in kube-public "
            "that has it.",
            "Set instances.apiServer in the operator's settings.",
        )
    return ClusterEndpoint(url, authority)


async def _published(api: ApiClient) -> ClusterEndpoint:
    try:
        config_map = await api.get(v1.ConfigMap, _CLUSTER_INFO)
    except ApiError as error:
        if not error.is_forbidden:
            raise
        config_map = None
    text = ((config_map.data or {}) if config_map else {}).get("kubeconfig", "")
    try:
        clusters = Field(yaml.safe_load(text)).get("clusters")
        cluster = next(clusters.items(), Field({})).get("cluster")
        authority = base64.b64decode(cluster.get("certificate-authority-data").text())
        return ClusterEndpoint(cluster.get("server").text().rstrip("/"), authority.decode())
    except (yaml.YAMLError, binascii.Error, UnicodeDecodeError, InvalidInput):
        return ClusterEndpoint("", "")

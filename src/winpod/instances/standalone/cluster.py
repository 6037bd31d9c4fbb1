"""The cluster that instances join, with the credentials of the user of the CLI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from winpod.clock import format_timestamp, utc_now
from winpod.instances.cluster.bootstrap_tokens import BootstrapTokens
from winpod.instances.cluster.csr_approval import (
    REQUESTS,
    KnownInstance,
    approve_csr,
    evaluate_csr,
    to_csr,
)
from winpod.instances.cluster.endpoint import ClusterEndpoint, find_cluster_endpoint
from winpod.instances.cluster.inventory import is_address
from winpod.instances.cluster.nodes import NODES, NodeClient
from winpod.instances.cluster.resource import PLURAL, WindowsInstance
from winpod.instances.errors import InstanceUnsuitable
from winpod.instances.ssh.host import SshHost
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.crd import API_VERSION
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.models import certificates_v1 as certificates
from winpod.k8s.objects import NodeObject
from winpod.labels import BOOTSTRAP_GROUP, CORDONED_ANNOTATION, INSTANCES_BINDING

_GROUP = "rbac.authorization.k8s.io"
_BINDINGS = f"/apis/{_GROUP}/v1/clusterrolebindings"


class StandaloneCluster:
    def __init__(self, api: ApiClient, endpoint: ClusterEndpoint) -> None:
        self.endpoint = endpoint
        self.nodes = NodeClient(api)
        self.tokens = BootstrapTokens(api)
        self._api = api

    async def operator_managed_addresses(self) -> frozenset[str]:
        """Return the addresses of instances managed by an operator, if they may be listed."""
        try:
            instances = await self._api.list(WindowsInstance, f"/apis/{API_VERSION}/{PLURAL}", {})
        except ApiError as error:
            if error.is_not_found or error.is_forbidden:
                return frozenset()
            raise
        return frozenset(instance.spec.address for instance in instances.items)

    async def create_token(self, instance: str) -> None:
        """Create the token; its holder may only request a certificate."""
        body = {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": INSTANCES_BINDING},
            "roleRef": {
                "apiGroup": _GROUP,
                "kind": "ClusterRole",
                "name": "system:node-bootstrapper",
            },
            "subjects": [{"apiGroup": _GROUP, "kind": "Group", "name": BOOTSTRAP_GROUP}],
        }
        try:
            await self._api.request("POST", _BINDINGS, body)
        except ApiError as error:
            if not error.is_conflict:
                raise
        await self.tokens.store(instance)

    async def set_cordoned(self, node: str, *, is_cordoned: bool) -> None:
        """Cordon or uncordon; the annotation with the time lets the next run revert it after a
        crash.
        """
        since = format_timestamp(utc_now()) if is_cordoned else None
        body = {
            "metadata": {"annotations": {CORDONED_ANNOTATION: since}},
            "spec": {"unschedulable": is_cordoned},
        }
        await self._api.patch(NodeObject, f"{NODES}/{node}", body)

    async def approve(self, instance: str, node: str, addresses: Collection[str]) -> None:
        """Approve requests that match this instance exactly; all others are ignored."""
        ips = frozenset(address for address in addresses if is_address(address))
        token = frozenset([self.tokens.get_or_create(instance).id])
        known = KnownInstance(instance, node, frozenset(addresses) - ips, ips, token)
        requests = await self._api.list(certificates.CertificateSigningRequest, REQUESTS, {})
        for request in requests.items:
            if request.status and (request.status.conditions or request.status.certificate):
                continue
            verdict = evaluate_csr(to_csr(request), [known])
            if verdict.is_approved:
                await approve_csr(self._api, request, verdict)


async def refuse_operator_managed(cluster: StandaloneCluster, host: SshHost) -> None:
    if host.login.address in await cluster.operator_managed_addresses():
        raise InstanceUnsuitable(
            f"{host.name}: it is managed by an operator of this cluster.",
            "Change its entry, the settings or the payload instead; the operator applies them.",
        )


@asynccontextmanager
async def connect_cluster(access: RestConfig, configured: str) -> AsyncIterator[StandaloneCluster]:
    """Connect; `configured` is the API server URL of the settings, if any."""
    api = ApiClient(access)
    try:
        yield StandaloneCluster(api, await find_cluster_endpoint(api, access, configured))
    finally:
        await api.close()

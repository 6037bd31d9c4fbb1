"""The cluster that instances join, changed by whoever runs a command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from lightkube.models import certificates_v1 as certificates

from winpod.cluster.custom_resources import API_VERSION, stamp
from winpod.instances.cluster.approval import REQUESTS, approve, request_of
from winpod.instances.cluster.cluster_place import ClusterPlace, find_cluster
from winpod.instances.cluster.inputs import is_address
from winpod.instances.cluster.nodes import NODES, NodeObject, Nodes
from winpod.instances.cluster.resource import PLURAL, WindowsInstance
from winpod.instances.cluster.signing import BOOTSTRAP_GROUP, Known, judge
from winpod.instances.cluster.tokens import Tokens
from winpod.instances.errors import InstanceUnfit
from winpod.instances.remote.ssh import Host
from winpod.node.access import Access
from winpod.node.api import ApiServer, Refused
from winpod.node.certificates import utc_now

CORDONED = "winpod.dev/cordoned-by-hand"
_GROUP = "rbac.authorization.k8s.io"
_BINDINGS = f"/apis/{_GROUP}/v1/clusterrolebindings"
_BINDING = "winpod-instances"


class Cluster:
    def __init__(self, api: ApiServer, place: ClusterPlace) -> None:
        self.place = place
        self.nodes = Nodes(api)
        self.tokens = Tokens(api)
        self._api = api

    async def looked_after(self) -> frozenset[str]:
        """The addresses of instances that an operator keeps, as far as anybody may know."""
        try:
            listed = await self._api.list(WindowsInstance, f"/apis/{API_VERSION}/{PLURAL}", {})
        except Refused as error:
            if error.is_missing or error.is_forbidden:
                return frozenset()
            raise
        return frozenset(instance.spec.address for instance in listed.items)

    async def give_token(self, instance: str) -> None:
        """Whoever has it may ask for a certificate, and no more."""
        body = {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _BINDING},
            "roleRef": {
                "apiGroup": _GROUP,
                "kind": "ClusterRole",
                "name": "system:node-bootstrapper",
            },
            "subjects": [{"apiGroup": _GROUP, "kind": "Group", "name": BOOTSTRAP_GROUP}],
        }
        try:
            await self._api.request("POST", _BINDINGS, body)
        except Refused as error:
            if not error.is_conflict:
                raise
        await self.tokens.store(instance)

    async def set_cordoned(self, node: str, *, is_cordoned: bool) -> None:
        """Marked as ours, and since when: a command that goes on after a kill takes it back."""
        mark = stamp(utc_now()) if is_cordoned else None
        body = {
            "metadata": {"annotations": {CORDONED: mark}},
            "spec": {"unschedulable": is_cordoned},
        }
        await self._api.patch(NodeObject, f"{NODES}/{node}", body)

    async def approve(self, instance: str, node: str, addresses: Collection[str]) -> None:
        """Requests that are exactly this instance's; all others are left alone."""
        numbers = frozenset(one for one in addresses if is_address(one))
        token = frozenset([self.tokens.of(instance).id])
        known = Known(instance, node, frozenset(addresses) - numbers, numbers, token)
        requests = await self._api.list(certificates.CertificateSigningRequest, REQUESTS, {})
        for request in requests.items:
            if request.status and (request.status.conditions or request.status.certificate):
                continue
            verdict = judge(request_of(request), [known])
            if verdict.is_approved:
                await approve(self._api, request, verdict)


async def refuse_operators_own(cluster: Cluster, host: Host) -> None:
    if host.login.address in await cluster.looked_after():
        raise InstanceUnfit(
            f"{host.name}: an operator of this cluster looks after it already.",
            "Change its entry, the settings or the payload instead, and the operator follows.",
        )


@asynccontextmanager
async def joined_cluster(access: Access, said: str) -> AsyncIterator[Cluster]:
    """`said` is where instances reach it, where settings say so."""
    api = ApiServer(access)
    try:
        yield Cluster(api, await find_cluster(api, access, said))
    finally:
        await api.close()

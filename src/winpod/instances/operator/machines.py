"""Machines that are Windows: instances that are replaced, never changed.

A MachineSet makes another where one was deleted; so one is deleted only when its set is whole.
"""

from __future__ import annotations

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.instances.cluster.inputs import Asked, is_address
from winpod.instances.cluster.objects import Address, Metadata
from winpod.node.api import ApiServer

GROUP = "/apis/machine.openshift.io/v1beta1"
SELECTOR = {"labelSelector": "machine.openshift.io/os-id=Windows"}


class _Status(DictMixin):
    addresses: list[Address] = msgspec.field(default_factory=list)


class Machine(DictMixin):
    metadata: Metadata
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def owner(self) -> str:
        """The name of its MachineSet, if it has one."""
        owners = self.metadata.owner_references
        return next((owner.name for owner in owners if owner.kind == "MachineSet"), "")


class _SetSpec(DictMixin):
    replicas: int = 1


class _SetStatus(DictMixin, rename="camel"):
    ready_replicas: int = 0


class MachineSet(DictMixin):
    spec: _SetSpec = msgspec.field(default_factory=_SetSpec)
    status: _SetStatus = msgspec.field(default_factory=_SetStatus)


def asked_of(machine: Machine, username: str) -> Asked | None:
    """None while nobody knows where it is, and once it is on its way out."""
    addresses = machine.status.addresses
    own = [one.address for one in addresses if one.type == "InternalIP" and is_address(one.address)]
    if not own or machine.metadata.deletion_timestamp:
        return None
    known = tuple(one.address for one in addresses)
    return Asked(f"machine-{machine.name}", own[0], username, machine=machine.name, addresses=known)


def hold(name: str, owner: str, found: MachineSet | None) -> str:
    """Why a Machine cannot be replaced now, or nothing."""
    if not owner or found is None:
        return f"Machine {name} belongs to no MachineSet, and nobody would make another: delete it"
    ready, wanted = found.status.ready_replicas, found.spec.replicas
    if ready < wanted:
        return f"of MachineSet {owner} {ready} of {wanted} are ready, and all have to be"
    return ""


class Machines:
    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def hold(self, namespace: str, name: str) -> str:
        folder = f"{GROUP}/namespaces/{namespace}"
        machine = await self._api.get(Machine, f"{folder}/machines/{name}")
        if machine is None or machine.metadata.deletion_timestamp:
            return f"Machine {name} is on its way out"
        owner = machine.owner
        found = await self._api.get(MachineSet, f"{folder}/machinesets/{owner}") if owner else None
        return hold(name, owner, found)

    async def delete(self, namespace: str, name: str) -> None:
        await self._api.delete(f"{GROUP}/namespaces/{namespace}/machines/{name}", {})

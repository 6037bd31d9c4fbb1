"""Machines that are Windows: instances that are replaced, never changed.

A MachineSet makes another where one was deleted; so one is deleted only when its set is whole, and
while no more are on their way, out or in, than may change at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

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
    def is_leaving(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

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


def instance_name(machine: str) -> str:
    return f"machine-{machine}"


def asked_of(machine: Machine, username: str) -> Asked | None:
    """None while nobody knows where it is, and once it is on its way out."""
    addresses = machine.status.addresses
    own = [one.address for one in addresses if one.type == "InternalIP" and is_address(one.address)]
    if not own or machine.is_leaving:
        return None
    known = tuple(one.address for one in addresses)
    name = instance_name(machine.name)
    return Asked(name, own[0], username, machine=machine.name, addresses=known)


def hold(name: str, owner: str, found: MachineSet | None) -> str:
    """Why a Machine cannot be replaced now, or nothing."""
    if not owner or found is None:
        return f"Machine {name} belongs to no MachineSet, and nobody would make another: delete it"
    ready, wanted = found.status.ready_replicas, found.spec.replicas
    if ready < wanted:
        return f"of MachineSet {owner} {ready} of {wanted} are ready, and all have to be"
    return ""


def owned(machines: Iterable[Machine]) -> Counter[str]:
    """How many of each MachineSet stay."""
    return Counter(one.owner for one in machines if not one.is_leaving)


def crowd(
    machines: Iterable[Machine],
    nodes: Collection[str],
    missing: Mapping[str, int],
    turns: Collection[str],
    limit: int,
) -> str:
    """Why no other Machine may be replaced now, or nothing; of `turns` alone, `rolling` judges.

    `nodes` are the Machines that have been ready nodes; who is none is on its way to be one.
    `missing` are those that MachineSets have still to make. Of one set, who leaves and who comes
    in its place are one that changes. `turns` are the instances that have theirs; those whose
    Machines leave already are counted once.
    """
    known = sorted(machines, key=lambda one: one.name)
    going = [one for one in known if one.is_leaving]
    coming = [one for one in known if not one.is_leaving and one.name not in nodes]
    out, into = (Counter(one.owner for one in some) for some in (going, coming))
    into += Counter(missing)
    others = set(turns) - {instance_name(one.name) for one in going}
    changing = sum((out | into).values())
    if not changing or changing + len(others) < limit:
        return ""
    said = [f"Machine {one.name} leaves" for one in going]
    said += [f"Machine {one.name} is not a ready node yet" for one in coming]
    said += [f"MachineSet {name} has to make another" for name in sorted(missing)]
    at_once = "one Machine is" if limit == 1 else f"{limit} Machines are"
    return f"{at_once} replaced at a time, and now {', '.join(said[:3])}"


class Machines:
    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def wanted(self, namespace: str, owner: str) -> int:
        """How many a MachineSet should have; none where it has gone."""
        found = await self._api.get(
            MachineSet, f"{GROUP}/namespaces/{namespace}/machinesets/{owner}"
        )
        return found.spec.replicas if found else 0

    async def hold(self, namespace: str, name: str) -> str:
        if not namespace:
            return f"the settings do not say where Machine {name} is: machineNamespace is empty"
        folder = f"{GROUP}/namespaces/{namespace}"
        machine = await self._api.get(Machine, f"{folder}/machines/{name}")
        if machine is None or machine.is_leaving:
            return f"Machine {name} is on its way out"
        owner = machine.owner
        found = await self._api.get(MachineSet, f"{folder}/machinesets/{owner}") if owner else None
        return hold(name, owner, found)

    async def delete(self, namespace: str, name: str) -> None:
        await self._api.delete(f"{GROUP}/namespaces/{namespace}/machines/{name}", {})

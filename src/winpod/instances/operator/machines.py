"""Machines that are Windows: instances that are replaced, never changed.

A MachineSet makes another where one was deleted. What a set lacks until that one is a ready node is
read off the set and its Machines, so nobody has to remember who was deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec
from lightkube.core.dictmixin import DictMixin

from winpod.instances.cluster.inputs import Asked, is_address
from winpod.instances.cluster.objects import Address, Metadata

GROUP = "/apis/machine.openshift.io/v1beta1"
_LABEL, _WINDOWS = "machine.openshift.io/os-id", "Windows"


class MachineObject(DictMixin):
    """What Machines and MachineSets have alike."""

    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_leaving(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


class _Status(DictMixin):
    addresses: list[Address] = msgspec.field(default_factory=list)


class Machine(MachineObject):
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_windows(self) -> bool:
        return self.metadata.labels.get(_LABEL) == _WINDOWS

    @property
    def stays(self) -> bool:
        return self.is_windows and not self.is_leaving

    @property
    def owner(self) -> str:
        """The name of its MachineSet, if it has one."""
        owners = self.metadata.owner_references
        return next((owner.name for owner in owners if owner.kind == "MachineSet"), "")


class _Template(DictMixin):
    metadata: Metadata = msgspec.field(default_factory=Metadata)


class _SetSpec(DictMixin):
    replicas: int = 1
    template: _Template = msgspec.field(default_factory=_Template)


class _SetStatus(DictMixin, rename="camel"):
    ready_replicas: int = 0


class MachineSet(MachineObject):
    spec: _SetSpec = msgspec.field(default_factory=_SetSpec)
    status: _SetStatus = msgspec.field(default_factory=_SetStatus)

    @property
    def makes_windows(self) -> bool:
        labels = self.spec.template.metadata.labels
        return labels.get(_LABEL) == _WINDOWS and not self.is_leaving


def instance_name(machine: str) -> str:
    return f"machine-{machine}"


def asked_of(machine: Machine, username: str) -> Asked | None:
    """None while nobody knows where it is, and once it is on its way out."""
    addresses = machine.status.addresses
    own = [one.address for one in addresses if one.type == "InternalIP" and is_address(one.address)]
    if not own or not machine.stays:
        return None
    known = tuple(one.address for one in addresses)
    name = instance_name(machine.name)
    return Asked(name, own[0], username, machine=machine.name, addresses=known)


def hold(machine: Machine, owner: MachineSet | None) -> str:
    """Why a Machine cannot be replaced now, or nothing."""
    name = machine.name
    if owner is None or owner.is_leaving:
        return f"Machine {name} belongs to no MachineSet, and nobody would make another: delete it"
    if not owner.makes_windows:
        label = f"the template of MachineSet {owner.name} has no label {_LABEL}={_WINDOWS}"
        return f"{label}, and nobody would make another like Machine {name}: add it"
    ready, wanted = owner.status.ready_replicas, owner.spec.replicas
    if ready < wanted:
        return f"of MachineSet {owner.name} {ready} of {wanted} are ready, and all have to be"
    return ""


def under_way(
    machines: Iterable[Machine], sets: Iterable[MachineSet], nodes: Collection[str]
) -> list[str]:
    """A sentence for each node that MachineSets lack: it leaves, is new, or has to be made.

    `nodes` are the Machines that have been ready nodes. Who comes in the place of one that leaves
    is the same node. A set that is scaled down, or deleted, lacks nothing.
    """
    of_set: dict[str, list[Machine]] = defaultdict(list)
    for machine in sorted(machines, key=lambda one: one.name):
        of_set[machine.owner].append(machine)
    sorted_sets = sorted(sets, key=lambda one: one.name)
    return [
        said
        for one in sorted_sets
        if one.makes_windows
        for said in _lacks(one, of_set[one.name], nodes)
    ]


def _lacks(owner: MachineSet, own: list[Machine], nodes: Collection[str]) -> list[str]:
    """Machines of it that somebody has made no concern of ours are there all the same."""
    going = [one.name for one in own if one.is_leaving]
    coming = [one.name for one in own if one.stays and one.name not in nodes]
    lacking = max(0, owner.spec.replicas - (len(own) - len(going) - len(coming)))
    said = [f"Machine {name} is not a ready node yet" for name in coming]
    said += [f"Machine {name} leaves" for name in going]
    said += [f"MachineSet {owner.name} has to make another"] * lacking
    return said[:lacking]

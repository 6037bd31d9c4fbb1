"""Windows Machines (machine.openshift.io): instances that are replaced, never changed.

A MachineSet creates another Machine for a deleted one. Missing nodes are derived from the set and
its Machines, so deletions need not be recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

from winpod.instances.cluster.inventory import InventoryEntry, is_address
from winpod.k8s.objects import Address, OwnedObjectMeta, SlimStruct

GROUP = "/apis/machine.openshift.io/v1beta1"
_LABEL, _WINDOWS = "machine.openshift.io/os-id", "Windows"


class _Metadata(OwnedObjectMeta):
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class MachineObject(SlimStruct):
    """Common fields of Machines and MachineSets."""

    metadata: _Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


class _Status(SlimStruct):
    addresses: list[Address] = msgspec.field(default_factory=list)


class Machine(MachineObject):
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_windows(self) -> bool:
        return self.metadata.labels.get(_LABEL) == _WINDOWS

    @property
    def is_permanent(self) -> bool:
        return self.is_windows and not self.is_deleting

    @property
    def owner(self) -> str:
        """The name of its MachineSet, if any."""
        owners = self.metadata.owner_references
        return next((owner.name for owner in owners if owner.kind == "MachineSet"), "")


class _Template(SlimStruct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _SetSpec(SlimStruct):
    replicas: int = 1
    template: _Template = msgspec.field(default_factory=_Template)


class _SetStatus(SlimStruct):
    ready_replicas: int = 0


class MachineSet(MachineObject):
    spec: _SetSpec = msgspec.field(default_factory=_SetSpec)
    status: _SetStatus = msgspec.field(default_factory=_SetStatus)

    @property
    def is_windows(self) -> bool:
        labels = self.spec.template.metadata.labels
        return labels.get(_LABEL) == _WINDOWS and not self.is_deleting


def instance_name(machine: str) -> str:
    return f"machine-{machine}"


def inventory_entry_of(machine: Machine, username: str) -> InventoryEntry | None:
    """Return the inventory entry; None without an address, and while it is being deleted."""
    addresses = machine.status.addresses
    internal = [
        address.address
        for address in addresses
        if address.type == "InternalIP" and is_address(address.address)
    ]
    if not internal or not machine.is_permanent:
        return None
    all_addresses = tuple(address.address for address in addresses)
    name = instance_name(machine.name)
    return InventoryEntry(
        name, internal[0], username, machine=machine.name, addresses=all_addresses
    )


def replacement_blocker(machine: Machine, owner: MachineSet | None) -> str:
    """Return why a Machine cannot be replaced now; empty if it can."""
    name = machine.name
    if owner is None or owner.is_deleting:
        return f"Machine {name} belongs to no MachineSet, so it would not be replaced: delete it"
    if not owner.is_windows:
        label = f"the template of MachineSet {owner.name} has no label {_LABEL}={_WINDOWS}"
        return f"{label}, so Machine {name} would not be replaced: add it"
    ready, replicas = owner.status.ready_replicas, owner.spec.replicas
    if ready < replicas:
        return f"only {ready} of {replicas} Machines of MachineSet {owner.name} are ready"
    return ""


def pending_replacements(
    machines: Iterable[Machine], sets: Iterable[MachineSet], nodes: Collection[str]
) -> list[str]:
    """Return a message for each node MachineSets lack: deleting, not ready yet, or not created.

    `nodes` are the Machines that have been ready nodes. A Machine and its replacement count once. A
    set that is scaled down or deleted lacks nothing.
    """
    by_set: dict[str, list[Machine]] = defaultdict(list)
    for machine in sorted(machines, key=lambda item: item.name):
        by_set[machine.owner].append(machine)
    sorted_sets = sorted(sets, key=lambda item: item.name)
    return [
        message
        for machine_set in sorted_sets
        if machine_set.is_windows
        for message in _missing_nodes(machine_set, by_set[machine_set.name], nodes)
    ]


def _missing_nodes(owner: MachineSet, machines: list[Machine], nodes: Collection[str]) -> list[str]:
    """Return the messages of one set. Machines without the Windows label count as present."""
    deleting = [machine.name for machine in machines if machine.is_deleting]
    new = [
        machine.name for machine in machines if machine.is_permanent and machine.name not in nodes
    ]
    missing = max(0, owner.spec.replicas - (len(machines) - len(deleting) - len(new)))
    messages = [f"Machine {name} is not a ready node yet" for name in new]
    messages += [f"Machine {name} is being deleted" for name in deleting]
    messages += [f"MachineSet {owner.name} has to create a Machine"] * missing
    return messages[:missing]

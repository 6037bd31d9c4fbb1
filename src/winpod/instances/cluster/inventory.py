"""Inventory of instances: entries of a ConfigMap, each validated on its own.

A key is an IPv4 address or a DNS name, its value `username=NAME`, plus `port=NUMBER` if SSH does
not listen on 22. An invalid entry does not affect the others. Addresses of an instance come from
the inventory and DNS, never from the instance itself.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from winpod.instances.errors import InstanceUnreachable

KEY_ENTRY = "private-key.pem"
SSH_PORT = 22
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
)
_NUMBERS = re.compile(r"[0-9.]+")
_SEPARATORS = re.compile(r"[,\s]+")
_FIELDS = ("username", "port")
_MAX_USER = 104
_INVALID_USER_CHARACTERS = frozenset("\"/[]:;|=,+*?<>'`$&()")


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """An instance to configure as a node; `machine` is its Machine, if it has one.

    `addresses` are its known addresses: its own, and those its Machine reports.
    """

    name: str
    address: str
    username: str
    port: int = SSH_PORT
    machine: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def spec(self) -> dict[str, object]:
        """The spec of its custom resource."""
        spec = {"address": self.address, "username": self.username, "port": self.port}
        return {**spec, "machine": self.machine} if self.machine else spec


@dataclass(frozen=True, slots=True)
class InvalidEntry:
    """`problem` says what is wrong with the entry and what to write instead."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Inventory:
    valid: tuple[InventoryEntry, ...] = ()
    invalid: tuple[InvalidEntry, ...] = ()


def read_inventory(data: Mapping[str, str]) -> Inventory:
    valid: dict[str, InventoryEntry] = {}
    invalid: list[InvalidEntry] = []
    for key, value in sorted(data.items()):
        entry = _read_entry(key, value)
        if isinstance(entry, InvalidEntry):
            invalid.append(entry)
        elif entry.name in valid:
            invalid.append(
                InvalidEntry(key, f'"{key}" is defined twice, in different case. Remove one.')
            )
        else:
            valid[entry.name] = entry
    return Inventory(tuple(valid.values()), tuple(invalid))


def deduplicate(entries: Inventory, machines: Iterable[InventoryEntry]) -> Inventory:
    """Drop entries whose address belongs to a Machine, as they would be configured twice."""
    by_address = {
        address: entry for entry in machines for address in (entry.address, *entry.addresses)
    }
    valid = [entry for entry in entries.valid if entry.address not in by_address]
    names = {entry.name for entry in valid}
    invalid = [
        InvalidEntry(
            entry.address, f"{entry.address} is Machine {machine.machine}'s. Remove the entry."
        )
        for entry in entries.valid
        if (machine := by_address.get(entry.address))
    ]
    machine_entries = [entry for entry in by_address.values() if entry.name not in names]
    return Inventory((*valid, *dict.fromkeys(machine_entries)), (*entries.invalid, *invalid))


def is_address(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def _read_entry(key: str, value: str) -> InventoryEntry | InvalidEntry:
    address = key.lower()
    if not is_address(address) and (_NUMBERS.fullmatch(address) or not _NAME.fullmatch(address)):
        return InvalidEntry(key, f'"{key}" is neither an IPv4 address nor a DNS name. Correct it.')
    problems = list(_problems(key, value))
    if problems:
        return InvalidEntry(key, problems[0])
    fields = dict(field.split("=", 1) for field in _fields(value))
    return InventoryEntry(address, address, fields["username"], int(fields.get("port", SSH_PORT)))


def _problems(key: str, value: str) -> Iterator[str]:
    seen: set[str] = set()
    for field in _fields(value):
        name, equals, text = field.partition("=")
        if name not in _FIELDS or not equals:
            yield f'{key}: "{field}" is not valid. Use username=Administrator.'
        elif name in seen:
            yield f"{key}: {name} is set twice. Remove one."
        elif not text:
            yield f"{key}: {name} is empty. Use username=Administrator."
        elif name == "port" and not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
            yield f'{key}: the port is "{text}", and must be a number from 1 to 65535.'
        elif name == "username" and not _is_user(text):
            yield f'{key}: "{text}" is not a valid Windows user name.'
        seen.add(name)
    if "username" not in seen:
        yield f"{key}: the username is missing. Use username=Administrator."


def _fields(value: str) -> list[str]:
    return [field for field in _SEPARATORS.split(value.strip()) if field]


def _is_user(text: str) -> bool:
    name = text.rpartition("\\")[2]
    is_clean = text.isprintable() and _INVALID_USER_CHARACTERS.isdisjoint(text)
    return bool(name) and text.count("\\") <= 1 and is_clean and len(text) <= _MAX_USER


async def addresses_of(
    instance: str, address: str, port: int, known: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the address, what it resolves to if it is a name, and the addresses known already."""
    if is_address(address):
        return tuple(dict.fromkeys((address, *known)))
    try:
        results = await asyncio.get_running_loop().getaddrinfo(
            address, port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise InstanceUnreachable(
            f"{instance}: {address} cannot be resolved: {error.strerror}.",
            "Check the name and the DNS servers of this machine.",
        ) from None
    resolved = sorted({str(result[4][0]) for result in results})
    return tuple(dict.fromkeys((*resolved, address, *known)))

"""Which instances a cluster's people ask for: entries of a ConfigMap, each judged on its own.

A key is an IPv4 address or a DNS name, its value is `username=NAME`, and `port=NUMBER` beside it
where SSH is not at 22. What is wrong with one entry is said of that entry and stops no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

INSTANCES = "windows-instances"
KEY_SECRET, KEY_ENTRY = "cloud-private-key", "private-key.pem"
SSH_PORT = 22
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
)
_NUMBERS = re.compile(r"[0-9.]+")
_WORDS = re.compile(r"[,\s]+")
_KNOWN = ("username", "port")
_LONGEST_USER = 104
_NOT_IN_USERS = frozenset("\"/[]:;|=,+*?<>'`$&()")


@dataclass(frozen=True, slots=True)
class Asked:
    """An instance that somebody wants as a node; `machine` is the Machine that it is, if one.

    `addresses` are those that it is known by: its own, beside those that its Machine states.
    """

    name: str
    address: str
    username: str
    port: int = SSH_PORT
    machine: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def spec(self) -> dict[str, object]:
        """As the object of the instance has it."""
        found = {"address": self.address, "username": self.username, "port": self.port}
        return {**found, "machine": self.machine} if self.machine else found


@dataclass(frozen=True, slots=True)
class BadEntry:
    """`problem` is a sentence about the entry and what to write instead."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Entries:
    asked: tuple[Asked, ...] = ()
    bad: tuple[BadEntry, ...] = ()


def read_entries(data: Mapping[str, str]) -> Entries:
    asked: dict[str, Asked] = {}
    bad: list[BadEntry] = []
    for key, value in sorted(data.items()):
        found = _read_entry(key, value)
        if isinstance(found, BadEntry):
            bad.append(found)
        elif found.name in asked:
            bad.append(BadEntry(key, f'"{key}" is there twice, in other letters. Remove one.'))
        else:
            asked[found.name] = found
    return Entries(tuple(asked.values()), tuple(bad))


def without_doubles(entries: Entries, machines: Iterable[Asked]) -> Entries:
    """An address that is a Machine's is the Machine's: its entry would configure it twice."""
    found = {address: one for one in machines for address in (one.address, *one.addresses)}
    asked = [one for one in entries.asked if one.address not in found]
    names = {one.name for one in asked}
    bad = [
        BadEntry(one.address, f"{one.address} is Machine {machine.machine}'s. Remove the entry.")
        for one in entries.asked
        if (machine := found.get(one.address))
    ]
    more = [one for one in found.values() if one.name not in names]
    return Entries((*asked, *dict.fromkeys(more)), (*entries.bad, *bad))


def is_address(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def _read_entry(key: str, value: str) -> Asked | BadEntry:
    address = key.lower()
    if not is_address(address) and (_NUMBERS.fullmatch(address) or not _NAME.fullmatch(address)):
        return BadEntry(key, f'"{key}" is neither an IPv4 address nor a DNS name. Correct it.')
    problems = list(_problems(key, value))
    if problems:
        return BadEntry(key, problems[0])
    words = dict(word.split("=", 1) for word in _words(value))
    return Asked(address, address, words["username"], int(words.get("port", SSH_PORT)))


def _problems(key: str, value: str) -> Iterator[str]:
    seen: set[str] = set()
    for word in _words(value):
        name, equals, text = word.partition("=")
        if name not in _KNOWN or not equals:
            yield f'{key}: "{word}" is not understood. Write username=Administrator.'
        elif name in seen:
            yield f"{key}: {name} is there twice. Leave one."
        elif not text:
            yield f"{key}: {name} is empty. Write username=Administrator."
        elif name == "port" and not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
            yield f'{key}: the port is "{text}", and must be a number from 1 to 65535.'
        elif name == "username" and not _is_user(text):
            yield f'{key}: "{text}" cannot be the name of a Windows user.'
        seen.add(name)
    if "username" not in seen:
        yield f"{key}: the user is not named. Write username=Administrator."


def _words(value: str) -> list[str]:
    return [word for word in _WORDS.split(value.strip()) if word]


def _is_user(text: str) -> bool:
    name = text.rpartition("\\")[2]
    is_clean = text.isprintable() and _NOT_IN_USERS.isdisjoint(text)
    return bool(name) and text.count("\\") <= 1 and is_clean and len(text) <= _LONGEST_USER

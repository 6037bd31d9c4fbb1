"""What of an image's registry is not taken over, because it would take Wine's own parts away.

Elsewhere the image has the say. `docs/registry.md` has the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from winpod.images.wine_registry import fold


class Taking(Enum):
    """What of an image's keys is taken over."""

    ALL = "all"
    NEW = "what Wine does not have"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Rule:
    """For a key and all below it, unless another rule is nearer. `User` is the root of a user."""

    key: str
    taking: Taking
    reason: str


_DEVICES = "the devices of a container are Wine's"
_NETWORK = "name and network of a container are its own, not those it was built with"
_BOOT = "Wine would run them whenever a container starts, and Windows does so at a logon only"
_PROFILE = "the profile of a container's user is Wine's"
_CLASSES = "classes that Wine has are in Wine's own libraries"

RULES = (
    Rule(r"Software\Wine", Taking.NOTHING, "these are Wine's own settings"),
    Rule(r"Software\Classes\CLSID", Taking.NEW, _CLASSES),
    Rule(r"Software\Classes\Interface", Taking.NEW, _CLASSES),
    Rule(r"Software\Classes\TypeLib", Taking.NEW, _CLASSES),
    Rule(r"Software\Microsoft\Windows\CurrentVersion\Run", Taking.NOTHING, _BOOT),
    Rule(r"Software\Microsoft\Windows\CurrentVersion\RunOnce", Taking.NOTHING, _BOOT),
    Rule(r"Software\Microsoft\Windows\CurrentVersion\RunServices", Taking.NOTHING, _BOOT),
    Rule(r"Software\Microsoft\Windows\CurrentVersion\RunServicesOnce", Taking.NOTHING, _BOOT),
    Rule(
        r"Software\Microsoft\Windows NT\CurrentVersion\AeDebug",
        Taking.NEW,
        "the debugger that Wine starts after a crash is Wine's",
    ),
    Rule(
        r"Software\Microsoft\Windows NT\CurrentVersion\Drivers32",
        Taking.NEW,
        "the codecs that Wine has are Wine's own libraries",
    ),
    Rule(r"Software\Microsoft\Windows NT\CurrentVersion\NetworkCards", Taking.NOTHING, _NETWORK),
    Rule(
        r"Software\Microsoft\Windows NT\CurrentVersion\Perflib",
        Taking.NOTHING,
        "Wine makes the performance counters itself",
    ),
    Rule(r"Software\Microsoft\Windows NT\CurrentVersion\ProfileList", Taking.NEW, _PROFILE),
    Rule(
        r"Software\Microsoft\Windows NT\CurrentVersion\SvcHost",
        Taking.NEW,
        "the groups of services that Wine has hold Wine's services",
    ),
    Rule(r"System\DriverDatabase", Taking.NOTHING, _DEVICES),
    Rule(r"System\HardwareConfig", Taking.NOTHING, _DEVICES),
    Rule(r"System\MountedDevices", Taking.NOTHING, _DEVICES),
    Rule(r"System\Select", Taking.NOTHING, "Wine has one control set"),
    Rule(r"System\Setup", Taking.NOTHING, "it is about how Windows was installed"),
    Rule(r"System\ControlSet001\Enum", Taking.NOTHING, _DEVICES),
    Rule(r"System\ControlSet001\Hardware Profiles", Taking.NOTHING, _DEVICES),
    Rule(r"System\ControlSet001\Control\Class", Taking.NOTHING, _DEVICES),
    Rule(r"System\ControlSet001\Control\ComputerName", Taking.NOTHING, _NETWORK),
    Rule(r"System\ControlSet001\Control\DeviceClasses", Taking.NOTHING, _DEVICES),
    Rule(r"System\ControlSet001\Control\DeviceContainers", Taking.NOTHING, _DEVICES),
    Rule(r"System\ControlSet001\Control\hivelist", Taking.NOTHING, "Wine has no hives"),
    Rule(
        r"System\ControlSet001\Control\Nls", Taking.NEW, "the tables of code pages are Wine's own"
    ),
    Rule(r"System\ControlSet001\Control\Print", Taking.NEW, "printing is Wine's own"),
    Rule(
        r"System\ControlSet001\Control\Session Manager",
        Taking.NOTHING,
        "how the system starts is Wine's",
    ),
    Rule(r"System\ControlSet001\Control\Session Manager\Environment", Taking.ALL, ""),
    Rule(r"System\ControlSet001\Control\Video", Taking.NOTHING, _DEVICES),
    Rule(r"System\ControlSet001\Services", Taking.NEW, "a service that Wine has is Wine's own"),
    Rule(r"System\ControlSet001\Services\Tcpip", Taking.NOTHING, _NETWORK),
    Rule(r"System\ControlSet001\Services\WinSock2", Taking.NOTHING, _NETWORK),
    Rule(r"User\Software\Wine", Taking.NOTHING, "these are Wine's own settings"),
    Rule(r"User\Software\Microsoft\Windows\CurrentVersion\Run", Taking.NOTHING, _BOOT),
    Rule(r"User\Software\Microsoft\Windows\CurrentVersion\RunOnce", Taking.NOTHING, _BOOT),
    Rule(
        r"User\Software\Microsoft\Windows\CurrentVersion\Explorer\Shell Folders",
        Taking.NOTHING,
        _PROFILE,
    ),
    Rule(
        r"User\Software\Microsoft\Windows\CurrentVersion\Explorer\User Shell Folders",
        Taking.NOTHING,
        _PROFILE,
    ),
    Rule(r"User\Volatile Environment", Taking.NOTHING, _PROFILE),
)


def rule_for(key: str) -> Rule:
    """The nearest rule. The 32-bit view of a key has the rules of the key."""
    path = fold(_plain(key))
    while path:
        if rule := _RULE_OF.get(path):
            return rule
        path = path.rpartition("\\")[0]
    return Rule(key, Taking.ALL, "")


def holds_wines_keys(key: str) -> bool:
    """Whether there is a rule for a key in it, so that it cannot be deleted or replaced whole."""
    return fold(_plain(key)) in _HOLDERS


def _plain(key: str) -> str:
    parts = key[:_LONGEST].split("\\")
    return "\\".join(part for part in parts if fold(part) != "WOW6432NODE")


def _holders() -> Iterator[str]:
    for rule in RULES:
        key = fold(rule.key)
        if rule.taking is Taking.ALL:
            yield key
        while key := key.rpartition("\\")[0]:
            yield key


_RULE_OF = {fold(rule.key): rule for rule in RULES}
_HOLDERS = frozenset(_holders())
_LONGEST = 2 * max(len(rule.key) for rule in RULES)

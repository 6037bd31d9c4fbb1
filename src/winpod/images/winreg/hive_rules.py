"""Registry keys of an image that are not imported, because they would break Wine's own.

All other keys are imported. A test checks that `docs/windows-registry.md` has the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from winpod.images.winreg.wine_registry import casefold_key


class ImportPolicy(Enum):
    """Which keys and values of an image are imported."""

    ALL = "all"
    NEW = "what Wine does not have"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class HiveRule:
    """Policy for a key and its subkeys; the longest match wins. `User` is the root of a user."""

    key: str
    policy: ImportPolicy
    reason: str


_DEVICES = "the devices of a container are Wine's"
_NETWORK = "name and network of a container are its own, not those it was built with"
_BOOT = "Wine would run them whenever a container starts, and Windows does so at a logon only"
_PROFILE = "the profile of a container's user is Wine's"
_CLASSES = "classes that Wine has are in Wine's own libraries"

RULES = (
    HiveRule(r"Software\Wine", ImportPolicy.NONE, "these are Wine's own settings"),
    HiveRule(r"Software\Classes\CLSID", ImportPolicy.NEW, _CLASSES),
    HiveRule(r"Software\Classes\Interface", ImportPolicy.NEW, _CLASSES),
    HiveRule(r"Software\Classes\TypeLib", ImportPolicy.NEW, _CLASSES),
    HiveRule(r"Software\Microsoft\Windows\CurrentVersion\Run", ImportPolicy.NONE, _BOOT),
    HiveRule(r"Software\Microsoft\Windows\CurrentVersion\RunOnce", ImportPolicy.NONE, _BOOT),
    HiveRule(r"Software\Microsoft\Windows\CurrentVersion\RunServices", ImportPolicy.NONE, _BOOT),
    HiveRule(
        r"Software\Microsoft\Windows\CurrentVersion\RunServicesOnce", ImportPolicy.NONE, _BOOT
    ),
    HiveRule(
        r"Software\Microsoft\Windows NT\CurrentVersion\AeDebug",
        ImportPolicy.NEW,
        "the debugger that Wine starts after a crash is Wine's",
    ),
    HiveRule(
        r"Software\Microsoft\Windows NT\CurrentVersion\Drivers32",
        ImportPolicy.NEW,
        "the codecs that Wine has are Wine's own libraries",
    ),
    HiveRule(
        r"Software\Microsoft\Windows NT\CurrentVersion\NetworkCards", ImportPolicy.NONE, _NETWORK
    ),
    HiveRule(
        r"Software\Microsoft\Windows NT\CurrentVersion\Perflib",
        ImportPolicy.NONE,
        "Wine makes the performance counters itself",
    ),
    HiveRule(
        r"Software\Microsoft\Windows NT\CurrentVersion\ProfileList", ImportPolicy.NEW, _PROFILE
    ),
    HiveRule(
        r"Software\Microsoft\Windows NT\CurrentVersion\SvcHost",
        ImportPolicy.NEW,
        "the groups of services that Wine has hold Wine's services",
    ),
    HiveRule(r"System\DriverDatabase", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\HardwareConfig", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\MountedDevices", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\Select", ImportPolicy.NONE, "Wine has one control set"),
    HiveRule(r"System\Setup", ImportPolicy.NONE, "it is about how Windows was installed"),
    HiveRule(r"System\ControlSet001\Enum", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\ControlSet001\Hardware Profiles", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\ControlSet001\Control\Class", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\ControlSet001\Control\ComputerName", ImportPolicy.NONE, _NETWORK),
    HiveRule(r"System\ControlSet001\Control\DeviceClasses", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\ControlSet001\Control\DeviceContainers", ImportPolicy.NONE, _DEVICES),
    HiveRule(r"System\ControlSet001\Control\hivelist", ImportPolicy.NONE, "Wine has no hives"),
    HiveRule(
        r"System\ControlSet001\Control\Nls",
        ImportPolicy.NEW,
        "the tables of code pages are Wine's own",
    ),
    HiveRule(r"System\ControlSet001\Control\Print", ImportPolicy.NEW, "printing is Wine's own"),
    HiveRule(
        r"System\ControlSet001\Control\Session Manager",
        ImportPolicy.NONE,
        "how the system starts is Wine's",
    ),
    HiveRule(r"System\ControlSet001\Control\Session Manager\Environment", ImportPolicy.ALL, ""),
    HiveRule(r"System\ControlSet001\Control\Video", ImportPolicy.NONE, _DEVICES),
    HiveRule(
        r"System\ControlSet001\Services", ImportPolicy.NEW, "a service that Wine has is Wine's own"
    ),
    HiveRule(r"System\ControlSet001\Services\Tcpip", ImportPolicy.NONE, _NETWORK),
    HiveRule(r"System\ControlSet001\Services\WinSock2", ImportPolicy.NONE, _NETWORK),
    HiveRule(r"User\Software\Wine", ImportPolicy.NONE, "these are Wine's own settings"),
    HiveRule(r"User\Software\Microsoft\Windows\CurrentVersion\Run", ImportPolicy.NONE, _BOOT),
    HiveRule(r"User\Software\Microsoft\Windows\CurrentVersion\RunOnce", ImportPolicy.NONE, _BOOT),
    HiveRule(
        r"User\Software\Microsoft\Windows\CurrentVersion\Explorer\Shell Folders",
        ImportPolicy.NONE,
        _PROFILE,
    ),
    HiveRule(
        r"User\Software\Microsoft\Windows\CurrentVersion\Explorer\User Shell Folders",
        ImportPolicy.NONE,
        _PROFILE,
    ),
    HiveRule(r"User\Volatile Environment", ImportPolicy.NONE, _PROFILE),
)


def rule_for(key: str) -> HiveRule:
    """Return the most specific rule. The 32-bit view of a key has the same rules."""
    path = casefold_key(_without_wow64(key))
    while path:
        if rule := _RULE_BY_KEY.get(path):
            return rule
        path = path.rpartition("\\")[0]
    return HiveRule(key, ImportPolicy.ALL, "")


def contains_wine_keys(key: str) -> bool:
    """Return whether a subkey has a rule, so that the key must not be deleted or replaced."""
    return casefold_key(_without_wow64(key)) in _PARENTS


def _without_wow64(key: str) -> str:
    parts = key[:_MAX_LENGTH].split("\\")
    return "\\".join(part for part in parts if casefold_key(part) != "WOW6432NODE")


def _parent_keys() -> Iterator[str]:
    for rule in RULES:
        key = casefold_key(rule.key)
        if rule.policy is ImportPolicy.ALL:
            yield key
        while key := key.rpartition("\\")[0]:
            yield key


_RULE_BY_KEY = {casefold_key(rule.key): rule for rule in RULES}
_PARENTS = frozenset(_parent_keys())
_MAX_LENGTH = 2 * max(len(rule.key) for rule in RULES)

"""What the Wine base is made of, as tables: packages, what is kept of them, what is switched off.

Everything that decides what a base is like is here or in the programs of `winpod.native`; its
digest is part of a base's id, so a base of another recipe is never taken for one of this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from winpod.windows.users import USERS

SUITE = "trixie"
"""Debian's release with Wine 10; what Go 1.22 and newer builds does not start on Wine 8."""

PACKAGES = ("wine64", "ca-certificates", "dash", "libc-bin")

LIBRARIES = "usr/lib/x86_64-linux-gnu"
WINE = f"{LIBRARIES}/wine"
WINDOWS_FILES = {"x86_64-windows": "system32", "i386-windows": "syswow64"}
"""Where Wine's own Windows files are, and where a prefix has them."""

ZLIB = {
    "x86_64-windows": "usr/x86_64-w64-mingw32/lib/zlib1.dll",
    "i386-windows": "usr/i686-w64-mingw32/lib/zlib1.dll",
}
"""Debian's user32.dll is linked to it, and finds it only among Wine's own files."""

OF_THE_CONTAINER = {
    "hosts": "/prefix/drive_c/windows/system32/drivers/etc/hosts",
    "resolv.conf": "/prefix/resolv.conf",
}
"""What of /etc is each container's own: its Windows' hosts file, and its pod's resolver."""

HOSTS = "127.0.0.1 localhost\r\n::1 localhost\r\n"
"""The hosts file. Windows knows localhost without one; Wine knows only what is written."""

FONT_CACHE = "var/cache/fontconfig"
"""What is known of the fonts, so that not every boot has to read them."""

PLACES = ("proc", "sys", "run", "tmp", "root", "dev", "prefix", "winpod")
"""Directories for what a container mounts; the tree itself is read-only to it."""

KEPT = (
    "etc/fonts",
    "etc/gss",
    "etc/ssl",
    f"{LIBRARIES}/krb5",
    WINE,
    "usr/lib/locale/C.utf8",  # without it, Wine knows no file whose name is not ASCII
    "usr/lib/wine",
    "usr/share/fontconfig",
    "usr/share/fonts",
    "usr/share/wine",
)
"""Directories of the Debian tree that stay, besides libraries and the packages' copyrights."""

UNUSED_MODULES = (
    "gphoto2.so",
    "winealsa.so",
    "winedmo.so",
    "winegstreamer.so",
    "winepulse.so",
)
"""Wine's Linux side of cameras, sound and films: 140 MB with the libraries they alone need."""

LOADED_LIBRARIES = (
    "libdbus-1.so.3",
    "libfontconfig.so.1",
    "libfreetype.so.6",
    "libgcc_s.so.1",
    "libgnutls.so.30",
    "libgssapi_krb5.so.2",
    "libkrb5.so.3",
    "libresolv.so.2",
)
"""Libraries that Wine opens when it needs them, which no file says."""

SERVICES_OFF = (
    "Eventlog",
    "FontCache",
    "FontCache3.0.0.0",
    "LanmanServer",
    "PlugPlay",
    "Schedule",
    "Spooler",
    "StiSvc",
    "TermService",
    "scardsvr",
    "winebth",
    "winebus",
    "winehid",
    "wineusb",
    "wuauserv",
)
"""Services that serve devices no container has, or that Wine only pretends to have."""

MADE_UP_DEVICES = tuple(
    rf"System\CurrentControlSet\Enum\{bus}" for bus in (r"ROOT\WINE", "WINEBUS", "HID")
)
"""Devices that Wine makes up. Each boot starts their services, even those that are off."""

MACHINE_VALUES = {
    r"Software\Microsoft\Windows NT\CurrentVersion\AeDebug": {"Debugger": ""},
    r"Software\Wow6432Node\Microsoft\Windows NT\CurrentVersion\AeDebug": {"Debugger": ""},
}
"""A program that crashes ends: Wine's debugger would wait for someone to close its window."""

USER_VALUES = {r"Software\Wine\Drivers": {"Graphics": "null", "Audio": ""}}
"""No screen and no sound are looked for."""

OWN_PROGRAMS = ("tar.exe",)
"""winpod's own, where Windows has a program and Wine has none. An image's goes before it."""

REVISION = 1
"""Raised when a step of the build does something else than before."""

ACCOUNTS = {user.name: user.uid for user in USERS}
"""The users of Windows containers; Wine names its user as Linux names the owner of the prefix."""

_NO_ACL = "Wine keeps no access lists, so nothing can be granted or taken away"
_NO_NETWORK_SETTINGS = "the network of a container is set from outside"
_NO_INSTALL = "Windows features and updates cannot be added to this base"
_NO_DOTNET = "there is no .NET Framework; .NET 5 and newer bring their own runtime"
_NO_DEVICES = "a container has no devices of its own"
_NO_COUNTERS = "there are no performance counters to register"

ABSENT = {
    "arp": _NO_NETWORK_SETTINGS,
    "aspnet_regiis": _NO_DOTNET,
    "cacls": _NO_ACL,
    "certutil": "put certificates into the image, or use a tool that brings its own store",
    "dism": _NO_INSTALL,
    "dplaysvr": _NO_DEVICES,
    "dpnsvr": _NO_DEVICES,
    "dpvsetup": _NO_DEVICES,
    "icacls": _NO_ACL,
    "lodctr": _NO_COUNTERS,
    "mofcomp": "WMI knows only the classes that Wine has",
    "mshta": "there is no browser to show it",
    "netsh": _NO_NETWORK_SETTINGS,
    "ngen": _NO_DOTNET,
    "pnputil": _NO_DEVICES,
    "powershell": "bring PowerShell 7 (pwsh.exe) in the image, or use cmd",
    "regasm": _NO_DOTNET,
    "regini": "use reg import",
    "regsvcs": _NO_DOTNET,
    "robocopy": "use xcopy",
    "sdbinst": _NO_INSTALL,
    "secedit": "there are no security policies to change",
    "servicemodelreg": _NO_DOTNET,
    "setx": "use reg add for a variable that stays",
    "shutdown": "stop the container from outside",
    "subst": "drives are given to a container from outside",
    "unlodctr": _NO_COUNTERS,
    "wevtutil": "there is no event log",
}
"""Programs that do nothing in Wine and mostly say that all went well, and why they are not here."""


def absent_sentence(name: str) -> str:
    return f"{name} is not in this base: {ABSENT[name]}.\r\n"


def recipe_digest(programs: Mapping[str, bytes], *, with_32bit: bool) -> str:
    """Of everything here, and of winpod's programs that a base gets."""
    tables: dict[str, Any] = {
        name: value
        for name, value in globals().items()
        if name.isupper() and name[0] != "_" and name != "USERS"
    }
    digests = {name: hashlib.sha256(program).hexdigest() for name, program in programs.items()}
    tables |= {"with_32bit": with_32bit, "programs": digests}
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()

"""The recipe of the Wine base, as tables: packages, kept files, disabled services, stub programs.

The content of a base is determined by these tables and the programs in `winpod.native`. Their
digest is part of a base's id, so a base of another recipe is never mistaken for a current one.
`recipe_digest` hashes the public constants by name and value: changing either rebuilds every base.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from winpod.windows.users import USERS

SUITE = "trixie"
"""Debian release with Wine 10; programs built with Go 1.22 or newer do not start on Wine 8."""

PACKAGES = ("wine64", "ca-certificates", "dash", "libc-bin")

LIBRARIES = "usr/lib/x86_64-linux-gnu"
WINE = f"{LIBRARIES}/wine"
WINDOWS_FILES = {"x86_64-windows": "system32", "i386-windows": "syswow64"}
"""Directories of Wine's Windows files, and the directory of a prefix each is copied to."""

ZLIB = {
    "x86_64-windows": "usr/x86_64-w64-mingw32/lib/zlib1.dll",
    "i386-windows": "usr/i686-w64-mingw32/lib/zlib1.dll",
}
"""zlib, which Debian's user32.dll is linked to and finds only in Wine's own directory."""

CONTAINER_ETC_FILES = {
    "hosts": "/prefix/drive_c/windows/system32/drivers/etc/hosts",
    "resolv.conf": "/prefix/resolv.conf",
}
"""Files of /etc that link into the container: Windows' hosts file and the pod's resolv.conf."""

HOSTS = "127.0.0.1 localhost\r\n::1 localhost\r\n"
"""Content of the hosts file. Windows resolves localhost without an entry; Wine does not."""

FONT_CACHE = "var/cache/fontconfig"
"""Fontconfig cache, so that a boot does not have to scan the fonts."""

MOUNT_POINTS = ("proc", "sys", "run", "tmp", "root", "dev", "prefix", "winpod")
"""Mount points of a container, created in advance because its rootfs is read-only."""

KEPT_PATHS = (
    "etc/fonts",
    "etc/gss",
    "etc/ssl",
    f"{LIBRARIES}/krb5",
    WINE,
    "usr/lib/locale/C.utf8",  # Wine needs it for file names that are not ASCII
    "usr/lib/wine",
    "usr/share/fontconfig",
    "usr/share/fonts",
    "usr/share/wine",
)
"""Directories of the Debian tree to keep, besides libraries and copyright files."""

UNUSED_MODULES = (
    "gphoto2.so",
    "winealsa.so",
    "winedmo.so",
    "winegstreamer.so",
    "winepulse.so",
)
"""Wine's Unix modules for cameras, sound and video: 140 MB including their libraries."""

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
"""Libraries that Wine loads with dlopen, which the dynamic linker does not list."""

DISABLED_SERVICES = (
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
"""Services for devices that containers do not have, and services that Wine only stubs."""

FAKE_DEVICES = tuple(
    rf"System\CurrentControlSet\Enum\{bus}" for bus in (r"ROOT\WINE", "WINEBUS", "HID")
)
"""Devices that Wine fakes. Every boot starts their services, even disabled ones."""

MACHINE_VALUES = {
    r"Software\Microsoft\Windows NT\CurrentVersion\AeDebug": {"Debugger": ""},
    r"Software\Wow6432Node\Microsoft\Windows NT\CurrentVersion\AeDebug": {"Debugger": ""},
}
"""Disable Wine's crash debugger: it would wait for a user to close its window."""

USER_VALUES = {r"Software\Wine\Drivers": {"Graphics": "null", "Audio": ""}}
"""Do not probe for a display or sound."""

OWN_PROGRAMS = ("tar.exe",)
"""winpod's replacements for Windows programs that Wine lacks. Those of an image take precedence."""

REVISION = 1
"""Incremented when a build step changes its behaviour."""

ACCOUNTS = {user.name: user.uid for user in USERS}
"""Users of Windows containers. Wine takes the user name from the Linux owner of the prefix."""

_NO_ACL = "Wine keeps no access lists, so nothing can be granted or taken away"
_NO_NETWORK_SETTINGS = "the network of a container is set from outside"
_NO_INSTALL = "Windows features and updates cannot be added to this base"
_NO_DOTNET = "there is no .NET Framework; .NET 5 and newer bring their own runtime"
_NO_DEVICES = "a container has no devices of its own"
_NO_COUNTERS = "there are no performance counters to register"

STUB_PROGRAMS = {
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
"""Programs that Wine only stubs, mostly exiting with 0, and the message of winpod's own stub."""


def stub_message(name: str) -> str:
    return f"{name} is not in this base: {STUB_PROGRAMS[name]}.\r\n"


def recipe_digest(programs: Mapping[str, bytes], *, with_32bit: bool) -> str:
    """Return the digest of all tables of this module and of winpod's programs in a base."""
    tables: dict[str, Any] = {
        name: value
        for name, value in globals().items()
        if name.isupper() and name[0] != "_" and name != "USERS"
    }
    digests = {name: hashlib.sha256(program).hexdigest() for name, program in programs.items()}
    tables |= {"with_32bit": with_32bit, "programs": digests}
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()

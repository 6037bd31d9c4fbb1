"""The prefix of a base: Wine's C: drive and registry, made once and then only copied from.

Wine makes it itself, in a container; afterwards what no container needs is switched off in the
registry, programs that only pretend are replaced by ones that say so, and winpod's own are added.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from winpod.images.base_container import run_contained
from winpod.images.base_errors import BaseFailed
from winpod.images.base_recipe import (
    ABSENT,
    HOSTS,
    MACHINE_VALUES,
    MADE_UP_DEVICES,
    OWN_PROGRAMS,
    SERVICES_OFF,
    USER_VALUES,
    WINDOWS_FILES,
    WINE,
    ZLIB,
    absent_sentence,
)
from winpod.images.wine_registry import RegistryFile, Value, WineRegistry

TIMEOUT = 300.0
UPDATES = ".update-timestamp"
_BOOT = "wine64 wineboot --init && wineserver --wait"
_ABSENT = "absent.exe"
_MARK = b"@winpod:sentence@"
_ROOM = 512
_DISABLED = 4
_HOSTS_FILE = "drive_c/windows/system32/drivers/etc/hosts"
_REGISTRY = ("system.reg", "user.reg", "userdef.reg")


def absent_program() -> bytes:
    """The program that stands for those that are not there, its sentence still missing."""
    return _program(_ABSENT)


def windows_programs() -> dict[str, bytes]:
    """Every program of winpod's that decides what a base is like."""
    return {name: _program(name) for name in (_ABSENT, *OWN_PROGRAMS)}


def _program(name: str) -> bytes:
    try:
        return (files("winpod") / "native" / name).read_bytes()
    except OSError:
        raise BaseFailed(
            "This winpod was installed without its Windows programs.",
            "Install it again with pip, or run: python native/build.py",
        ) from None


def make_prefix(rootfs: Path, prefix: Path, workspace: Path) -> None:
    """Has Wine make its prefix, and waits until the registry is written."""
    for folder, place in WINDOWS_FILES.items():
        library = rootfs / WINE / folder / Path(ZLIB[folder]).name
        if library.exists():
            (prefix / "drive_c/windows" / place).mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, prefix / "drive_c/windows" / place)
    done = run_contained(rootfs, prefix, ["/bin/sh", "-c", _BOOT], workspace, seconds=TIMEOUT)
    made = all((prefix / name).is_file() for name in _REGISTRY)
    if done.code != 0 or not made:
        how = f"took longer than {TIMEOUT:.0f} s" if done.timed_out else f"ended with {done.code}"
        raise BaseFailed(f"Wine could not make its prefix: it {how}. {done.output[-500:].strip()}")


def settle_prefix(prefix: Path) -> None:
    """Leaves only what containers share: no service or device, no drive but C:, no updates."""
    registry = WineRegistry.read(prefix)
    for service in SERVICES_OFF:
        key = rf"System\CurrentControlSet\Services\{service}"
        if registry.system.has_key(key):
            registry.system.set(key, {"Start": Value.dword(_DISABLED)})
    for devices in MADE_UP_DEVICES:
        registry.system.remove_key(devices)
    _set_texts(registry.system, MACHINE_VALUES)
    for user in (registry.user, registry.default_user):
        _set_texts(user, USER_VALUES)
    for name, content in registry.files().items():
        (prefix / name).write_bytes(content)
    (prefix / UPDATES).write_text("disable\n")
    (prefix / _HOSTS_FILE).parent.mkdir(parents=True, exist_ok=True)
    (prefix / _HOSTS_FILE).write_bytes(HOSTS.encode())
    for drive in (prefix / "dosdevices").iterdir():
        if drive.name != "c:":
            drive.unlink()
    (prefix / "wineserver").unlink(missing_ok=True)  # where the server listened that made it


def _set_texts(file: RegistryFile, values: Mapping[str, Mapping[str, str]]) -> None:
    for key, texts in values.items():
        file.set(key, {name: Value.text(text) for name, text in texts.items()})


def replace_absent(rootfs: Path, drive_c: Path) -> list[str]:
    """Puts a program that fails with a sentence where Wine has one that does nothing.

    Wine's own must go: it would be preferred even to one that an image brings.
    """
    program = absent_program()
    for folder in WINDOWS_FILES:
        for name in ABSENT:
            (rootfs / WINE / folder / f"{name}.exe").unlink(missing_ok=True)
    replaced: set[str] = set()
    for place in list(drive_c.rglob("*.exe")):
        name = place.stem.lower()
        if name in ABSENT:
            place.unlink()  # it may be linked to other places
            place.write_bytes(with_sentence(program, absent_sentence(name)))
            replaced.add(name)
    return sorted(replaced)


def add_own(drive_c: Path) -> None:
    """Puts winpod's own programs where Windows has such."""
    for folder in WINDOWS_FILES.values():
        place = drive_c / "windows" / folder
        if place.is_dir():
            for name in OWN_PROGRAMS:
                (place / name).write_bytes(_program(name))


def with_sentence(program: bytes, sentence: str) -> bytes:
    room = _MARK.ljust(_ROOM, b"\0")
    text = sentence.encode("ascii")
    if program.count(room) != 1 or len(text) >= _ROOM:
        raise BaseFailed("The program that stands for absent ones has no place for its sentence.")
    return program.replace(room, text.ljust(_ROOM, b"\0"))

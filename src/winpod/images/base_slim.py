"""What makes a Debian tree small: each step is safe by itself and proven by the program tests.

A library stays if something that stays needs it, as the dynamic linker itself says; nothing is
decided by name. Drivers of Wine stay together: a tree without them has been seen to start
processes without end.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from winpod.images import pe
from winpod.images.base_container import run_contained
from winpod.images.base_errors import BaseFailed
from winpod.images.base_recipe import (
    ACCOUNTS,
    FONT_CACHE,
    KEPT,
    LIBRARIES,
    LOADED_LIBRARIES,
    OF_THE_CONTAINER,
    PLACES,
    UNUSED_MODULES,
    WINDOWS_FILES,
    WINE,
    ZLIB,
)

LOADER = "usr/lib64/ld-linux-x86-64.so.2"
SHELL = "usr/bin/sh"
_LISTED = re.compile(r"(?:=> )?(/\S+) \(0x")


def complete_tree(rootfs: Path) -> None:
    """What a Debian tree has only after its packages were configured, as far as Wine needs it."""
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (rootfs / name).exists():
            (rootfs / name).symlink_to(f"usr/{name}")
    for name in PLACES:
        (rootfs / name).mkdir(exist_ok=True)
    accounts = (f"{name}:x:{uid}:{uid}::/root:/bin/false\n" for name, uid in ACCOUNTS.items())
    (rootfs / "etc/passwd").write_text("".join(accounts))
    (rootfs / "etc/group").write_text("root:x:0:\n")
    (rootfs / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    for name, target in OF_THE_CONTAINER.items():
        (rootfs / "etc" / name).unlink(missing_ok=True)
        (rootfs / "etc" / name).symlink_to(target)
    _write_certificates(rootfs)
    server = rootfs / "usr/lib/wine/wineserver"
    server.unlink()
    server.symlink_to("wineserver64")  # instead of a script that looks for it on every start
    for folder, library in ZLIB.items():
        if any((rootfs / WINE / folder).glob("*.dll")):
            shutil.copy2(rootfs / library, rootfs / WINE / folder)


def cache_fonts(rootfs: Path, prefix: Path, workspace: Path) -> None:
    """As Debian does on installation; the container may write to the prefix only."""
    place = prefix / "fontconfig"
    place.mkdir()
    where = {"XDG_CACHE_HOME": "/prefix"}
    command = ["/usr/bin/fc-cache"]
    done = run_contained(rootfs, prefix, command, workspace, seconds=60, environment=where)
    if done.code != 0:
        raise BaseFailed(f"The base's fonts cannot be listed: {done.output[-500:]}")
    shutil.copytree(place, rootfs / FONT_CACHE, dirs_exist_ok=True)
    shutil.rmtree(place)


def keep_only_needed(rootfs: Path, prefix: Path, workspace: Path) -> None:
    """Everything goes that is neither in the table nor needed by what is."""
    for name in UNUSED_MODULES:
        (rootfs / WINE / "x86_64-unix" / name).unlink()
    kept = {rootfs / LOADER, rootfs / SHELL, (rootfs / SHELL).resolve()}
    kept |= _needed_libraries(rootfs, prefix, workspace)
    kept |= set((rootfs / "usr/share/doc").glob("*/copyright"))
    kept = {Path(os.path.realpath(path.parent)) / path.name for path in kept}
    _prune(rootfs / "usr", kept, tuple(rootfs / path for path in KEPT))
    _prune(
        rootfs / "etc",
        {rootfs / "etc" / name for name in ("passwd", "group", "nsswitch.conf", *OF_THE_CONTAINER)},
        tuple(rootfs / path for path in KEPT),
    )
    _prune(rootfs / "var", set(), (rootfs / FONT_CACHE,))
    for entry in (rootfs / "dev").iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def strip_windows_files(rootfs: Path) -> None:
    for folder in WINDOWS_FILES:
        for file in (rootfs / WINE / folder).iterdir():
            before = file.read_bytes()
            after = pe.without_debugging(before)
            if len(after) < len(before):
                file.unlink()
                file.write_bytes(after)


def share_windows_files(rootfs: Path, drive_c: Path) -> None:
    """One copy on the disk of what Wine copied into the prefix unchanged."""
    own = [rootfs / WINE / folder for folder in WINDOWS_FILES]
    for file in sorted(drive_c.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        for folder in own:
            same = folder / file.name
            if same.is_file() and filecmp.cmp(same, file, shallow=False):
                _replace_by_link(file, same)
                break


def disk_usage(*folders: Path) -> int:
    """Bytes on the disk, what is linked in several places counted once."""
    seen: dict[tuple[int, int], int] = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def _needed_libraries(rootfs: Path, prefix: Path, workspace: Path) -> set[Path]:
    """Libraries of all that stays, links by which they are found included."""
    programs = ["/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64", f"/{SHELL}"]
    modules = sorted((rootfs / WINE / "x86_64-unix").glob("*.so"))
    programs += [f"/{path.relative_to(rootfs)}" for path in modules]
    loaded = [f"/{LIBRARIES}/{name}" for name in LOADED_LIBRARIES]
    plugins = sorted((rootfs / LIBRARIES / "krb5").rglob("*.so"))
    programs += loaded + [f"/{path.relative_to(rootfs)}" for path in plugins]
    script = f'for one in "$@"; do /{LOADER} --list "$one" || exit; done'
    command = ["/bin/sh", "-c", script, "sh", *programs]
    beside = {"LD_LIBRARY_PATH": f"/{WINE}/x86_64-unix"}  # Wine's modules need one another
    listed = run_contained(rootfs, prefix, command, workspace, seconds=60, environment=beside)
    if listed.code != 0:
        raise BaseFailed(f"The libraries that Wine needs cannot be told: {listed.output[-500:]}")
    found = {*loaded, *_LISTED.findall(listed.output)}
    return {step for path in found for step in _links(rootfs, path)}


def _links(rootfs: Path, path: str) -> Iterator[Path]:
    """A file and the links on the way to it."""
    current = rootfs / path.lstrip("/")
    while current.is_symlink():
        yield current
        target = str(current.readlink())
        current = rootfs / target.lstrip("/") if target[0] == "/" else current.parent / target
    yield current


def _prune(folder: Path, kept: set[Path], kept_folders: tuple[Path, ...]) -> None:
    """Removes all below a directory but the given files and directories."""
    for entry in folder.iterdir():
        if entry in kept or entry in kept_folders:
            continue
        if entry.is_dir() and not entry.is_symlink():
            _prune(entry, kept, kept_folders)
            if not any(entry.iterdir()):
                entry.rmdir()
        else:
            entry.unlink()


def _replace_by_link(file: Path, same: Path) -> None:
    temporary = file.with_name(f".{file.name}.link")
    os.link(same, temporary)
    temporary.replace(file)


def _write_certificates(rootfs: Path) -> None:
    """The one file in which Wine looks for whom to trust; Debian makes it on installation."""
    folder = rootfs / "etc/ssl/certs"
    folder.mkdir(parents=True, exist_ok=True)
    single = sorted((rootfs / "usr/share/ca-certificates").rglob("*.crt"))
    (folder / "ca-certificates.crt").write_text("".join(path.read_text() for path in single))

"""The Wine base: the Windows that stands in for Microsoft's base layers.

A base is a directory of two trees, `rootfs` (Linux with Wine) and `prefix` (drive C: and the
registry), that containers only read. It is built on the machine that uses it, from Debian's
packages. Its name is a digest of the recipe and of the version of every package in it. A build
happens in a directory whose name begins with a dot and is renamed when it is whole; whatever else
begins with a dot is left of a build that died, and is swept by the next.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from winpod.images import base_prefix, base_slim, pe
from winpod.images.base_container import remove_bundle, require_tools
from winpod.images.base_errors import BaseFailed, BaseInUse, CannotRun
from winpod.images.base_packages import Mirrors, choose_mirrors, unpack_packages
from winpod.images.base_recipe import recipe_digest
from winpod.images.errors import NoSpace
from winpod.images.hives import compose_registry
from winpod.images.store_lock import FileLock
from winpod.windows.builds import Build
from winpod.windows.errors import NotFound, PermissionDenied

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "tar": "tar",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "runc": "runc",
}
ROOM = 1_600_000_000
_BUILDING, _REMOVING, _LOCK = ".building-", ".removing-", ".lock"
_RECORD = "base.json"
_SHORT = 12


@dataclass(frozen=True, slots=True)
class Step:
    """A named part of a build, and how long it takes of the whole."""

    name: str
    share: int


WAIT = Step("waiting for another build", 0)
PACKAGES = Step("downloading and unpacking Debian packages", 60)
LIBRARIES = Step("keeping what Wine needs", 5)
DEBUGGING = Step("removing debugging data", 3)
PREFIX = Step("making the Windows drive and registry", 25)
SETTINGS = Step("switching off what containers do not need", 2)
PROGRAMS = Step("replacing programs that only pretend", 1)
SHARING = Step("sharing files between the trees", 2)
SAVING = Step("saving", 2)
STEPS = (PACKAGES, LIBRARIES, DEBUGGING, PREFIX, SETTINGS, PROGRAMS, SHARING, SAVING)

Progress = Callable[[Step], None]


@dataclass(frozen=True, slots=True)
class Base:
    """One base that is whole."""

    path: Path
    built: datetime
    recipe: str
    with_32bit: bool
    size: int
    packages: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def short_id(self) -> str:
        return self.id[:_SHORT]

    @property
    def rootfs(self) -> Path:
        return self.path / "rootfs"

    @property
    def prefix(self) -> Path:
        return self.path / "prefix"

    @property
    def drive_c(self) -> Path:
        return self.prefix / "drive_c"

    @property
    def wine(self) -> str:
        """Wine's version, as Debian counts: `10.0~repack-6`."""
        return self.packages.get("wine64", "")

    @property
    def is_current(self) -> bool:
        """Whether this winpod would build the same one, newer packages aside."""
        programs = base_prefix.windows_programs()
        return self.recipe == recipe_digest(programs, with_32bit=self.with_32bit)


def build_base(
    root: Path,
    *,
    with_32bit: bool = False,
    refresh: bool = False,
    mirror: str = "",
    progress: Progress = lambda _: None,
) -> Base:
    """The base of this recipe: the one that is there, else built; `refresh` builds it anyway."""
    _refuse_unfit_machine()
    require_tools(TOOLS)
    mirrors = choose_mirrors(mirror)
    recipe = recipe_digest(base_prefix.windows_programs(), with_32bit=with_32bit)
    with _out_of_room(root), _locked(root, progress):
        _sweep(root)
        existing = next((base for base in list_bases(root) if base.recipe == recipe), None)
        if existing and not refresh:
            return existing
        return _build(root, recipe, mirrors, with_32bit, progress)


def list_bases(root: Path) -> list[Base]:
    """Every base that is whole, the newest first."""
    try:
        folders = [path for path in (root / "bases").iterdir() if path.name[0] != "."]
    except FileNotFoundError:
        return []
    found = [base for base in map(_read, folders) if base]
    return sorted(found, key=lambda base: base.built, reverse=True)


def find_base(root: Path) -> Base | None:
    """The base that containers get: the newest."""
    return next(iter(list_bases(root)), None)


def remove_base(root: Path, base_id: str = "") -> list[Base]:
    """Removes the base with an id, or its beginning; without one, every base."""
    found = [base for base in list_bases(root) if base.id.startswith(base_id)]
    if not found and base_id:
        raise NotFound(f'There is no base "{base_id}" in {root}.', "winpod base show lists them.")
    if base_id and len(found) > 1:
        raise NotFound(f'"{base_id}" is the beginning of more than one id.', "Write more of it.")
    with _locked(root, lambda _: None):
        for base in found:
            _refuse_if_mounted(base)
        for base in found:
            base.path.rename(base.path.with_name(f"{_REMOVING}{base.id}"))
        _sweep(root)
    return found


def prepare_prefix(base: Base, build: Build, layers: Sequence[Path], target: Path) -> list[Path]:
    """A prefix for a container of a Windows build: all of it but the content of its drive C:.

    `layers` are the unpacked layers of its image, the lowest first; `target` is created, or empty.
    The drive is mounted on its `drive_c`: an overlay of the layers and the base's own. What is
    written is returned.
    """
    registry = _registry_files(base.prefix, build, tuple(layers))
    (target / "drive_c").mkdir(parents=True, exist_ok=True)
    (target / "dosdevices").mkdir(exist_ok=True)
    (target / "dosdevices/c:").symlink_to("../drive_c")
    written = {**registry, base_prefix.UPDATES: b"disable\n"}
    for name, content in written.items():
        (target / name).write_bytes(content)
    return [target / name for name in written]


@lru_cache(maxsize=1)
def _registry_files(prefix: Path, build: Build, layers: tuple[Path, ...]) -> Mapping[str, bytes]:
    """Those that many prefixes in a row begin with."""
    return compose_registry(prefix, build, layers).files()


def refuse_foreign_program(base: Base, program: Path, name: str = "") -> None:
    """Says why a program cannot start, before Wine fails with a number."""
    name = name or program.name
    machine = pe.machine_of(program)
    if machine is None:
        raise CannotRun(f"{name} is not a Windows program.")
    if pe.is_managed(program):
        raise CannotRun(
            f"{name} is a program for .NET Framework, which the Wine base does not have.",
            "Publish it for .NET 5 or newer, with its runtime: dotnet publish --self-contained.",
        )
    if machine == pe.Machine.I386 and not base.with_32bit:
        raise CannotRun(
            f"{name} is a 32-bit program, and the Wine base has only 64-bit Windows.",
            "Build a base with both: winpod base build --with-32bit",
        )
    if machine not in (pe.Machine.I386, pe.Machine.AMD64):
        known = {one.value: one.name for one in pe.Machine}
        machine_name = known.get(machine, f"machine {machine:#x}")
        raise CannotRun(
            f"{name} is a program for {machine_name}, and the Wine base is for AMD64.",
            "Use an image for amd64.",
        )


def _build(root: Path, recipe: str, mirrors: Mirrors, with_32bit: bool, progress: Progress) -> Base:
    work = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=root / "bases"))
    rootfs, prefix = work / "rootfs", work / "prefix"
    try:
        (prefix / "drive_c").mkdir(parents=True)
        progress(PACKAGES)
        packages = unpack_packages(rootfs, mirrors, with_32bit=with_32bit)
        progress(LIBRARIES)
        base_slim.complete_tree(rootfs)
        base_slim.cache_fonts(rootfs, prefix, work)
        base_slim.keep_only_needed(rootfs, prefix, work)
        progress(DEBUGGING)
        base_slim.strip_windows_files(rootfs)
        progress(PREFIX)
        base_prefix.make_prefix(rootfs, prefix, work)
        progress(SETTINGS)
        base_prefix.settle_prefix(prefix)
        progress(PROGRAMS)
        absent = base_prefix.replace_absent(rootfs, prefix / "drive_c")
        base_prefix.add_own(prefix / "drive_c")
        progress(SHARING)
        base_slim.share_windows_files(rootfs, prefix / "drive_c")
        progress(SAVING)
        record = {
            "built": datetime.now(UTC).isoformat(timespec="seconds"),
            "recipe": recipe,
            "with32Bit": with_32bit,
            "size": base_slim.disk_usage(rootfs, prefix),
            "packages": packages,
            "absent": absent,
            "sources": mirrors.sources(with_32bit=with_32bit),
        }
        return _save(work, record)
    except BaseException:
        _remove_tree(work)
        raise


def _save(work: Path, record: Mapping[str, Any]) -> Base:
    """Makes a finished build the base of its id; one that is there already is the same."""
    decisive = {"recipe": record["recipe"], "packages": record["packages"]}
    name = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    (work / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
    work.chmod(0o755)
    _flush(work)
    final = work.with_name(name)
    if final.exists():
        _remove_tree(work)
    else:
        work.rename(final)
    base = _read(final)
    if base is None:
        raise BaseFailed(f"The base {final} cannot be read.", "Remove it and build it again.")
    return base


def _flush(path: Path) -> None:
    """Everything to the disk, so that a base that has its name is whole after a power cut too."""
    subprocess.run(["sync", "--file-system", str(path)], check=False)  # noqa: S603, S607


def _read(path: Path) -> Base | None:
    """The base in a directory, or None where there is none."""
    try:
        record = json.loads((path / _RECORD).read_bytes())
        return Base(
            path,
            datetime.fromisoformat(record["built"]),
            str(record["recipe"]),
            bool(record["with32Bit"]),
            int(record["size"]),
            dict(record["packages"]),
            tuple(record["absent"]),
            tuple(record["sources"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sweep(root: Path) -> None:
    """Removes what is left of builds and removals that died. Only under the lock."""
    for entry in (root / "bases").iterdir():
        if entry.name.startswith((_BUILDING, _REMOVING)):
            _remove_tree(entry)


def _remove_tree(path: Path) -> None:
    for bundle in path.glob("container-*"):
        remove_bundle(bundle)
    shutil.rmtree(path)


@contextmanager
def _locked(root: Path, progress: Progress) -> Iterator[None]:
    """One build or removal at a time; it ends with the process that has it."""
    folder = root / "bases"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock.try_take(folder / _LOCK)
        if lock is None:
            progress(WAIT)
            lock = FileLock.take(folder / _LOCK)
    except PermissionError:
        raise PermissionDenied(
            f"{folder} cannot be written by this user.", "Use sudo, or choose another --root."
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _out_of_room(root: Path) -> Iterator[None]:
    """Turns a full disk, seen before or met on the way, into a sentence."""
    place = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    advice = f"Free {ROOM / 1e9:.1f} GB, or choose another place with --root."
    if free < ROOM:
        raise NoSpace(f"{place} has only {free / 1e9:.1f} GB left for a base.", advice)
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpace(f"The disk of {root} became full while the base was built.", advice) from None


def _refuse_unfit_machine() -> None:
    if os.geteuid() != 0:
        raise PermissionDenied(
            "A base can only be built by root: it is made of files that root owns, in a container.",
            "Use sudo.",
        )
    if platform.machine() != "x86_64":
        raise BaseFailed(
            f"A base runs programs for x86_64, and this machine is {platform.machine()}.",
            "Use an x86_64 machine.",
        )


def _refuse_if_mounted(base: Base) -> None:
    """A base whose files are mounted somewhere is in use, whoever uses it."""
    needle = str(base.path.resolve())
    users: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (process / "mountinfo").read_text():
                users.add(process.name)
        except OSError:
            continue
    if users:
        raise BaseInUse(
            f"The base {base.short_id} is in use by {len(users)} processes.",
            "Stop the containers first.",
        )

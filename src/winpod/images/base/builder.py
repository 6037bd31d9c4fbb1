"""Builder of the Wine base, which replaces Microsoft's base layers.

A base is a directory with two trees that containers use read-only: `rootfs` (Linux with Wine) and
`prefix` (drive C: and the registry, created by Wine in a container and then adjusted). It is built
from Debian packages on the machine that uses it. Its id is a digest of the recipe and of all
package versions.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from winpod.artifacts import ArtifactDirectory, artifact_id
from winpod.clock import utc_now
from winpod.errors import NotFound, PermissionDenied
from winpod.files import FileLock, remove_tree, tree_usage
from winpod.images import pe
from winpod.images.base import rootfs_builder
from winpod.images.base.build_container import (
    find_oci_runtime,
    remove_bundle,
    require_tools,
    run_in_container,
)
from winpod.images.base.recipe import (
    DISABLED_SERVICES,
    FAKE_DEVICES,
    HOSTS,
    MACHINE_VALUES,
    OWN_PROGRAMS,
    STUB_PROGRAMS,
    USER_VALUES,
    WINDOWS_FILES,
    WINE,
    ZLIB,
    recipe_digest,
    stub_message,
)
from winpod.images.base.rootfs_builder import Mirrors, choose_mirrors, unpack_packages
from winpod.images.errors import BaseBuildFailed, BaseInUse, DiskFull, UnsupportedProgram
from winpod.images.winreg.hives import compose_registry
from winpod.images.winreg.wine_registry import RegistryFile, RegistryValue, WineRegistry
from winpod.windows.builds import Build

TIMEOUT = 300.0
UPDATE_TIMESTAMP = ".update-timestamp"
_BOOT = "wine64 wineboot --init && wineserver --wait"
_STUB = "stub.exe"
_MESSAGE_MARKER = b"@winpod:sentence@"
_MESSAGE_SIZE = 512
_DISABLED = 4
_HOSTS_FILE = "drive_c/windows/system32/drivers/etc/hosts"
_REGISTRY = ("system.reg", "user.reg", "userdef.reg")


def stub_program() -> bytes:
    """Return the stub program, with a placeholder for its message."""
    return _program(_STUB)


def own_windows_programs() -> dict[str, bytes]:
    """Return all of winpod's own programs that go into a base."""
    return {name: _program(name) for name in (_STUB, *OWN_PROGRAMS)}


def _program(name: str) -> bytes:
    try:
        return (files("winpod") / "native" / name).read_bytes()
    except OSError:
        raise BaseBuildFailed(
            "This winpod was installed without its Windows programs.",
            "Install it again with pip, or run: python native/build.py",
        ) from None


def make_prefix(rootfs: Path, prefix: Path, workspace: Path) -> None:
    """Let Wine create its prefix, and wait until the registry is written."""
    for source, destination in WINDOWS_FILES.items():
        library = rootfs / WINE / source / Path(ZLIB[source]).name
        if library.exists():
            (prefix / "drive_c/windows" / destination).mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, prefix / "drive_c/windows" / destination)
    result = run_in_container(rootfs, prefix, ["/bin/sh", "-c", _BOOT], workspace, seconds=TIMEOUT)
    has_registry = all((prefix / name).is_file() for name in _REGISTRY)
    if result.code != 0 or not has_registry:
        reason = (
            f"timed out after {TIMEOUT:.0f} s"
            if result.timed_out
            else f"exited with code {result.code}"
        )
        raise BaseBuildFailed(
            f"Wine failed to create its prefix: it {reason}. {result.output[-500:].strip()}"
        )


def finalize_prefix(prefix: Path) -> None:
    """Disable services, fake devices, drives other than C: and prefix updates."""
    registry = WineRegistry.read(prefix)
    for service in DISABLED_SERVICES:
        key = rf"System\CurrentControlSet\Services\{service}"
        if registry.system.has_key(key):
            registry.system.set(key, {"Start": RegistryValue.dword(_DISABLED)})
    for devices in FAKE_DEVICES:
        registry.system.remove_key(devices)
    _set_texts(registry.system, MACHINE_VALUES)
    for user in (registry.user, registry.default_user):
        _set_texts(user, USER_VALUES)
    for name, content in registry.files().items():
        (prefix / name).write_bytes(content)
    (prefix / UPDATE_TIMESTAMP).write_text("disable\n")
    (prefix / _HOSTS_FILE).parent.mkdir(parents=True, exist_ok=True)
    (prefix / _HOSTS_FILE).write_bytes(HOSTS.encode())
    for drive in (prefix / "dosdevices").iterdir():
        if drive.name != "c:":
            drive.unlink()
    (prefix / "wineserver").unlink(
        missing_ok=True
    )  # socket directory of the wineserver that created it


def _set_texts(file: RegistryFile, values: Mapping[str, Mapping[str, str]]) -> None:
    for key, texts in values.items():
        file.set(key, {name: RegistryValue.text(text) for name, text in texts.items()})


def install_stubs(rootfs: Path, drive_c: Path) -> list[str]:
    """Replace programs that do nothing in Wine by a stub that fails with a message.

    Wine's builtin has to be removed as well: it would take precedence even over one of an image.
    """
    program = stub_program()
    for folder in WINDOWS_FILES:
        for name in STUB_PROGRAMS:
            (rootfs / WINE / folder / f"{name}.exe").unlink(missing_ok=True)
    replaced: set[str] = set()
    for path in list(drive_c.rglob("*.exe")):
        name = path.stem.lower()
        if name in STUB_PROGRAMS:
            path.unlink()  # it may have other hard links
            path.write_bytes(with_stub_message(program, stub_message(name)))
            replaced.add(name)
    return sorted(replaced)


def install_own_programs(drive_c: Path) -> None:
    """Install winpod's own programs into the system directories."""
    for folder in WINDOWS_FILES.values():
        directory = drive_c / "windows" / folder
        if directory.is_dir():
            for name in OWN_PROGRAMS:
                (directory / name).write_bytes(_program(name))


def with_stub_message(program: bytes, message: str) -> bytes:
    placeholder = _MESSAGE_MARKER.ljust(_MESSAGE_SIZE, b"\0")
    text = message.encode("ascii")
    if program.count(placeholder) != 1 or len(text) >= _MESSAGE_SIZE:
        raise BaseBuildFailed(f"The stub program {_STUB} has no placeholder for its message.")
    return program.replace(placeholder, text.ljust(_MESSAGE_SIZE, b"\0"))


TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "tar": "tar",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
REQUIRED_SPACE = 1_600_000_000
_RECORD = "base.json"
_SHORT = 12


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A step of a build, and its share of the build time in percent."""

    name: str
    share: int


WAIT = BuildStep("waiting for another build", 0)
PACKAGES = BuildStep("downloading and unpacking Debian packages", 60)
LIBRARIES = BuildStep("removing files that Wine does not need", 5)
DEBUGGING = BuildStep("removing debugging data", 3)
PREFIX = BuildStep("creating the Windows drive and registry", 25)
SETTINGS = BuildStep("disabling services and devices", 2)
PROGRAMS = BuildStep("replacing stub programs", 1)
SHARING = BuildStep("hard-linking files that both trees have", 2)
SAVING = BuildStep("saving", 2)
STEPS = (PACKAGES, LIBRARIES, DEBUGGING, PREFIX, SETTINGS, PROGRAMS, SHARING, SAVING)

Progress = Callable[[BuildStep], None]


@dataclass(frozen=True, slots=True)
class Base:
    """A complete base."""

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
        """Debian version of Wine, such as `10.0~repack-6`."""
        return self.packages.get("wine64", "")

    @property
    def is_current(self) -> bool:
        """Whether the base has the current recipe, regardless of package versions."""
        programs = own_windows_programs()
        return self.recipe == recipe_digest(programs, with_32bit=self.with_32bit)


def build_base(
    root: Path,
    *,
    with_32bit: bool = False,
    refresh: bool = False,
    mirror: str = "",
    progress: Progress = lambda _: None,
) -> Base:
    """Return the base of this recipe, building it if missing or if `refresh` is set."""
    _check_host()
    require_tools(TOOLS)
    find_oci_runtime()
    mirrors = choose_mirrors(mirror)
    recipe = recipe_digest(own_windows_programs(), with_32bit=with_32bit)
    artifacts = _artifacts(root)
    with _disk_full_as_error(root), _lock(artifacts, progress):
        artifacts.sweep()
        existing = next((base for base in list_bases(root) if base.recipe == recipe), None)
        if existing and not refresh:
            return existing
        return _build(artifacts, recipe, mirrors, with_32bit, progress)


def list_bases(root: Path) -> list[Base]:
    """Return all complete bases, newest first."""
    bases = [base for base in map(_read, _artifacts(root).complete()) if base]
    return sorted(bases, key=lambda base: base.built, reverse=True)


def latest_base(root: Path) -> Base | None:
    """Return the newest base, which new containers use."""
    return next(iter(list_bases(root)), None)


def remove_base(root: Path, base_id: str = "") -> list[Base]:
    """Remove the base with an id or unique id prefix, or every base if it is empty."""
    selected = [base for base in list_bases(root) if base.id.startswith(base_id)]
    if not selected and base_id:
        raise NotFound(f'There is no base "{base_id}" in {root}.', "winpod base show lists them.")
    if base_id and len(selected) > 1:
        raise NotFound(f'"{base_id}" is a prefix of more than one base id.', "Use a longer prefix.")
    artifacts = _artifacts(root)
    with _lock(artifacts, lambda _: None):
        for base in selected:
            _refuse_if_mounted(base)
        artifacts.remove(base.path for base in selected)
    return selected


def prepare_prefix(base: Base, build: Build, layers: Sequence[Path], target: Path) -> list[Path]:
    """Write a container's Wine prefix, except for the content of drive C:.

    `layers` are the unpacked layers of its image, lowest first; `target` is created, or empty.
    The caller mounts drive C:, an overlay of the base's drive and the layers, on `drive_c`.
    Return the written files.
    """
    registry = _registry_files(base.prefix, build, tuple(layers))
    (target / "drive_c").mkdir(parents=True, exist_ok=True)
    (target / "dosdevices").mkdir(exist_ok=True)
    (target / "dosdevices/c:").symlink_to("../drive_c")
    written = {**registry, UPDATE_TIMESTAMP: b"disable\n"}
    for name, content in written.items():
        (target / name).write_bytes(content)
    return [target / name for name in written]


@lru_cache(maxsize=1)
def _registry_files(prefix: Path, build: Build, layers: tuple[Path, ...]) -> Mapping[str, bytes]:
    """Return the registry files; cached, because successive containers often share an image."""
    return compose_registry(prefix, build, layers).files()


def refuse_unsupported_program(base: Base, program: Path, name: str = "") -> None:
    """Raise UnsupportedProgram if the base cannot run a program; Wine only exits with a code."""
    name = name or program.name
    machine = pe.pe_machine(program)
    if machine is None:
        raise UnsupportedProgram(f"{name} is not a Windows program.")
    if pe.is_dotnet(program):
        raise UnsupportedProgram(
            f"{name} is a program for .NET Framework, which the Wine base does not have.",
            "Publish it for .NET 5 or newer, with its runtime: dotnet publish --self-contained.",
        )
    if machine == pe.PeMachine.I386 and not base.with_32bit:
        raise UnsupportedProgram(
            f"{name} is a 32-bit program, and the Wine base has only 64-bit Windows.",
            "Build a base with both: winpod base build --with-32bit",
        )
    if machine not in (pe.PeMachine.I386, pe.PeMachine.AMD64):
        names = {known.value: known.name for known in pe.PeMachine}
        machine_name = names.get(machine, f"machine {machine:#x}")
        raise UnsupportedProgram(
            f"{name} is a program for {machine_name}, and the Wine base is for AMD64.",
            "Use an image for amd64.",
        )


def _build(
    artifacts: ArtifactDirectory,
    recipe: str,
    mirrors: Mirrors,
    with_32bit: bool,
    progress: Progress,
) -> Base:
    with artifacts.building() as work:
        rootfs, prefix = work / "rootfs", work / "prefix"
        (prefix / "drive_c").mkdir(parents=True)
        progress(PACKAGES)
        packages = unpack_packages(rootfs, mirrors, with_32bit=with_32bit)
        progress(LIBRARIES)
        rootfs_builder.complete_tree(rootfs)
        rootfs_builder.cache_fonts(rootfs, prefix, work)
        rootfs_builder.keep_only_needed(rootfs, prefix, work)
        progress(DEBUGGING)
        rootfs_builder.strip_windows_files(rootfs)
        progress(PREFIX)
        make_prefix(rootfs, prefix, work)
        progress(SETTINGS)
        finalize_prefix(prefix)
        progress(PROGRAMS)
        absent = install_stubs(rootfs, prefix / "drive_c")
        install_own_programs(prefix / "drive_c")
        progress(SHARING)
        rootfs_builder.share_windows_files(rootfs, prefix / "drive_c")
        progress(SAVING)
        record = {
            "built": utc_now().isoformat(timespec="seconds"),
            "recipe": recipe,
            "with32Bit": with_32bit,
            "size": tree_usage(rootfs, prefix).bytes,
            "packages": packages,
            "absent": absent,
            "sources": mirrors.sources(with_32bit=with_32bit),
        }
        (work / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        final = artifacts.save(work, artifact_id({"recipe": recipe, "packages": packages}))
    base = _read(final)
    if base is None:
        raise BaseBuildFailed(f"The base {final} cannot be read.", "Remove it and build it again.")
    return base


def _read(path: Path) -> Base | None:
    """Read the base in a directory, or return None if there is none."""
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


def _artifacts(root: Path) -> ArtifactDirectory:
    return ArtifactDirectory(root / "bases", discard=_remove_tree)


def _remove_tree(path: Path) -> None:
    for bundle in path.glob("container-*"):
        remove_bundle(bundle)
    remove_tree(path)


def _lock(artifacts: ArtifactDirectory, progress: Progress) -> FileLock:
    """Take the lock for builds and removals."""
    try:
        return artifacts.lock(on_wait=lambda: progress(WAIT))
    except PermissionError:
        raise PermissionDenied(
            f"{artifacts.path} cannot be written by this user.",
            "Use sudo, or choose another --root.",
        ) from None


@contextmanager
def _disk_full_as_error(root: Path) -> Iterator[None]:
    """Raise DiskFull if space is insufficient in advance or runs out during the build."""
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    advice = f"Free {REQUIRED_SPACE / 1e9:.1f} GB, or choose another directory with --root."
    if free < REQUIRED_SPACE:
        raise DiskFull(
            f"{existing} has only {free / 1e9:.1f} GB free, which is too little for a base.", advice
        )
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"The disk of {root} became full while the base was built.", advice
        ) from None


def _check_host() -> None:
    if os.geteuid() != 0:
        raise PermissionDenied(
            "Building a base requires root: it runs a container and creates files owned by root.",
            "Use sudo.",
        )
    if platform.machine() != "x86_64":
        raise BaseBuildFailed(
            f"A base requires an x86_64 machine, and this one is {platform.machine()}.",
            "Use an x86_64 machine.",
        )


def _refuse_if_mounted(base: Base) -> None:
    """Raise BaseInUse if any process has files of the base mounted."""
    path = str(base.path.resolve())
    users: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if path in (process / "mountinfo").read_text():
                users.add(process.name)
        except OSError:
            continue
    if users:
        raise BaseInUse(
            f"The base {base.short_id} is in use by {len(users)} processes.",
            "Stop the containers first.",
        )

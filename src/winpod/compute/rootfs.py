"""Drive C: of a container: its scratch disk over the image's layers over the base, and the mounts.

The drive is assembled on the host as one tree of mounts and then moved into the container's mount
namespace. Mount points are created on the container's disk; names are matched ignoring case.

Also refuses programs that the base cannot run, with the reason: Wine reports only a number, or
nothing. A container's own program is checked before it starts, an exec after it failed. Missing
programs are not checked, because Windows reports them itself.
"""

from __future__ import annotations

import ntpath
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from winpod.compute import idmapped_mounts
from winpod.compute.agent.client import Program
from winpod.compute.disk_mounts import DISK_KINDS, needs_microvm_error
from winpod.compute.errors import MountFailed
from winpod.compute.spec import Mount, MountSourceKind
from winpod.errors import InvalidInput
from winpod.images.base.builder import Base, refuse_unsupported_program
from winpod.images.layers.overlay import overlay_lowerdirs
from winpod.windows.command_line import split
from winpod.windows.isolation import Isolation
from winpod.windows.paths import casefold_name, is_named_pipe


class MountPointFactory(Protocol):
    """Creates a mount point outside of the drive."""

    def __call__(self, name: str, *, is_file: bool) -> Path: ...


class ContainerRootfs:
    """Assembles the drive of one container.

    `owner` is the host's uid of the container's administrator. `users` is the container's user
    namespace, None if it has none.
    """

    def __init__(self, root: Path, disk: Path, owner: int, users: int | None) -> None:
        self._root = root
        self._disk = disk
        self._owner = owner
        self._users = users
        self._make_external: MountPointFactory | None = None
        self._mount_points: list[tuple[str, str]] = []

    def assemble(self, base: Path, layers: Sequence[Path], scratch: Path) -> None:
        self._stack(overlay_lowerdirs(layers, scratch, base=base), self._root, self._disk)

    def _stack(self, lower: Sequence[Path], target: Path, disk: Path | None) -> None:
        with ExitStack() as stack:
            trees = []
            for folder in lower:
                tree = stack.enter_context(idmapped_mounts.clone_tree(folder))
                idmapped_mounts.set_tree_attributes(tree, owners=self._users)
                trees.append(tree)
            idmapped_mounts.mount_overlay(trees, disk, target)

    def add_external_mounts(
        self, mounts: Sequence[Mount], scratch: Path, make_external: MountPointFactory
    ) -> list[tuple[str, str]]:
        """Mount outside of the drive, for a microVM that attaches the mounts itself.

        Returns a name and the path in the drive of each mount. The name of a disk is its
        destination.
        """
        self._make_external = make_external
        self.add_mounts(mounts, scratch)
        return self._mount_points

    def add_mounts(self, mounts: Sequence[Mount], scratch: Path) -> None:
        """Add mounts, outer before inner."""
        with idmapped_mounts.open_path(self._root) as root:
            for number, mount in enumerate(mounts):
                if is_named_pipe(mount.destination):
                    continue
                try:
                    if mount.kind is MountSourceKind.IMAGE:
                        self._add_image(root, mount, scratch / f"image-{number}")
                    elif mount.kind in DISK_KINDS:
                        self._add_disk(root, mount)
                    else:
                        self._add_path(root, mount)
                except OSError as error:
                    raise MountFailed(mount.source, mount.destination, error) from None

    def _add_path(self, root: int, mount: Mount) -> None:
        source = Path(os.path.realpath(mount.source))
        if mount.kind is MountSourceKind.MISSING:
            source.mkdir(parents=True, exist_ok=True)
        owners = self._owners_for(source)
        self._place_tree(root, mount, source, owners, readonly=mount.readonly)

    def _add_disk(self, root: int, mount: Mount) -> None:
        """Create the mount point only: the disk is attached to the pod's microVM."""
        target = self._mount_point(root, mount.destination, is_file=False)
        self._mount_points.append((mount.destination, _relative_path(root, target)))
        os.close(target)

    def _add_image(self, root: int, mount: Mount, scratch: Path) -> None:
        """Mount the files of an image. Symlinks cannot lead outside of them."""
        target, copies, empty = scratch / "files", scratch / "copies", scratch / "nothing"
        for folder in (target, copies, empty):
            folder.mkdir(parents=True)
        layers = overlay_lowerdirs([Path(layer) for layer in mount.layers], copies, base=empty)
        self._stack(layers, target, None)
        try:
            with idmapped_mounts.open_path(target) as files:
                sub_path = idmapped_mounts.open_in_root(
                    files, mount.sub_path.replace("\\", "/"), os.O_PATH
                )
            try:
                source = Path(f"/proc/self/fd/{sub_path}")
                self._place_tree(root, mount, source, None, readonly=True)
            finally:
                os.close(sub_path)
        finally:
            idmapped_mounts.unmount(target)

    def _place_tree(
        self, root: int, mount: Mount, source: Path, owners: int | None, *, readonly: bool
    ) -> None:
        is_file = source.is_file()
        target = self._mount_point(root, mount.destination, is_file=is_file)
        if self._make_external:
            target = self._external(root, target, self._make_external, is_file=is_file)
        try:
            with idmapped_mounts.clone_tree(source) as tree:
                idmapped_mounts.set_tree_attributes(tree, readonly=readonly, owners=owners)
                idmapped_mounts.move_tree(tree, target)
        finally:
            os.close(target)

    def _external(self, root: int, target: int, make: MountPointFactory, *, is_file: bool) -> int:
        """Return a mount point outside of the drive for one in the drive."""
        name = str(len(self._mount_points))
        self._mount_points.append((name, _relative_path(root, target)))
        os.close(target)
        return os.open(make(name, is_file=is_file), os.O_PATH | os.O_CLOEXEC)

    def _owners_for(self, source: Path) -> int | None:
        """Return the user namespace if the source's file system supports idmapped mounts."""
        if self._users is None:
            return None
        with idmapped_mounts.clone_tree(source) as tree:
            try:
                idmapped_mounts.set_tree_attributes(tree, owners=self._users)
            except OSError:
                return None
        return self._users

    def make_directory(self, path: str, owner: int) -> None:
        """Create a directory in the drive that belongs to one of the container's users."""
        with idmapped_mounts.open_path(self._root) as root:
            directory = self._mount_point(root, path, is_file=False)
            try:
                os.chown(f"/proc/self/fd/{directory}", owner, owner)
            finally:
                os.close(directory)

    def _mount_point(self, root: int, destination: str, *, is_file: bool) -> int:
        r"""Open the path of `C:\some\path` in the drive; create what is missing."""
        names = [name for name in destination[3:].split("\\") if name]
        path = ""
        for depth, name in enumerate(names, 1):
            folder = idmapped_mounts.open_in_root(root, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                entry = idmapped_mounts.find_name_ignoring_case(folder, name)
                if entry is None:
                    entry = name
                    self._make(folder, name, is_file=is_file and depth == len(names))
            finally:
                os.close(folder)
            path = f"{path}/{entry}" if path else entry
        return idmapped_mounts.open_in_root(root, path, os.O_PATH)

    def _make(self, folder: int, name: str, *, is_file: bool) -> None:
        if is_file:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=folder))
        else:
            os.mkdir(name, 0o755, dir_fd=folder)
        os.chown(name, self._owner, self._owner, dir_fd=folder, follow_symlinks=False)

    def move_into(self, pid: int, path: str) -> None:
        """Move the drive into a running container, over the C: that it booted with."""
        with idmapped_mounts.clone_tree(self._root) as tree:
            idmapped_mounts.move_tree_into(tree, pid, path)
        idmapped_mounts.unmount(self._root)


def _relative_path(root: int, target: int) -> str:
    path, drive = (Path(f"/proc/self/fd/{descriptor}").readlink() for descriptor in (target, root))
    return str(path.relative_to(drive))


def _mount_below(outer: Mount, mounts: Sequence[Mount]) -> Mount | None:
    prefix = casefold_name(f"{outer.destination}\\")
    return next((m for m in mounts if casefold_name(m.destination).startswith(prefix)), None)


def check_mounts(mounts: Sequence[Mount], isolation: Isolation) -> None:
    for mount in mounts:
        if mount.kind in DISK_KINDS and isolation is not Isolation.HYPERVISOR:
            raise needs_microvm_error(mount.source, mount.destination)
        if mount.kind in DISK_KINDS and (inner := _mount_below(mount, mounts)):
            raise InvalidInput(
                f"{inner.source} cannot be mounted on {inner.destination}: that path is on the "
                f"disk {mount.source}.",
                "Mount it outside of the disk.",
            )
        if not is_named_pipe(mount.destination) and not mount.destination.upper().startswith("C:"):
            raise InvalidInput(
                f"{mount.source} cannot be mounted on {mount.destination}: a container has only "
                "drive C:."
            )


_EXE = ".exe"


def refuse_unsupported_binary(
    base: Base, drive: Path, program: Program, separate: Mapping[str, Path] | None = None
) -> None:
    """Refuse a program that the base cannot run.

    `drive` is the container's C: on the host. `separate` are its mounts that are elsewhere on the
    host, by their path in the drive.
    """
    with idmapped_mounts.open_path(drive) as root:
        for path in _search_paths(program):
            file = _find(root, path, separate or {})
            if file is not None:
                try:
                    name = path.rpartition("\\")[2]
                    refuse_unsupported_program(base, Path(f"/proc/self/fd/{file}"), name)
                finally:
                    os.close(file)
                return


def _search_paths(program: Program) -> Iterator[str]:
    """Yield the paths that Windows tries for a program, in its order."""
    path = split(program.command_line)[0].replace("/", "\\")
    name = path.rpartition("\\")[2]
    if "." not in name:
        path += _EXE
    if not path.lower().endswith(_EXE):
        return
    if path[1:2] == ":" or path.startswith("\\"):
        yield path
        return
    search = next((v for key, v in program.environment.items() if key.upper() == "PATH"), "")
    for folder in (program.directory, *search.split(";")):
        yield f"{folder.rstrip(chr(92))}\\{path}"


def _find(root: int, path: str, separate: Mapping[str, Path]) -> int | None:
    """Open the file at a path of C:, ignoring case."""
    drive, colon, rest = ntpath.normpath(path).rpartition(":")
    if colon and drive.upper() != "C":
        return None
    try:
        return _open(root, [name for name in rest.split("\\") if name], separate)
    except OSError:
        return None


def _open(root: int, names: Sequence[str], separate: Mapping[str, Path]) -> int | None:
    path = ""
    for depth, name in enumerate(names, 1):
        folder = idmapped_mounts.open_in_root(root, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            entry = idmapped_mounts.find_name_ignoring_case(folder, name)
        finally:
            os.close(folder)
        if entry is None:
            return None
        path = f"{path}/{entry}" if path else entry
        if path in separate and depth == len(names):
            return os.open(separate[path], os.O_RDONLY | os.O_CLOEXEC)
        if path in separate:
            with idmapped_mounts.open_path(separate[path]) as other:
                return _open(other, names[depth:], {})
    return idmapped_mounts.open_in_root(root, path, os.O_RDONLY)

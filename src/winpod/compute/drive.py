"""Drive C: of one container: its disk over the image's layers over the base, and the pod's mounts.

It is put together on this machine as one tree of mounts, and then slid into the container's own
namespace. Mount points are made in the container's disk; a name that is there in another spelling
is the same name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from winpod.compute import mounts
from winpod.compute.disk_sources import DISKS, without_machine
from winpod.compute.errors import MountFailed
from winpod.compute.plan import Mount, SourceKind
from winpod.images.layers import lower_directories
from winpod.windows.errors import InvalidInput
from winpod.windows.isolation import Isolation
from winpod.windows.paths import collision_key, is_pipe


class Beside(Protocol):
    """Makes the place of a name beside a drive."""

    def __call__(self, name: str, *, is_file: bool) -> Path: ...


class Drive:
    """`owner` is the machine's user that is the container's administrator; `users` the container's
    user namespace, None where it has none."""

    def __init__(self, place: Path, disk: Path, owner: int, users: int | None) -> None:
        self._place = place
        self._disk = disk
        self._owner = owner
        self._users = users
        self._make_beside: Beside | None = None
        self._places: list[tuple[str, str]] = []

    def assemble(self, base: Path, layers: Sequence[Path], scratch: Path) -> None:
        self._stack(lower_directories(layers, scratch, base=base), self._place, self._disk)

    def _stack(self, lower: Sequence[Path], place: Path, disk: Path | None) -> None:
        with ExitStack() as held:
            trees = []
            for folder in lower:
                tree = held.enter_context(mounts.cloned(folder))
                mounts.restrict(tree, owners=self._users)
                trees.append(tree)
            mounts.mount_overlay(trees, disk, place)

    def add_apart(
        self, wanted: Sequence[Mount], scratch: Path, make_beside: Beside
    ) -> list[tuple[str, str]]:
        """Beside the drive, where somebody else puts them in their places: name, and place.

        What is not beside it has its destination for a name.
        """
        self._make_beside = make_beside
        self.add(wanted, scratch)
        return self._places

    def add(self, wanted: Sequence[Mount], scratch: Path) -> None:
        """The outer before the inner."""
        with mounts.opened(self._place) as root:
            for number, mount in enumerate(wanted):
                if is_pipe(mount.destination):
                    continue
                try:
                    if mount.kind is SourceKind.IMAGE:
                        self._add_image(root, mount, scratch / f"image-{number}")
                    elif mount.kind in DISKS:
                        self._add_disk(root, mount)
                    else:
                        self._add_path(root, mount)
                except OSError as error:
                    raise MountFailed(mount.source, mount.destination, error) from None

    def _add_path(self, root: int, mount: Mount) -> None:
        source = Path(os.path.realpath(mount.source))
        if mount.kind is SourceKind.MISSING:
            source.mkdir(parents=True, exist_ok=True)
        owners = self._owners_for(source)
        self._place_tree(root, mount, source, owners, readonly=mount.readonly)

    def _add_disk(self, root: int, mount: Mount) -> None:
        """Only its place: the disk is attached to the machine that the container is in."""
        target = self._mount_point(root, mount.destination, is_file=False)
        self._places.append((mount.destination, _below(root, target)))
        os.close(target)

    def _add_image(self, root: int, mount: Mount, scratch: Path) -> None:
        """The files of an image, and nothing that its links lead to outside of them."""
        place, copies, nothing = scratch / "files", scratch / "copies", scratch / "nothing"
        for folder in (place, copies, nothing):
            folder.mkdir(parents=True)
        layers = lower_directories([Path(layer) for layer in mount.layers], copies, base=nothing)
        self._stack(layers, place, None)
        try:
            with mounts.opened(place) as files:
                wanted = mounts.open_below(files, mount.sub_path.replace("\\", "/"), os.O_PATH)
            try:
                source = Path(f"/proc/self/fd/{wanted}")
                self._place_tree(root, mount, source, None, readonly=True)
            finally:
                os.close(wanted)
        finally:
            mounts.unmount(place)

    def _place_tree(
        self, root: int, mount: Mount, source: Path, owners: int | None, *, readonly: bool
    ) -> None:
        is_file = source.is_file()
        target = self._mount_point(root, mount.destination, is_file=is_file)
        if self._make_beside:
            target = self._beside(root, target, self._make_beside, is_file=is_file)
        try:
            with mounts.cloned(source) as tree:
                mounts.restrict(tree, readonly=readonly, owners=owners)
                mounts.attach(tree, target)
        finally:
            os.close(target)

    def _beside(self, root: int, target: int, make: Beside, *, is_file: bool) -> int:
        """A place beside the drive, for what belongs to one in it."""
        name = str(len(self._places))
        self._places.append((name, _below(root, target)))
        os.close(target)
        return os.open(make(name, is_file=is_file), os.O_PATH | os.O_CLOEXEC)

    def _owners_for(self, source: Path) -> int | None:
        """Not all file systems can change their owners; there files belong to whom they do."""
        if self._users is None:
            return None
        with mounts.cloned(source) as tree:
            try:
                mounts.restrict(tree, owners=self._users)
            except OSError:
                return None
        return self._users

    def make_directory(self, path: str, owner: int) -> None:
        """A directory of the container's own, in the drive, for one of its users."""
        with mounts.opened(self._place) as root:
            place = self._mount_point(root, path, is_file=False)
            try:
                os.chown(f"/proc/self/fd/{place}", owner, owner)
            finally:
                os.close(place)

    def _mount_point(self, root: int, path: str, *, is_file: bool) -> int:
        r"""The place of `C:\some\path` in the drive, open; what is missing of it is made."""
        names = [name for name in path[3:].split("\\") if name]
        here = ""
        for depth, name in enumerate(names, 1):
            folder = mounts.open_below(root, here, os.O_RDONLY | os.O_DIRECTORY)
            try:
                found = mounts.name_in(folder, name)
                if found is None:
                    found = name
                    self._make(folder, name, is_file=is_file and depth == len(names))
            finally:
                os.close(folder)
            here = f"{here}/{found}" if here else found
        return mounts.open_below(root, here, os.O_PATH)

    def _make(self, folder: int, name: str, *, is_file: bool) -> None:
        if is_file:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=folder))
        else:
            os.mkdir(name, 0o755, dir_fd=folder)
        os.chown(name, self._owner, self._owner, dir_fd=folder, follow_symlinks=False)

    def slide_into(self, pid: int, path: str) -> None:
        """Into a running container, over the C: that it had; here it is not needed any longer."""
        with mounts.cloned(self._place) as tree:
            mounts.attach_inside(tree, pid, path)
        mounts.unmount(self._place)


def _below(root: int, place: int) -> str:
    inside, drive = (Path(f"/proc/self/fd/{one}").readlink() for one in (place, root))
    return str(inside.relative_to(drive))


def _inside(outer: Mount, wanted: Sequence[Mount]) -> Mount | None:
    above = collision_key(f"{outer.destination}\\")
    return next((one for one in wanted if collision_key(one.destination).startswith(above)), None)


def refuse_what_cannot_be(wanted: Sequence[Mount], isolation: Isolation) -> None:
    for mount in wanted:
        if mount.kind in DISKS and isolation is not Isolation.HYPERVISOR:
            raise without_machine(mount.source, mount.destination)
        if mount.kind in DISKS and (inner := _inside(mount, wanted)):
            raise InvalidInput(
                f"{inner.source} cannot be mounted on {inner.destination}: that would be on the "
                f"disk {mount.source}.",
                "Mount it beside the disk.",
            )
        if not is_pipe(mount.destination) and not mount.destination.upper().startswith("C:"):
            raise InvalidInput(
                f"{mount.source} cannot be mounted on {mount.destination}: there is only drive C:."
            )

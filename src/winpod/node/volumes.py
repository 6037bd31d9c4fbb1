"""The volumes of pods on this machine, and what of them each container gets.

A pod has one directory; all that is made for it is in there, and goes with it. What is mounted
there (sub paths) is unmounted before anything is removed, so that nothing else goes along. What is
written for one pod is written in turn, and new content only where the pod still has the volume.

Nobody but the node's user can look into these directories, which have secrets in them: containers
get what is theirs by mounts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from lightkube.models import core_v1 as v1

from winpod.compute import mounts
from winpod.cri.proto import api_pb2 as api
from winpod.node.atomic_files import Files, write_files
from winpod.node.block_volumes import BLOCK, Disk, device_mounts, disk_of
from winpod.node.environment import expand
from winpod.node.facts import NodeFacts
from winpod.node.pods import uid_of
from winpod.node.requests import domain_of, hostname_of, metadata_of, spec_of
from winpod.node.sources import Objects
from winpod.node.volume_files import VolumeFailed, VolumeFiles
from winpod.windows.errors import PermissionDenied
from winpod.windows.paths import is_pipe, machine_path

_Result = TypeVar("_Result")
HOSTS = "C:\\Windows\\System32\\drivers\\etc\\hosts"
TERMINATION_LOG = "/dev/termination-log"
_SET_UP = 'MountVolume.SetUp failed for volume "{}"'
_HOST_KINDS = {
    "Directory": Path.is_dir,
    "DirectoryOrCreate": Path.is_dir,
    "File": Path.is_file,
    "FileOrCreate": Path.is_file,
    "Socket": Path.is_socket,
    "CharDevice": Path.is_char_device,
    "BlockDevice": Path.is_block_device,
}


@dataclass(frozen=True, slots=True)
class Mounted:
    """The volumes of one pod: places by their names, and what the runtime mounts itself."""

    folder: Path
    places: Mapping[str, Path]
    images: Mapping[str, str] = field(default_factory=dict)
    read_only: Collection[str] = ()
    disks: Mapping[str, Disk] = field(default_factory=dict)

    def for_container(
        self,
        container: v1.Container | v1.EphemeralContainer,
        env: Mapping[str, str],
        handler: str = "",
    ) -> list[api.Mount]:
        """The mounts that a container asks for; sub paths are made on the way."""
        found = device_mounts(container, self.disks, self.read_only)
        for number, mount in enumerate(container.volumeMounts or ()):
            sub_path = mount.subPath or expand(mount.subPathExpr or "", env)
            if image := self.images.get(mount.name):
                spec = api.ImageSpec(image=image, runtime_handler=handler)
                found.append(
                    api.Mount(
                        container_path=mount.mountPath,
                        readonly=True,
                        image=spec,
                        image_sub_path=sub_path,
                    )
                )
                continue
            if mount.name not in self.places:
                raise VolumeFailed(f'the pod has no volume "{mount.name}".')
            source = self.places[mount.name]
            if sub_path:
                source = self._sub_path(source, sub_path, container.name, mount.name, number)
            read_only = bool(mount.readOnly) or mount.name in self.read_only
            found.append(
                api.Mount(host_path=str(source), container_path=mount.mountPath, readonly=read_only)
            )
        return found

    def _sub_path(
        self, volume: Path, sub_path: str, container: str, name: str, number: int
    ) -> Path:
        """Mounted to a place of its own, so that nobody can put a link there afterwards."""
        place = self.folder / "volume-subpaths" / name / container / str(number)
        if os.path.ismount(place):
            return place
        try:
            with mounts.opened(volume) as root:
                wanted = _open_or_make(root, sub_path)
                try:
                    _mount_at(wanted, place)
                finally:
                    os.close(wanted)
        except OSError as error:
            raise VolumeFailed(
                f'failed to prepare subPath "{sub_path}" of volume "{name}": {error.strerror}.'
            ) from None
        return place

    def hosts_file(self, pod: v1.Pod, addresses: Sequence[str], facts: NodeFacts) -> api.Mount:
        """The pod's own hosts file; every container has the same."""
        file = self.folder / "etc-hosts"
        text = hosts_text(pod, addresses, facts)
        with _told_as_failure("failed to write the pod's hosts file"):
            if not file.exists() or file.read_text() != text:
                file.write_text(text)
        return api.Mount(host_path=str(file), container_path=HOSTS)

    def termination_log(
        self, container: v1.Container | v1.EphemeralContainer, restart_count: int
    ) -> tuple[Path, api.Mount]:
        """An empty file for the last words of a container, and where it is mounted."""
        file = self.folder / "containers" / container.name / f"{restart_count}.message"
        with _told_as_failure("failed to make the file of the termination message"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            file.chmod(0o666)
        path = container.terminationMessagePath or TERMINATION_LOG
        return file, api.Mount(host_path=str(file), container_path=path)


class Volumes:
    def __init__(self, objects: Objects, facts: NodeFacts) -> None:
        self._objects = objects
        self._facts = facts
        self._root = facts.root / "pods"
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def prepare(self) -> None:
        """Before the first pod: also what an earlier version left open to all is closed."""
        try:
            _make_private(self._root)
        except OSError as error:
            raise PermissionDenied(
                f"{self._root} cannot be the directory of the pods: {error.strerror}.",
                "Use sudo, or choose another --root.",
            ) from None

    def folder(self, uid: str) -> Path:
        return self._root / uid

    async def mount(self, pod: v1.Pod) -> Mounted:
        """Every volume of a pod; again for one that has them changes nothing but their content."""
        uid = uid_of(pod)
        folder = self.folder(uid)
        files = VolumeFiles(pod, self._objects, self._facts)
        places: dict[str, Path] = {}
        images: dict[str, str] = {}
        read_only: set[str] = set()
        disks: dict[str, Disk] = {}
        with _told_as_failure("failed to make the pod's directory"):
            _make_private(self._root)
            folder.mkdir(exist_ok=True)
        for volume in spec_of(pod).volumes or ():
            with _told_as_failure(_SET_UP.format(volume.name)):
                written = await files.of(volume)
                if written is not None:
                    place = places[volume.name] = folder / "volumes" / volume.name
                    read_only.add(volume.name)
                    await self._in_turn(uid, partial(write_files, place, written))
                elif volume.image:
                    images[volume.name] = volume.image.reference or ""
                else:
                    found, is_fixed = await self._place(pod, volume, folder)
                    if isinstance(found, Disk):
                        disks[volume.name] = found
                    else:
                        places[volume.name] = found
                    if is_fixed:
                        read_only.add(volume.name)
        return Mounted(folder, places, images, read_only, disks)

    async def refresh(self, pod: v1.Pod) -> None:
        """New content of config maps, secrets and tokens; sub paths keep what they had.

        A pod that has ended since it was asked for gets none.
        """
        uid = uid_of(pod)
        files = VolumeFiles(pod, self._objects, self._facts)
        for volume in spec_of(pod).volumes or ():
            with _told_as_failure(_SET_UP.format(volume.name)):
                written = await files.of(volume)
                if written is not None:
                    place = self.folder(uid) / "volumes" / volume.name
                    await self._in_turn(uid, partial(_write_again, place, written))

    async def unmount(self, uid: str) -> None:
        await self._in_turn(uid, partial(_discard, self.folder(uid)))

    async def _in_turn(self, uid: str, work: Callable[[], _Result]) -> _Result:
        """Nobody writes for a pod while another does, or while what it has is removed."""
        turn = self._turns.setdefault(uid, threading.Lock())

        def work_alone() -> _Result:
            with turn:
                return work()

        return await asyncio.to_thread(work_alone)

    async def sweep(self, is_known: Callable[[str], bool]) -> None:
        """What is left of pods that nobody knows; it is asked of each when its turn comes."""
        if self._root.exists():
            for folder in await asyncio.to_thread(lambda: list(self._root.iterdir())):
                if not is_known(folder.name):
                    await self.unmount(folder.name)

    async def _place(
        self, pod: v1.Pod, volume: v1.Volume, folder: Path
    ) -> tuple[Path | Disk, bool]:
        """Where a volume is, and whether it can only be read."""
        if volume.emptyDir:
            return _empty_directory(volume, folder), False
        if volume.hostPath:
            return _host_path(volume.hostPath.path, volume.hostPath.type or "", volume.name), False
        if claim := volume.persistentVolumeClaim:
            return await self._claimed(pod, claim.claimName), bool(claim.readOnly)
        if volume.ephemeral:
            return await self._claimed(pod, f"{metadata_of(pod).name}-{volume.name}"), False
        raise VolumeFailed(
            f'the volume "{volume.name}" is of a kind that this node cannot mount: '
            f"{_kind_of(volume)}.",
            "It mounts emptyDir, configMap, secret, projected, downwardAPI, hostPath, image, and "
            "claims of local volumes.",
        )

    async def _claimed(self, pod: v1.Pod, claim: str) -> Path | Disk:
        namespace = metadata_of(pod).namespace or "default"
        name, spec = await bound_volume(self._objects, namespace, claim)
        if spec.volumeMode == BLOCK:
            return disk_of(claim, name, spec)
        if spec.local:
            return _host_path(spec.local.path, "Directory", claim)
        if spec.hostPath:
            return _host_path(spec.hostPath.path, spec.hostPath.type or "", claim)
        raise VolumeFailed(
            f'the volume "{name}" of claim "{claim}" is of a kind that this node cannot mount: '
            f"{_kind_of(spec)}.",
            "It mounts local and hostPath volumes.",
        )


@contextmanager
def _told_as_failure(what: str) -> Iterator[None]:
    """What the machine refuses, and content that is none, keep the pod waiting as others do."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        why = f"{error.strerror or error}{where}"
        raise VolumeFailed(f"{what}: {why}.") from error
    except ValueError as error:
        raise VolumeFailed(f"{what}: {error}.") from error


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _write_again(place: Path, files: Files) -> None:
    if place.is_dir():
        write_files(place, files)


async def bound_volume(
    objects: Objects, namespace: str, claim: str
) -> tuple[str, v1.PersistentVolumeSpec]:
    """The volume that a claim has, with its name."""
    found = await objects.claim(namespace, claim)
    if found is None or found.spec is None:
        raise VolumeFailed(f'persistentvolumeclaim "{claim}" not found')
    name = found.spec.volumeName
    if not name:
        raise VolumeFailed(f'persistentvolumeclaim "{claim}" is not bound')
    volume = await objects.volume(name)
    if volume is None or volume.spec is None:
        raise VolumeFailed(f'persistentvolume "{name}" not found')
    return name, volume.spec


def hosts_text(pod: v1.Pod, addresses: Sequence[str], facts: NodeFacts) -> str:
    name, domain = hostname_of(pod, facts), domain_of(pod, facts)
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost"]
    for address in addresses:
        names = [f"{name}.{domain}", name] if domain else [name]
        lines.append("\t".join((address, *names)))
    if aliases := spec_of(pod).hostAliases:
        lines += ["", "# Entries added by HostAliases."]
        lines += ["\t".join((alias.ip, *(alias.hostnames or ()))) for alias in aliases]
    return "".join(f"{line}\n" for line in lines)


def _empty_directory(volume: v1.Volume, folder: Path) -> Path:
    if volume.emptyDir and volume.emptyDir.medium:
        raise VolumeFailed(
            f'the volume "{volume.name}" is an emptyDir of medium {volume.emptyDir.medium}, which '
            "Windows does not have.",
            "Leave medium out.",
        )
    place = folder / "volumes" / volume.name
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    return place


def _host_path(path: str, kind: str, name: str) -> Path:
    if is_pipe(path):
        return Path(path)
    place = Path(machine_path(path))
    if kind == "DirectoryOrCreate" and not place.exists():
        place.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    if kind and kind not in _HOST_KINDS:
        raise VolumeFailed(f'the volume "{name}" has an unknown hostPath type: {kind}.')
    if kind and not _HOST_KINDS[kind](place):
        raise VolumeFailed(
            f'hostPath type check failed: {path} of volume "{name}" is not a {kind.lower()}'
        )
    return place


def _kind_of(source: v1.Volume | v1.PersistentVolumeSpec) -> str:
    known = {"name", "capacity", "accessModes", "claimRef", "storageClassName", "volumeMode"}
    told = (key for key in source.to_dict() if key not in known)
    return next(told, "nothing")


def _open_or_make(root: int, sub_path: str) -> int:
    """What a path below a volume means, links inside it and all; directories are made."""
    steps = [step for step in sub_path.replace("\\", "/").split("/") if step not in ("", ".")]
    if ".." in steps:
        raise VolumeFailed(f'subPath "{sub_path}" must not contain "..".')
    here = ""
    for step in steps:
        there = f"{here}/{step}" if here else step
        try:
            os.close(mounts.open_below(root, there, os.O_PATH))
        except FileNotFoundError:
            folder = mounts.open_below(root, here, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.mkdir(step, 0o777, dir_fd=folder)
            finally:
                os.close(folder)
        here = there
    return mounts.open_below(root, here, os.O_PATH)


def _mount_at(source: int, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    origin = Path(f"/proc/self/fd/{source}")
    if origin.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    with mounts.cloned(origin) as tree:
        mounts.attach_at(tree, place)


def _discard(folder: Path) -> None:
    if not folder.exists():
        return
    for place in sorted((folder / "volume-subpaths").glob("*/*/*"), reverse=True):
        mounts.unmount(place)
    shutil.rmtree(folder)

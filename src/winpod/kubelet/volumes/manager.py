"""Volume manager: sets up the volumes of pods and the mounts of their containers.

Everything set up for a pod is in one directory and is removed with it. subPath mounts are unmounted
first, so that the removal does not follow them. Writes for one pod are serialized, and updates are
written only while the pod still has the volume. The directories contain secrets, so only the node's
user can enter them; containers get their volumes as mounts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from winpod.compute import idmapped_mounts
from winpod.concurrency import KeyedLock
from winpod.cri.proto import api_pb2 as api
from winpod.errors import PermissionDenied
from winpod.files import FileContents, remove_tree, write_directory_atomic
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, spec_of, uid_of
from winpod.kubelet.cri_convert import domain_of, hostname_of
from winpod.kubelet.environment import expand
from winpod.kubelet.interfaces import ObjectSource
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.volumes.block import BLOCK_MODE, BlockDevice, block_device_of, device_mounts
from winpod.kubelet.volumes.projected import ProjectedFiles, VolumeMountFailed
from winpod.windows.paths import host_path, is_named_pipe

_Result = TypeVar("_Result")
HOSTS = "C:\\Windows\\System32\\drivers\\etc\\hosts"
TERMINATION_LOG = "/dev/termination-log"
_SET_UP = 'MountVolume.SetUp failed for volume "{}"'
_HOST_PATH_TYPES = {
    "Directory": Path.is_dir,
    "DirectoryOrCreate": Path.is_dir,
    "File": Path.is_file,
    "FileOrCreate": Path.is_file,
    "Socket": Path.is_socket,
    "CharDevice": Path.is_char_device,
    "BlockDevice": Path.is_block_device,
}


@dataclass(frozen=True, slots=True)
class MountedVolumes:
    """The volumes of one pod: host paths by volume name, and volumes the runtime mounts itself."""

    folder: Path
    paths: Mapping[str, Path]
    images: Mapping[str, str] = field(default_factory=dict)
    read_only: Collection[str] = ()
    disks: Mapping[str, BlockDevice] = field(default_factory=dict)

    def for_container(
        self,
        container: v1.Container | v1.EphemeralContainer,
        env: Mapping[str, str],
        handler: str = "",
    ) -> list[api.Mount]:
        """Return the mounts of a container; subPaths are prepared on the way."""
        mounts = device_mounts(container, self.disks, self.read_only)
        for number, mount in enumerate(container.volumeMounts or ()):
            sub_path = mount.subPath or expand(mount.subPathExpr or "", env)
            if image := self.images.get(mount.name):
                spec = api.ImageSpec(image=image, runtime_handler=handler)
                mounts.append(
                    api.Mount(
                        container_path=mount.mountPath,
                        readonly=True,
                        image=spec,
                        image_sub_path=sub_path,
                    )
                )
                continue
            if mount.name not in self.paths:
                raise VolumeMountFailed(f'the pod has no volume "{mount.name}".')
            source = self.paths[mount.name]
            if sub_path:
                source = self._sub_path(source, sub_path, container.name, mount.name, number)
            read_only = bool(mount.readOnly) or mount.name in self.read_only
            mounts.append(
                api.Mount(host_path=str(source), container_path=mount.mountPath, readonly=read_only)
            )
        return mounts

    def _sub_path(
        self, volume: Path, sub_path: str, container: str, name: str, number: int
    ) -> Path:
        """Bind-mount a subPath, so that it cannot be replaced by a symbolic link afterwards."""
        mountpoint = self.folder / "volume-subpaths" / name / container / str(number)
        if os.path.ismount(mountpoint):
            return mountpoint
        try:
            with idmapped_mounts.open_path(volume) as root:
                target = _open_sub_path(root, sub_path)
                try:
                    _mount_at(target, mountpoint)
                finally:
                    os.close(target)
        except OSError as error:
            raise VolumeMountFailed(
                f'failed to prepare subPath "{sub_path}" of volume "{name}": {error.strerror}.'
            ) from None
        return mountpoint

    def kubelet_mounts(
        self,
        pod: v1.Pod,
        container: v1.Container | v1.EphemeralContainer,
        restart_count: int,
        addresses: Sequence[str],
        node_config: NodeConfig,
    ) -> list[api.Mount]:
        """Return the mounts that the kubelet adds: the termination message and the hosts file."""
        _, message = self.termination_log(container, restart_count)
        return [message, self.hosts_file(pod, addresses, node_config)]

    def hosts_file(
        self, pod: v1.Pod, addresses: Sequence[str], node_config: NodeConfig
    ) -> api.Mount:
        """Write the pod's hosts file, which all containers share."""
        file = self.folder / "etc-hosts"
        text = hosts_file_content(pod, addresses, node_config)
        with _mount_failures("failed to write the pod's hosts file"):
            if not file.exists() or file.read_text() != text:
                file.write_text(text)
        return api.Mount(host_path=str(file), container_path=HOSTS)

    def termination_log(
        self, container: v1.Container | v1.EphemeralContainer, restart_count: int
    ) -> tuple[Path, api.Mount]:
        """Create the termination message file of a container, and return its mount."""
        file = self.folder / "containers" / container.name / f"{restart_count}.message"
        with _mount_failures("failed to create the termination message file"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            file.chmod(0o666)
        path = container.terminationMessagePath or TERMINATION_LOG
        return file, api.Mount(host_path=str(file), container_path=path)


class VolumeManager:
    def __init__(self, objects: ObjectSource, node_config: NodeConfig) -> None:
        self._objects = objects
        self._node_config = node_config
        self._root = node_config.root / "pods"
        self._locks = KeyedLock(threading.Lock)

    def prepare(self) -> None:
        """Create the root directory; restrict the permissions an earlier version left open."""
        try:
            _make_private(self._root)
        except OSError as error:
            raise PermissionDenied(
                f"Cannot use {self._root} as the directory of the pods: {error.strerror}.",
                "Use sudo, or choose another --root.",
            ) from None

    def folder(self, uid: str) -> Path:
        return self._root / uid

    async def mount(self, pod: v1.Pod) -> MountedVolumes:
        """Set up every volume of a pod. Idempotent, except that content is updated."""
        uid = uid_of(pod)
        folder = self.folder(uid)
        files = ProjectedFiles(pod, self._objects, self._node_config)
        paths: dict[str, Path] = {}
        images: dict[str, str] = {}
        read_only: set[str] = set()
        disks: dict[str, BlockDevice] = {}
        with _mount_failures("failed to create the pod's directory"):
            _make_private(self._root)
            folder.mkdir(exist_ok=True)
        for volume in spec_of(pod).volumes or ():
            with _mount_failures(_SET_UP.format(volume.name)):
                written = await files.files_of(volume)
                if written is not None:
                    place = paths[volume.name] = folder / "volumes" / volume.name
                    read_only.add(volume.name)
                    await self._run_locked(uid, partial(write_directory_atomic, place, written))
                elif volume.image:
                    images[volume.name] = volume.image.reference or ""
                else:
                    source, is_read_only = await self._resolve(pod, volume, folder)
                    if isinstance(source, BlockDevice):
                        disks[volume.name] = source
                    else:
                        paths[volume.name] = source
                    if is_read_only:
                        read_only.add(volume.name)
        return MountedVolumes(folder, paths, images, read_only, disks)

    async def refresh(self, pod: v1.Pod) -> None:
        """Update ConfigMaps, Secrets and tokens; subPath mounts keep their content.

        Skips volumes of a pod that was unmounted meanwhile.
        """
        uid = uid_of(pod)
        files = ProjectedFiles(pod, self._objects, self._node_config)
        for volume in spec_of(pod).volumes or ():
            with _mount_failures(_SET_UP.format(volume.name)):
                written = await files.files_of(volume)
                if written is not None:
                    place = self.folder(uid) / "volumes" / volume.name
                    await self._run_locked(uid, partial(_update_directory, place, written))

    async def unmount(self, uid: str) -> None:
        await self._run_locked(uid, partial(_remove_pod_directory, self.folder(uid)))

    async def _run_locked(self, uid: str, work: Callable[[], _Result]) -> _Result:
        """Run work in a thread, serialized per pod."""
        lock = self._locks.lock(uid)

        def locked_work() -> _Result:
            with lock:
                return work()

        return await asyncio.to_thread(locked_work)

    async def remove_orphans(self, is_known: Callable[[str], bool]) -> None:
        """Remove the volumes of unknown pods; each is checked right before its removal."""
        if self._root.exists():
            for folder in await asyncio.to_thread(lambda: list(self._root.iterdir())):
                if not is_known(folder.name):
                    await self.unmount(folder.name)

    async def _resolve(
        self, pod: v1.Pod, volume: v1.Volume, folder: Path
    ) -> tuple[Path | BlockDevice, bool]:
        """Return where a volume is, and whether it is read-only."""
        if volume.emptyDir:
            return _empty_directory(volume, folder), False
        if volume.hostPath:
            return _host_path(volume.hostPath.path, volume.hostPath.type or "", volume.name), False
        if claim := volume.persistentVolumeClaim:
            return await self._resolve_claim(pod, claim.claimName), bool(claim.readOnly)
        if volume.ephemeral:
            return await self._resolve_claim(pod, f"{metadata_of(pod).name}-{volume.name}"), False
        raise VolumeMountFailed(
            f'the volume "{volume.name}" has a type that this node does not support: '
            f"{_volume_type(volume)}.",
            "Supported are emptyDir, configMap, secret, projected, downwardAPI, hostPath, image, "
            "and claims of local volumes.",
        )

    async def _resolve_claim(self, pod: v1.Pod, claim: str) -> Path | BlockDevice:
        namespace = metadata_of(pod).namespace or "default"
        name, spec = await bound_volume(self._objects, namespace, claim)
        if spec.volumeMode == BLOCK_MODE:
            return block_device_of(claim, name, spec)
        if spec.local:
            return _host_path(spec.local.path, "Directory", claim)
        if spec.hostPath:
            return _host_path(spec.hostPath.path, spec.hostPath.type or "", claim)
        raise VolumeMountFailed(
            f'the volume "{name}" of claim "{claim}" has a type that this node does not support: '
            f"{_volume_type(spec)}.",
            "Supported are local and hostPath volumes.",
        )


@contextmanager
def _mount_failures(action: str) -> Iterator[None]:
    """Convert OS errors and invalid content to `VolumeMountFailed`, so that the pod retries."""
    try:
        yield
    except OSError as error:
        location = f" ({error.filename})" if error.filename else ""
        reason = f"{error.strerror or error}{location}"
        raise VolumeMountFailed(f"{action}: {reason}.") from error
    except ValueError as error:
        raise VolumeMountFailed(f"{action}: {error}.") from error


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _update_directory(path: Path, files: FileContents) -> None:
    if path.is_dir():
        write_directory_atomic(path, files)


async def bound_volume(
    objects: ObjectSource, namespace: str, claim: str
) -> tuple[str, v1.PersistentVolumeSpec]:
    """Return the name and the spec of the volume bound to a claim."""
    bound_claim = await objects.claim(namespace, claim)
    if bound_claim is None or bound_claim.spec is None:
        raise VolumeMountFailed(f'persistentvolumeclaim "{claim}" not found')
    name = bound_claim.spec.volumeName
    if not name:
        raise VolumeMountFailed(f'persistentvolumeclaim "{claim}" is not bound')
    volume = await objects.volume(name)
    if volume is None or volume.spec is None:
        raise VolumeMountFailed(f'persistentvolume "{name}" not found')
    return name, volume.spec


def hosts_file_content(pod: v1.Pod, addresses: Sequence[str], node_config: NodeConfig) -> str:
    name, domain = hostname_of(pod, node_config), domain_of(pod, node_config)
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
        raise VolumeMountFailed(
            f'the volume "{volume.name}" is an emptyDir of medium {volume.emptyDir.medium}, which '
            "Windows does not have.",
            "Leave medium out.",
        )
    directory = folder / "volumes" / volume.name
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o777)
    return directory


def _host_path(path: str, kind: str, name: str) -> Path:
    if is_named_pipe(path):
        return Path(path)
    target = Path(host_path(path))
    if kind == "DirectoryOrCreate" and not target.exists():
        target.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    if kind and kind not in _HOST_PATH_TYPES:
        raise VolumeMountFailed(f'the volume "{name}" has an unknown hostPath type: {kind}.')
    if kind and not _HOST_PATH_TYPES[kind](target):
        raise VolumeMountFailed(
            f'hostPath type check failed: {path} of volume "{name}" is not a {kind.lower()}'
        )
    return target


def _volume_type(source: v1.Volume | v1.PersistentVolumeSpec) -> str:
    common_fields = {
        "name",
        "capacity",
        "accessModes",
        "claimRef",
        "storageClassName",
        "volumeMode",
    }
    types = (key for key in source.to_dict() if key not in common_fields)
    return next(types, "none")


def _open_sub_path(root: int, sub_path: str) -> int:
    """Open a subPath, resolving links inside the volume and creating missing directories."""
    steps = [step for step in sub_path.replace("\\", "/").split("/") if step not in ("", ".")]
    if ".." in steps:
        raise VolumeMountFailed(f'subPath "{sub_path}" must not contain "..".')
    current = ""
    for step in steps:
        next_path = f"{current}/{step}" if current else step
        try:
            os.close(idmapped_mounts.open_in_root(root, next_path, os.O_PATH))
        except FileNotFoundError:
            folder = idmapped_mounts.open_in_root(root, current, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.mkdir(step, 0o777, dir_fd=folder)
            finally:
                os.close(folder)
        current = next_path
    return idmapped_mounts.open_in_root(root, current, os.O_PATH)


def _mount_at(source: int, mountpoint: Path) -> None:
    mountpoint.parent.mkdir(parents=True, exist_ok=True)
    origin = Path(f"/proc/self/fd/{source}")
    if origin.is_dir():
        mountpoint.mkdir(exist_ok=True)
    else:
        mountpoint.touch()
    with idmapped_mounts.clone_tree(origin) as tree:
        idmapped_mounts.move_tree_to(tree, mountpoint)


def _remove_pod_directory(folder: Path) -> None:
    if not folder.exists():
        return
    for mountpoint in sorted((folder / "volume-subpaths").glob("*/*/*"), reverse=True):
        idmapped_mounts.unmount(mountpoint)
    remove_tree(folder)

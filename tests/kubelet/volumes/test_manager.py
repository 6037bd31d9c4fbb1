import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.known_objects import KnownObjects, encoded, node_config_in, pod_of, read
from winpod.cri.proto import api_pb2 as api
from winpod.errors import PermissionDenied
from winpod.files import read_directory, write_directory_atomic
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.volumes.manager import MountedVolumes, VolumeManager, hosts_file_content
from winpod.kubelet.volumes.projected import VolumeMountFailed

THROUGH_A_FILE = [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]


@pytest.fixture
def objects() -> KnownObjects:
    return KnownObjects(
        config_maps={"shop/settings": read(v1.ConfigMap, {"data": {"a": "1", "b": "2"}})},
        secrets={
            "shop/login": read(v1.Secret, {"data": encoded(password="secret")}),
            "shop/broken": read(v1.Secret, {"data": {"password": "a"}}),
            "shop/large": read(v1.Secret, {"data": encoded(large="x" * 100_000)}),
        },
    )


@pytest.fixture
def volumes(tmp_path: Path, objects: KnownObjects) -> Iterator[VolumeManager]:
    yield VolumeManager(objects, node_config_in(tmp_path))
    subprocess.run(f"umount {tmp_path}/pods/*/volume-subpaths/*/*/* 2>/dev/null", shell=True)


def pod_with(*sources: dict[str, Any], mounts: list[dict[str, Any]] | None = None) -> v1.Pod:
    container = {"name": "app", "image": "a:1", "volumeMounts": mounts or []}
    named = [{"name": f"v{number}", **source} for number, source in enumerate(sources)]
    return pod_of({"containers": [container], "volumes": named}, labels={"app": "web"})


def mounts_of(mounted: MountedVolumes, pod: v1.Pod) -> list[api.Mount]:
    assert pod.spec
    return mounted.for_container(pod.spec.containers[0], {"SUB": "part"})


async def test_files_of_config_map_secret_and_downward_volumes(volumes: VolumeManager) -> None:
    pod = pod_with(
        {"configMap": {"name": "settings"}},
        {"secret": {"secretName": "login", "items": [{"key": "password", "path": "in/pass"}]}},
        {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {
            "projected": {
                "sources": [
                    {"configMap": {"name": "settings", "items": [{"key": "a", "path": "one"}]}},
                    {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                    {"secret": {"name": "none", "optional": True}},
                ]
            }
        },
    )
    mounted = await volumes.mount(pod)
    assert (mounted.paths["v0"] / "a").read_text() == "1"
    assert (mounted.paths["v1"] / "in/pass").read_text() == "secret"
    assert (mounted.paths["v2"] / "l").read_text() == 'app="web"'
    assert read_directory(mounted.paths["v3"]) == {
        "one": b"1",
        "token": b"token of shop/default for vault in web for 3600",
    }


async def test_content_is_replaced_atomically(
    volumes: VolumeManager, objects: KnownObjects
) -> None:
    pod = pod_with({"configMap": {"name": "settings"}})
    directory = (await volumes.mount(pod)).paths["v0"]
    before = (directory / "..data").readlink()
    await volumes.refresh(pod)
    assert (directory / "..data").readlink() == before
    objects.config_maps["shop/settings"] = read(v1.ConfigMap, {"data": {"a": "9", "c": "3"}})
    await volumes.refresh(pod)
    assert {p.name: p.read_text() for p in directory.iterdir() if p.is_file()} == {
        "a": "9",
        "c": "3",
    }
    assert len([p for p in directory.iterdir() if p.is_dir() and not p.is_symlink()]) == 1


def test_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    write_directory_atomic(tmp_path / "v", {"a": b"1"})
    (tmp_path / "v/..half").mkdir()
    (tmp_path / "v/..data_tmp").symlink_to("..half")
    assert write_directory_atomic(tmp_path / "v", {"a": b"2", "b/c": b"3"})
    assert read_directory(tmp_path / "v") == {"a": b"2", "b/c": b"3"}
    assert (tmp_path / "v/b/c").read_bytes() == b"3"
    assert not (tmp_path / "v/..half").exists()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        (
            {"configMap": {"name": "settings", "items": [{"key": "z", "path": "z"}]}},
            "references non-existent config key: z",
        ),
        (
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "../a"}]}},
            "not a path inside the volume",
        ),
        ({"emptyDir": {"medium": "Memory"}}, "which Windows does not have"),
        ({"nfs": {"server": "s", "path": "/"}}, "does not support: nfs"),
        ({"csi": {"driver": "smb.csi.k8s.io"}}, "does not support: csi"),
        ({"iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t"}}, "does not support: iscsi"),
        ({"hostPath": {"path": "/none/such", "type": "Directory"}}, "hostPath type check failed"),
        ({"persistentVolumeClaim": {"claimName": "none"}}, 'claim "none" not found'),
        (
            {"hostPath": {"path": __file__, "type": "DirectoryOrCreate"}},
            "hostPath type check failed: .* is not a directoryorcreate",
        ),
        (
            {"hostPath": {"path": f"{__file__}/below/it", "type": "FileOrCreate"}},
            'MountVolume.SetUp failed for volume "v0": Not a directory',
        ),
        (
            {"hostPath": {"path": f"{__file__}/it", "type": "FileOrCreate"}},
            'MountVolume.SetUp failed for volume "v0": File exists',
        ),
        (
            {"configMap": {"name": "settings", "items": THROUGH_A_FILE}},
            'MountVolume.SetUp failed for volume "v0": File exists',
        ),
        ({"secret": {"secretName": "broken"}}, "the key password of secret broken is not base64"),
    ],
)
async def test_unsupported_volume_is_rejected(
    volumes: VolumeManager, source: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(VolumeMountFailed, match=sentence):
        await volumes.mount(pod_with(source))


async def run(line: str) -> None:
    await asyncio.to_thread(subprocess.run, line, shell=True, check=True)


async def test_full_disk_is_reported_and_write_is_retried(
    volumes: VolumeManager, tmp_path: Path
) -> None:
    volumes.prepare()
    directory = tmp_path / "pods"
    pod = pod_with({"secret": {"secretName": "large"}})
    await run(f"mount -t tmpfs -o size=64k tmpfs {directory}")
    try:
        with pytest.raises(VolumeMountFailed, match='volume "v0": No space left on device'):
            await volumes.mount(pod)
        with pytest.raises(VolumeMountFailed, match='volume "v0": No space left on device'):
            await volumes.refresh(pod)
        await run(f"mount -o remount,size=1m {directory}")
        mounted = await volumes.mount(pod)
        assert len((mounted.paths["v0"] / "large").read_bytes()) == 100_000
    finally:
        await run(f"umount {directory}")


async def test_pod_directories_are_private(volumes: VolumeManager, tmp_path: Path) -> None:
    def mode() -> int:
        return (tmp_path / "pods").stat().st_mode & 0o777

    await volumes.mount(pod_with({"secret": {"secretName": "login"}}))
    assert mode() == 0o700
    (tmp_path / "pods").chmod(0o755)
    volumes.prepare()
    assert mode() == 0o700


def test_unusable_pod_root_is_reported(volumes: VolumeManager, tmp_path: Path) -> None:
    (tmp_path / "pods").touch()
    with pytest.raises(PermissionDenied, match="as the directory of the pods: File exists"):
        volumes.prepare()


@dataclass
class SlowObjects(KnownObjects):
    """Returns a secret only after it is released."""

    requested: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        self.requested.set()
        await self.answers.wait()
        return await super().secret(namespace, name)


async def test_pod_unmounted_during_secret_fetch_leaves_nothing(
    tmp_path: Path, objects: KnownObjects
) -> None:
    slow = SlowObjects(secrets=objects.secrets)
    slow.answers.set()
    volumes = VolumeManager(slow, node_config_in(tmp_path))
    pod = pod_with({"secret": {"secretName": "login"}})
    await volumes.mount(pod)
    slow.requested.clear()
    slow.answers.clear()
    refreshing = asyncio.create_task(volumes.refresh(pod))
    await slow.requested.wait()
    await volumes.unmount("uid-1")
    slow.answers.set()
    await refreshing
    assert not volumes.folder("uid-1").exists()


async def test_unmount_waits_for_write_in_progress(
    volumes: VolumeManager, objects: KnownObjects
) -> None:
    pod = pod_with({"secret": {"secretName": "login"}})
    await volumes.mount(pod)
    many = {f"password-{number}": "another" for number in range(5000)}
    objects.secrets["shop/login"] = read(v1.Secret, {"data": encoded(**many)})
    refreshing = asyncio.create_task(volumes.refresh(pod))
    while not list(volumes.folder("uid-1").glob("volumes/v0/..*/password-9")):
        assert not refreshing.done()
        await asyncio.sleep(0.001)
    ending = asyncio.create_task(volumes.unmount("uid-1"))
    await asyncio.gather(refreshing, ending)
    assert not volumes.folder("uid-1").exists()


async def test_local_volume_claim_is_its_directory(
    volumes: VolumeManager, objects: KnownObjects, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    objects.claims["shop/data"] = read(v1.PersistentVolumeClaim, {"spec": {"volumeName": "pv1"}})
    objects.volumes["pv1"] = read(
        v1.PersistentVolume, {"spec": {"local": {"path": f"{tmp_path}/disk"}}}
    )
    mounted = await volumes.mount(pod_with({"persistentVolumeClaim": {"claimName": "data"}}))
    assert mounted.paths["v0"] == tmp_path / "disk"
    objects.volumes["pv1"] = read(
        v1.PersistentVolume, {"spec": {"nfs": {"server": "s", "path": "/"}}}
    )
    with pytest.raises(VolumeMountFailed, match="does not support: nfs"):
        await volumes.mount(pod_with({"persistentVolumeClaim": {"claimName": "data"}}))


async def test_mounts_have_source_and_destination(volumes: VolumeManager, tmp_path: Path) -> None:
    pod = pod_with(
        {"emptyDir": {}},
        {"configMap": {"name": "settings"}},
        {"image": {"reference": "data:1"}},
        {"hostPath": {"path": str(tmp_path)}},
        {"hostPath": {"path": "\\\\.\\pipe\\service"}},
        mounts=[
            {"name": "v0", "mountPath": "C:\\data"},
            {"name": "v1", "mountPath": "/settings"},
            {"name": "v2", "mountPath": "C:\\image", "subPath": "in"},
            {"name": "v3", "mountPath": "C:\\host", "readOnly": True},
            {"name": "v4", "mountPath": "\\\\.\\pipe\\service"},
        ],
    )
    mounts = mounts_of(await volumes.mount(pod), pod)
    assert [mount.readonly for mount in mounts] == [False, True, True, True, False]
    assert mounts[2].image.image == "data:1"
    assert mounts[2].image_sub_path == "in"
    assert (mounts[3].host_path, mounts[4].host_path) == (str(tmp_path), "\\\\.\\pipe\\service")


async def test_sub_path_is_created_inside_volume(volumes: VolumeManager, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "host/link").symlink_to(tmp_path / "outside")
    (tmp_path / "host/file").write_text("content")
    pod = pod_with(
        {"hostPath": {"path": f"{tmp_path}/host"}},
        mounts=[
            {"name": "v0", "mountPath": "C:\\a", "subPathExpr": "new/$(SUB)"},
            {"name": "v0", "mountPath": "C:\\b", "subPath": "file"},
        ],
    )
    mounted = await volumes.mount(pod)
    first, second = (Path(mount.host_path) for mount in mounts_of(mounted, pod))
    assert (tmp_path / "host/new/part").is_dir()
    (first / "written").touch()
    assert (tmp_path / "host/new/part/written").exists()
    assert second.read_text() == "content"
    led = pod_with(
        {"hostPath": {"path": f"{tmp_path}/host"}},
        mounts=[{"name": "v0", "mountPath": "C:\\a", "subPath": "link/inner"}],
    )
    with pytest.raises(VolumeMountFailed, match="failed to prepare subPath"):
        mounts_of(await volumes.mount(led), led)
    assert list((tmp_path / "outside").iterdir()) == []
    await volumes.unmount("uid-1")
    assert not volumes.folder("uid-1").exists()
    assert (tmp_path / "host/new/part/written").exists()


async def test_orphaned_volumes_are_removed(volumes: VolumeManager) -> None:
    await volumes.mount(pod_with({"emptyDir": {}}))
    await volumes.remove_orphans({"uid-1"}.__contains__)
    assert volumes.folder("uid-1").exists()
    await volumes.remove_orphans(lambda _: False)
    assert not volumes.folder("uid-1").exists()


def test_hosts_file_has_pod_and_aliases(tmp_path: Path) -> None:
    aliases = [{"ip": "10.1.1.1", "hostnames": ["db", "db.example"]}]
    pod = pod_of({"hostAliases": aliases, "subdomain": "s", "hostname": "h"})
    lines = hosts_file_content(pod, ["10.244.0.5"], node_config_in(tmp_path)).splitlines()
    assert "127.0.0.1\tlocalhost" in lines
    assert "10.244.0.5\th.s.shop.svc.cluster.local\th" in lines
    assert "10.1.1.1\tdb\tdb.example" in lines


async def test_termination_message_file_per_restart(volumes: VolumeManager) -> None:
    pod = pod_with()
    mounted = await volumes.mount(pod)
    assert pod.spec
    file, mount = mounted.termination_log(pod.spec.containers[0], 2)
    assert file.read_text() == ""
    assert os.stat(file).st_mode & 0o777 == 0o666  # noqa: PTH116
    assert mount.container_path == "/dev/termination-log"

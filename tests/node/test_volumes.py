import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import KnownObjects, encoded, facts_in, pod_of, read
from winpod.cri.proto import api_pb2 as api
from winpod.node.atomic_files import read_files, write_files
from winpod.node.volume_files import VolumeFailed
from winpod.node.volumes import Mounted, Volumes, hosts_text
from winpod.windows.errors import PermissionDenied

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
def volumes(tmp_path: Path, objects: KnownObjects) -> Iterator[Volumes]:
    yield Volumes(objects, facts_in(tmp_path))
    subprocess.run(f"umount {tmp_path}/pods/*/volume-subpaths/*/*/* 2>/dev/null", shell=True)


def pod_with(*sources: dict[str, Any], mounts: list[dict[str, Any]] | None = None) -> v1.Pod:
    container = {"name": "app", "image": "a:1", "volumeMounts": mounts or []}
    named = [{"name": f"v{number}", **source} for number, source in enumerate(sources)]
    return pod_of({"containers": [container], "volumes": named}, labels={"app": "web"})


def asked(mounted: Mounted, pod: v1.Pod) -> list[api.Mount]:
    assert pod.spec
    return mounted.for_container(pod.spec.containers[0], {"SUB": "part"})


async def test_files_of_config_maps_secrets_and_the_pod(volumes: Volumes) -> None:
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
    assert (mounted.places["v0"] / "a").read_text() == "1"
    assert (mounted.places["v1"] / "in/pass").read_text() == "secret"
    assert (mounted.places["v2"] / "l").read_text() == 'app="web"'
    assert read_files(mounted.places["v3"]) == {
        "one": b"1",
        "token": b"token of shop/default for vault in web for 3600",
    }


async def test_changed_content_appears_all_at_once_and_old_files_go(
    volumes: Volumes, objects: KnownObjects
) -> None:
    pod = pod_with({"configMap": {"name": "settings"}})
    place = (await volumes.mount(pod)).places["v0"]
    before = (place / "..data").readlink()
    await volumes.refresh(pod)
    assert (place / "..data").readlink() == before
    objects.config_maps["shop/settings"] = read(v1.ConfigMap, {"data": {"a": "9", "c": "3"}})
    await volumes.refresh(pod)
    assert {p.name: p.read_text() for p in place.iterdir() if p.is_file()} == {"a": "9", "c": "3"}
    assert len([p for p in place.iterdir() if p.is_dir() and not p.is_symlink()]) == 1


def test_a_write_that_was_cut_short_leaves_nothing(tmp_path: Path) -> None:
    write_files(tmp_path / "v", {"a": b"1"})
    (tmp_path / "v/..half").mkdir()
    (tmp_path / "v/..data_tmp").symlink_to("..half")
    assert write_files(tmp_path / "v", {"a": b"2", "b/c": b"3"})
    assert read_files(tmp_path / "v") == {"a": b"2", "b/c": b"3"}
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
            "no path inside a volume",
        ),
        ({"emptyDir": {"medium": "Memory"}}, "which Windows does not have"),
        ({"nfs": {"server": "s", "path": "/"}}, "cannot mount: nfs"),
        ({"csi": {"driver": "smb.csi.k8s.io"}}, "cannot mount: csi"),
        ({"iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t"}}, "cannot mount: iscsi"),
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
async def test_what_cannot_be_mounted_is_refused_with_a_sentence(
    volumes: Volumes, source: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(VolumeFailed, match=sentence):
        await volumes.mount(pod_with(source))


async def run(line: str) -> None:
    await asyncio.to_thread(subprocess.run, line, shell=True, check=True)


async def test_a_disk_that_is_full_is_told_and_new_content_is_written_when_it_is_not(
    volumes: Volumes, tmp_path: Path
) -> None:
    volumes.prepare()
    place = tmp_path / "pods"
    pod = pod_with({"secret": {"secretName": "large"}})
    await run(f"mount -t tmpfs -o size=64k tmpfs {place}")
    try:
        with pytest.raises(VolumeFailed, match='volume "v0": No space left on device'):
            await volumes.mount(pod)
        with pytest.raises(VolumeFailed, match='volume "v0": No space left on device'):
            await volumes.refresh(pod)
        await run(f"mount -o remount,size=1m {place}")
        mounted = await volumes.mount(pod)
        assert len((mounted.places["v0"] / "large").read_bytes()) == 100_000
    finally:
        await run(f"umount {place}")


async def test_only_the_nodes_user_can_look_into_the_directories_of_pods(
    volumes: Volumes, tmp_path: Path
) -> None:
    def mode() -> int:
        return (tmp_path / "pods").stat().st_mode & 0o777

    await volumes.mount(pod_with({"secret": {"secretName": "login"}}))
    assert mode() == 0o700
    (tmp_path / "pods").chmod(0o755)
    volumes.prepare()
    assert mode() == 0o700


def test_a_node_that_can_have_no_directory_for_pods_says_so(
    volumes: Volumes, tmp_path: Path
) -> None:
    (tmp_path / "pods").touch()
    with pytest.raises(PermissionDenied, match="cannot be the directory of the pods: File exists"):
        volumes.prepare()


@dataclass
class SlowObjects(KnownObjects):
    """Answers a question about a secret when it is let."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        self.asked.set()
        await self.answers.wait()
        return await super().secret(namespace, name)


async def test_a_pod_that_ends_while_its_secrets_are_asked_for_leaves_nothing(
    tmp_path: Path, objects: KnownObjects
) -> None:
    slow = SlowObjects(secrets=objects.secrets)
    slow.answers.set()
    volumes = Volumes(slow, facts_in(tmp_path))
    pod = pod_with({"secret": {"secretName": "login"}})
    await volumes.mount(pod)
    slow.asked.clear()
    slow.answers.clear()
    refreshing = asyncio.create_task(volumes.refresh(pod))
    await slow.asked.wait()
    await volumes.unmount("uid-1")
    slow.answers.set()
    await refreshing
    assert not volumes.folder("uid-1").exists()


async def test_what_is_being_written_is_removed_with_the_rest(
    volumes: Volumes, objects: KnownObjects
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


async def test_a_claim_of_a_local_volume_is_its_directory(
    volumes: Volumes, objects: KnownObjects, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    objects.claims["shop/data"] = read(v1.PersistentVolumeClaim, {"spec": {"volumeName": "pv1"}})
    objects.volumes["pv1"] = read(
        v1.PersistentVolume, {"spec": {"local": {"path": f"{tmp_path}/disk"}}}
    )
    mounted = await volumes.mount(pod_with({"persistentVolumeClaim": {"claimName": "data"}}))
    assert mounted.places["v0"] == tmp_path / "disk"
    objects.volumes["pv1"] = read(
        v1.PersistentVolume, {"spec": {"nfs": {"server": "s", "path": "/"}}}
    )
    with pytest.raises(VolumeFailed, match="cannot mount: nfs"):
        await volumes.mount(pod_with({"persistentVolumeClaim": {"claimName": "data"}}))


async def test_mounts_are_asked_for_with_their_places(volumes: Volumes, tmp_path: Path) -> None:
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
    found = asked(await volumes.mount(pod), pod)
    assert [mount.readonly for mount in found] == [False, True, True, True, False]
    assert found[2].image.image == "data:1"
    assert found[2].image_sub_path == "in"
    assert (found[3].host_path, found[4].host_path) == (str(tmp_path), "\\\\.\\pipe\\service")


async def test_a_sub_path_is_made_and_stays_inside_its_volume(
    volumes: Volumes, tmp_path: Path
) -> None:
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
    first, second = (Path(mount.host_path) for mount in asked(mounted, pod))
    assert (tmp_path / "host/new/part").is_dir()
    (first / "written").touch()
    assert (tmp_path / "host/new/part/written").exists()
    assert second.read_text() == "content"
    led = pod_with(
        {"hostPath": {"path": f"{tmp_path}/host"}},
        mounts=[{"name": "v0", "mountPath": "C:\\a", "subPath": "link/inner"}],
    )
    with pytest.raises(VolumeFailed, match="failed to prepare subPath"):
        asked(await volumes.mount(led), led)
    assert list((tmp_path / "outside").iterdir()) == []
    await volumes.unmount("uid-1")
    assert not volumes.folder("uid-1").exists()
    assert (tmp_path / "host/new/part/written").exists()


async def test_what_is_left_of_unknown_pods_is_swept(volumes: Volumes) -> None:
    await volumes.mount(pod_with({"emptyDir": {}}))
    await volumes.sweep({"uid-1"}.__contains__)
    assert volumes.folder("uid-1").exists()
    await volumes.sweep(lambda _: False)
    assert not volumes.folder("uid-1").exists()


def test_the_hosts_file_names_the_pod_and_its_aliases(tmp_path: Path) -> None:
    aliases = [{"ip": "10.1.1.1", "hostnames": ["db", "db.example"]}]
    pod = pod_of({"hostAliases": aliases, "subdomain": "s", "hostname": "h"})
    lines = hosts_text(pod, ["10.244.0.5"], facts_in(tmp_path)).splitlines()
    assert "127.0.0.1\tlocalhost" in lines
    assert "10.244.0.5\th.s.shop.svc.cluster.local\th" in lines
    assert "10.1.1.1\tdb\tdb.example" in lines


async def test_last_words_have_a_file_for_each_start(volumes: Volumes) -> None:
    pod = pod_with()
    mounted = await volumes.mount(pod)
    assert pod.spec
    file, mount = mounted.termination_log(pod.spec.containers[0], 2)
    assert file.read_text() == ""
    assert os.stat(file).st_mode & 0o777 == 0o666  # noqa: PTH116
    assert mount.container_path == "/dev/termination-log"

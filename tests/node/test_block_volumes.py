"""Volumes of block mode are disks for the runtime, each at its device path."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import KnownObjects, facts_in, pod_of, read
from winpod.cri.proto import api_pb2 as api
from winpod.node.block_volumes import disk_of, disk_size, make_disk
from winpod.node.volume_files import VolumeFailed
from winpod.node.volumes import Volumes
from winpod.windows.errors import InvalidInput

GIB = 1 << 30


async def asked(path: Path, container: dict[str, Any], **claim: Any) -> list[api.Mount]:
    """The mounts of a container in a pod with one claim, `data`, of a disk at a path."""
    volume = {"volumeMode": "Block", "local": {"path": str(path)}}
    objects = KnownObjects(
        claims={"shop/data": read(v1.PersistentVolumeClaim, {"spec": {"volumeName": "pv1"}})},
        volumes={"pv1": read(v1.PersistentVolume, {"spec": volume})},
    )
    named = [
        {"name": "disk", "persistentVolumeClaim": {"claimName": "data", **claim}},
        {"name": "plain", "emptyDir": {}},
    ]
    pod = pod_of({"containers": [{"name": "app", "image": "a:1", **container}], "volumes": named})
    mounted = await Volumes(objects, facts_in(path.parent)).mount(pod)
    assert pod.spec
    return mounted.for_container(pod.spec.containers[0], {})


async def test_a_disk_in_a_file_is_a_virtual_disk_at_its_device_path(tmp_path: Path) -> None:
    device = {"volumeDevices": [{"name": "disk", "devicePath": "C:\\data"}]}
    (mount,) = await asked(make_disk(tmp_path, GIB), device)
    assert mount.host_path == f"virtual-disk://{tmp_path}/disk.img"
    assert mount.container_path == "C:\\data"
    assert not mount.readonly
    (fixed,) = await asked(tmp_path / "disk.img", device, readOnly=True)
    assert fixed.readonly


def test_a_block_device_is_a_physical_disk(tmp_path: Path) -> None:
    device = tmp_path / "device"
    subprocess.run(["mknod", str(device), "b", "7", "250"], check=True)
    spec = read(v1.PersistentVolumeSpec, {"local": {"path": str(device)}})
    assert disk_of("data", "pv1", spec) == f"physical-disk://{device}"
    with pytest.raises(VolumeFailed, match="a disk that this node cannot find"):
        disk_of("data", "pv1", read(v1.PersistentVolumeSpec, {"nfs": {"path": "/", "server": "s"}}))


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({"volumeMounts": [{"name": "disk", "mountPath": "C:\\data"}]}, "is in volumeMounts"),
        ({"volumeDevices": [{"name": "plain", "devicePath": "C:\\x"}]}, "and is no disk"),
    ],
)
async def test_a_disk_is_no_directory_and_a_directory_no_disk(
    tmp_path: Path, container: dict[str, Any], said: str
) -> None:
    with pytest.raises(VolumeFailed, match=said):
        await asked(make_disk(tmp_path, GIB), container)


def test_the_disk_of_a_claim_has_the_size_that_it_asks_for(tmp_path: Path) -> None:
    claim = {"volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}}
    assert disk_size(claim) == GIB
    assert disk_size({**claim, "volumeMode": "Filesystem"}) == 0
    file = make_disk(tmp_path, disk_size(claim))
    assert file.stat().st_size == GIB
    assert file.stat().st_blocks == 0
    file.write_bytes(b"kept")
    assert make_disk(tmp_path, GIB).read_bytes() == b"kept"
    with pytest.raises(InvalidInput, match="asks for no storage"):
        disk_size({"volumeMode": "Block"})

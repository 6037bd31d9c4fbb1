"""Block volumes are attached as disks at their device paths."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.known_objects import KnownObjects, node_config_in, pod_of, read
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.volumes.block import block_device_of, create_disk_image, requested_disk_size
from winpod.kubelet.volumes.manager import VolumeManager
from winpod.kubelet.volumes.projected import VolumeMountFailed

GIB = 1 << 30


async def mounts_of(path: Path, container: dict[str, Any], **claim: Any) -> list[api.Mount]:
    """Return the mounts of a container in a pod with one claim `data` of the disk at `path`."""
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
    mounted = await VolumeManager(objects, node_config_in(path.parent)).mount(pod)
    assert pod.spec
    return mounted.for_container(pod.spec.containers[0], {})


async def test_disk_image_is_virtual_disk_at_device_path(tmp_path: Path) -> None:
    device = {"volumeDevices": [{"name": "disk", "devicePath": "C:\\data"}]}
    (mount,) = await mounts_of(create_disk_image(tmp_path, GIB), device)
    assert mount.host_path == f"virtual-disk://{tmp_path}/disk.img"
    assert mount.container_path == "C:\\data"
    assert not mount.readonly
    (fixed,) = await mounts_of(tmp_path / "disk.img", device, readOnly=True)
    assert fixed.readonly


def test_block_device_is_physical_disk(tmp_path: Path) -> None:
    device = tmp_path / "device"
    subprocess.run(["mknod", str(device), "b", "7", "250"], check=True)
    spec = read(v1.PersistentVolumeSpec, {"local": {"path": str(device)}})
    assert block_device_of("data", "pv1", spec) == f"physical-disk://{device}"
    with pytest.raises(VolumeMountFailed, match="a block volume of an unsupported type"):
        block_device_of(
            "data", "pv1", read(v1.PersistentVolumeSpec, {"nfs": {"path": "/", "server": "s"}})
        )


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (
            {"volumeMounts": [{"name": "disk", "mountPath": "C:\\data"}]},
            "is listed in volumeMounts",
        ),
        ({"volumeDevices": [{"name": "plain", "devicePath": "C:\\x"}]}, "its volumeMode is not"),
    ],
)
async def test_volume_mode_must_match_mounts_and_devices(
    tmp_path: Path, container: dict[str, Any], said: str
) -> None:
    with pytest.raises(VolumeMountFailed, match=said):
        await mounts_of(create_disk_image(tmp_path, GIB), container)


def test_disk_size_is_requested_storage(tmp_path: Path) -> None:
    claim = {"volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}}
    assert requested_disk_size(claim) == GIB
    assert requested_disk_size({**claim, "volumeMode": "Filesystem"}) == 0
    file = create_disk_image(tmp_path, requested_disk_size(claim))
    assert file.stat().st_size == GIB
    assert file.stat().st_blocks == 0
    file.write_bytes(b"kept")
    assert create_disk_image(tmp_path, GIB).read_bytes() == b"kept"
    with pytest.raises(InvalidInput, match="requests no storage"):
        requested_disk_size({"volumeMode": "Block"})

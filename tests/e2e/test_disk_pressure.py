"""Disk pressure on a Windows node: unused images are removed, then the largest pod is evicted."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import KubectlFailed
from tests.support.e2e.node_process import condition, events_of, is_ready, node
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_cluster import (
    WindowsCluster,
    remove_sandboxes,
    windows_node,
    windows_spec,
)

from winpod.cli.main import app
from winpod.images.base.builder import Base

MIB = 1024**2
NAME, NAMESPACE = "win-small", "disk-pressure"
SIZE = 512 * MIB
PIECE = 16 * MIB
SLEEP = ("cmd", "/c", "ping -n 3600 127.0.0.1 >nul")
TAINT = "node.kubernetes.io/disk-pressure"


@contextmanager
def loop_disk(file: Path, mount_point: Path) -> Iterator[None]:
    """Mount a file system of SIZE bytes from a sparse file."""
    with file.open("wb") as sparse:
        sparse.truncate(SIZE)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(file)], check=True)
    mount_point.mkdir(parents=True)
    subprocess.run(["mount", "-o", "loop", str(file), str(mount_point)], check=True)
    try:
        yield
    finally:
        umount = ["umount", str(mount_point)]
        eventually(
            lambda: subprocess.run(umount, capture_output=True, text=True),
            lambda done: done.returncode == 0,
        )


@dataclass(frozen=True)
class SmallNode:
    cluster: WindowsCluster
    root: Path

    @property
    def free_bytes(self) -> int:
        os.sync()
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def has_disk_pressure(self) -> bool:
        return condition(node(self.cluster.plane, NAME), "DiskPressure").get("status") == "True"

    def is_tainted(self) -> bool:
        taints = node(self.cluster.plane, NAME)["spec"].get("taints", ())
        return any(taint["key"] == TAINT for taint in taints)

    def has_image(self, size: int) -> bool:
        """Return whether the node's status lists an image of at least this size."""
        images = node(self.cluster.plane, NAME)["status"].get("images", ())
        return any(image["sizeBytes"] >= size for image in images)

    def write(self, pod: str, count: int, name: str) -> None:
        """Write this many pieces to a volume.

        The scratch disk of C: never exceeds the free space of the host, and cannot fill it.
        """
        line = f"for /l %i in (1,1,{count}) do copy C:\\piece C:\\data\\{name}%i >nul"
        self.cluster.exec(NAMESPACE, pod, "cmd", "/c", line)

    def fill(self, pod: str, name: str) -> None:
        """Fill the disk beyond the eviction threshold, but not completely."""
        self.write(pod, (self.free_bytes - 40 * MIB) // PIECE, name)

    def phase(self, pod: str) -> str:
        return str(self.status(pod).get("phase", ""))

    def status(self, pod: str) -> dict[str, Any]:
        return dict(self.cluster.get(NAMESPACE, "pod", pod).get("status", {}))


@pytest.fixture
def small(cluster: WindowsCluster, base: Base, tmp_path: Path) -> Iterator[SmallNode]:
    machine = replace(cluster.machines["linux-node"], name=NAME)
    options = (
        *("--eviction-hard", "nodefs.available<10%,imagefs.available<15%"),
        *("--eviction-pressure-transition-period", "60s", "--minimum-image-ttl-duration", "0s"),
    )
    root = tmp_path / "root"
    with loop_disk(tmp_path / "disk", root):
        process = windows_node(cluster.plane, machine, tmp_path, base, "2022", *options)
        with process:
            try:
                cluster.until("the node is ready", lambda: is_ready(cluster.plane, NAME))
                yield SmallNode(cluster, root)
            finally:
                cluster.delete_pods(NAMESPACE)
                remove_sandboxes(root / f"nodes/{NAME}/cri.sock")
        cluster.kubectl("delete", "node", NAME)


def pack_image(folder: Path, name: str, *files: Path) -> str:
    content = folder / name
    content.mkdir()
    for file in files:
        shutil.copy(file, content)
    reference = f"oci:{folder}/layouts/{name}:1"
    app(
        ["image", "pack", str(content), "-t", reference, "--os-version", "2022"],
        standalone_mode=False,
    )
    return reference


def pod(name: str, image: str, *command: str, **spec: Any) -> dict[str, Any]:
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "C:\\data"}]}
    volumes = [{"name": "data", "emptyDir": {}}]
    pod_spec = windows_spec(
        image, *command, nodeName=NAME, container=mounts, volumes=volumes, **spec
    )
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def test_disk_pressure_removes_unused_images_then_evicts_largest_pod(
    small: SmallNode, tmp_path: Path
) -> None:
    cluster = small.cluster
    cluster.plane.create_namespace(NAMESPACE)
    piece, large = tmp_path / "piece", tmp_path / "heavy"
    piece.write_bytes(os.urandom(PIECE))
    large.write_bytes(os.urandom(8 * PIECE))
    image, unused = pack_image(tmp_path, "app", piece), pack_image(tmp_path, "unused", large)
    cluster.plane.apply(pod("once", unused, "cmd", "/c", "exit 0", restartPolicy="Never"))
    cluster.until("the unused image was used once", lambda: small.phase("once") == "Succeeded")
    cluster.delete_pods(NAMESPACE)
    for name in ("modest", "greedy"):
        cluster.plane.apply(pod(name, image, *SLEEP))
    cluster.until_ready(NAMESPACE, "modest", "greedy")
    cluster.until("the node status lists the image", lambda: small.has_image(large.stat().st_size))
    small.write("modest", 2, "kept")
    assert not small.has_disk_pressure()
    assert not small.is_tainted()

    small.fill("greedy", "first")
    cluster.until("the node reports DiskPressure", small.has_disk_pressure)
    cluster.until("the node has the taint", small.is_tainted)
    cluster.until("the unused image is removed", lambda: not small.has_image(large.stat().st_size))
    assert small.phase("greedy") == small.phase("modest") == "Running"

    with suppress(KubectlFailed):  # the pod may be evicted while it still writes
        small.fill("greedy", "second")
    cluster.until("the largest pod is evicted", lambda: small.phase("greedy") == "Failed")
    evicted = small.status("greedy")
    assert evicted["reason"] == "Evicted"
    assert evicted["message"].startswith("The node was low on resource: ephemeral-storage. ")
    assert "Container app was using " in evicted["message"]
    cluster.plane.apply(pod("late", image, *SLEEP))
    cluster.until("new pods are rejected", lambda: small.phase("late") == "Failed")
    assert (
        small.status("late")["message"]
        == "Pod was rejected: The node had condition: [DiskPressure]. "
    )
    event = ("Evicted", evicted["message"])
    eventually(
        lambda: events_of(cluster.plane, NAMESPACE, "greedy"), lambda events: event in events
    )

    cluster.until("the pressure ends", lambda: not small.has_disk_pressure())
    cluster.until("the taint is removed", lambda: not small.is_tainted())
    assert small.phase("modest") == "Running"
    eventually(lambda: small.free_bytes, lambda available: available > SIZE // 2)

"""A Windows node whose disk really fills: unused images go, then the pod that uses most."""

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
def disk(file: Path, place: Path) -> Iterator[None]:
    """A file system of its own, that is as small as its file."""
    with file.open("wb") as sparse:
        sparse.truncate(SIZE)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(file)], check=True)
    place.mkdir(parents=True)
    subprocess.run(["mount", "-o", "loop", str(file), str(place)], check=True)
    try:
        yield
    finally:
        umount = ["umount", str(place)]
        eventually(
            lambda: subprocess.run(umount, capture_output=True, text=True),
            lambda done: done.returncode == 0,
        )


@dataclass(frozen=True)
class SmallNode:
    cluster: WindowsCluster
    place: Path

    @property
    def free(self) -> int:
        os.sync()
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize

    def is_pressed(self) -> bool:
        return condition(node(self.cluster.plane, NAME), "DiskPressure").get("status") == "True"

    def is_tainted(self) -> bool:
        taints = node(self.cluster.plane, NAME)["spec"].get("taints", ())
        return any(taint["key"] == TAINT for taint in taints)

    def has_image(self, size: int) -> bool:
        """Whether the node tells of one that large."""
        images = node(self.cluster.plane, NAME)["status"].get("images", ())
        return any(image["sizeBytes"] >= size for image in images)

    def write(self, pod: str, count: int, name: str) -> None:
        """That many pieces of disk, in a volume: a container's own C: was never promised more than
        the machine had."""
        line = f"for /l %i in (1,1,{count}) do copy C:\\piece C:\\data\\{name}%i >nul"
        self.cluster.exec(NAMESPACE, pod, "cmd", "/c", line)

    def fill(self, pod: str, name: str) -> None:
        """Until there is less room than the node wants, and still some."""
        self.write(pod, (self.free - 40 * MIB) // PIECE, name)

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
    with disk(tmp_path / "disk", root):
        process = windows_node(cluster.plane, machine, tmp_path, base, "2022", *options)
        with process:
            try:
                cluster.until("the node is ready", lambda: is_ready(cluster.plane, NAME))
                yield SmallNode(cluster, root)
            finally:
                cluster.delete_pods(NAMESPACE)
                remove_sandboxes(root / f"nodes/{NAME}/cri.sock")
        cluster.kubectl("delete", "node", NAME)


def packed(folder: Path, name: str, *files: Path) -> str:
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
    mounted = {"volumeMounts": [{"name": "data", "mountPath": "C:\\data"}]}
    volumes = [{"name": "data", "emptyDir": {}}]
    placed = windows_spec(
        image, *command, nodeName=NAME, container=mounted, volumes=volumes, **spec
    )
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": placed}


def test_a_disk_that_fills_costs_unused_images_first_and_then_the_pod_that_uses_most(
    small: SmallNode, tmp_path: Path
) -> None:
    cluster = small.cluster
    cluster.plane.create_namespace(NAMESPACE)
    piece, heavy = tmp_path / "piece", tmp_path / "heavy"
    piece.write_bytes(os.urandom(PIECE))
    heavy.write_bytes(os.urandom(8 * PIECE))
    image, unused = packed(tmp_path, "app", piece), packed(tmp_path, "unused", heavy)
    cluster.plane.apply(pod("once", unused, "cmd", "/c", "exit 0", restartPolicy="Never"))
    cluster.until("it was used once", lambda: small.phase("once") == "Succeeded")
    cluster.delete_pods(NAMESPACE)
    for name in ("modest", "greedy"):
        cluster.plane.apply(pod(name, image, *SLEEP))
    cluster.until_ready(NAMESPACE, "modest", "greedy")
    cluster.until("images are told", lambda: small.has_image(heavy.stat().st_size))
    small.write("modest", 2, "kept")
    assert not small.is_pressed()
    assert not small.is_tainted()

    small.fill("greedy", "first")
    cluster.until("the pressure is told", small.is_pressed)
    cluster.until("others see the taint", small.is_tainted)
    cluster.until("the image is gone", lambda: not small.has_image(heavy.stat().st_size))
    assert small.phase("greedy") == small.phase("modest") == "Running"

    with suppress(KubectlFailed):  # it may have to go before it has written all
        small.fill("greedy", "second")
    cluster.until("a pod has to go", lambda: small.phase("greedy") == "Failed")
    evicted = small.status("greedy")
    assert evicted["reason"] == "Evicted"
    assert evicted["message"].startswith("The node was low on resource: ephemeral-storage. ")
    assert "Container app was using " in evicted["message"]
    cluster.plane.apply(pod("late", image, *SLEEP))
    cluster.until("no other comes", lambda: small.phase("late") == "Failed")
    assert (
        small.status("late")["message"]
        == "Pod was rejected: The node had condition: [DiskPressure]. "
    )
    event = ("Evicted", evicted["message"])
    eventually(lambda: events_of(cluster.plane, NAMESPACE, "greedy"), lambda told: event in told)

    cluster.until("the pressure is over", lambda: not small.is_pressed())
    cluster.until("the taint is gone", lambda: not small.is_tainted())
    assert small.phase("modest") == "Running"
    eventually(lambda: small.free, lambda free: free > SIZE // 2)

"""Cluster whose nodes get hypervisor isolation later: two builds, on one machine.

Control plane, registry, nodes and operator are in one network namespace. The nodes start without
the guest assets and without permission to emulate; a test adds both.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.controlplane import ControlPlane, KubectlFailed
from tests.support.e2e.machines import Machine, machines
from tests.support.e2e.microvms import link_kit
from tests.support.e2e.node_process import NodeProcess, is_ready, node, process_of_nodes
from tests.support.e2e.objects import HYPERVISOR
from tests.support.e2e.windows_cluster import WindowsCluster, remove_sandboxes
from tests.support.e2e.windows_programs import cache
from tests.support.registries import docker_registry
from winpod.compute.hypervisor.accelerator import ALLOW
from winpod.compute.hypervisor.assets import build_assets
from winpod.images.base.builder import Base

BUILDS = {"old": "2019", "new": "2022"}
ALL = "all"
SIZES = Path(__file__).parents[3] / "examples/reserve/config.toml"


@dataclass
class GuestCluster(WindowsCluster):
    directory: Path
    registry: str

    @property
    def machine(self) -> Machine:
        return self.machines["control"]

    def winpod(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.machine.entering, sys.executable, "-m", "winpod", *arguments]
        environment = {**os.environ, "HOME": str(self.directory), "NO_COLOR": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)

    def handlers(self, name: str) -> set[str]:
        listed = node(self.plane, name)["status"]["runtimeHandlers"]
        return {handler["name"] for handler in listed}

    def allow_guests(self) -> None:
        """Provide the guest assets, and restart the nodes with permission to emulate."""
        if HYPERVISOR in self.handlers("new"):
            return
        build_assets(cache() / "root")
        link_kit(self.directory / "root")
        self.nodes[ALL].stop()
        start(self.nodes[ALL], emulation="1")
        self.until("handlers are reported", lambda: HYPERVISOR in self.handlers("new"))

    def until_ready(self, namespace: str, *names: str) -> None:
        """Wait with a longer timeout: the first guest creates the template, an emulated boot."""
        pods = [f"pod/{name}" for name in names]
        try:
            self.kubectl("wait", "-n", namespace, "--for=condition=Ready", "--timeout=900s", *pods)
        except KubectlFailed as error:
            raise AssertionError(self.kubectl("describe", "-n", namespace, *pods)) from error

    def until_rolled_out(self, namespace: str, what: str) -> None:
        self.kubectl("rollout", "status", what, "-n", namespace, "--timeout=900s")

    def microvms(self) -> list[int]:
        """Return the process ids of QEMU."""
        found = self.directory.glob("root/nodes/*/runtime/sandboxes/*/vm/qemu.pid")
        return [int(file.read_text()) for file in found]


@contextmanager
def guest_cluster(directory: Path, base: Base) -> Iterator[GuestCluster]:
    with (
        machines(directory / "machines", "control") as made,
        docker_registry(directory / "registry", inside=made["control"].entering) as registry,
        ControlPlane(
            directory / "plane", network=made["control"].network, address=made["control"].address
        ) as plane,
    ):
        process = process_of_nodes(
            *(plane, made["control"], directory, base, BUILDS),
            "--osversion-labels",
            settings=SIZES.read_text(),
        )
        cluster = GuestCluster(
            plane, made, {ALL: process}, "", {}, made["control"], directory, registry
        )
        _push(cluster)
        start(process, emulation="0")
        try:
            for name in BUILDS:
                cluster.until(f"{name} is ready", partial(is_ready, plane, name))
            yield cluster
        finally:
            away = ("--all", "--all-namespaces", "--force", "--grace-period=0", "--wait=false")
            cluster.kubectl("delete", "deployments,replicasets", *away)
            cluster.kubectl("delete", "pods", *away)
            for name in BUILDS:
                remove_sandboxes(directory / f"root/nodes/{name}/cri.sock")
            process.stop()


def start(process: NodeProcess, *, emulation: str) -> None:
    """Start a process with this emulation setting, regardless of the environment of other tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ALLOW, emulation)
        process.start()


def _push(cluster: GuestCluster) -> None:
    """Push the images: `legacy` for the old build, `image` for both."""
    content = cluster.directory / "content"
    content.mkdir()
    (content / "readme.txt").write_text("an application\r\n")
    cluster.image = f"{cluster.registry}/any:1"
    cluster.images["legacy"] = f"{cluster.registry}/legacy:1"
    for name, builds in ((cluster.image, ("2019", "2022")), (cluster.images["legacy"], ("2019",))):
        options = [word for build in builds for word in ("--os-version", build)]
        packed = cluster.winpod("image", "pack", str(content), "-t", name, *options)
        assert packed.returncode == 0, packed.stderr

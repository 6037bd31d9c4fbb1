"""Stand-in for kubelet.exe on an instance: winpod's node agent with simulated containers.

It joins only with files on the instance's disk, and reports the runtime that its service depends
on. The real kubelet for Windows cannot run here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from winpod.concurrency import supervise
from winpod.config import Config
from winpod.cri.fake_runtime import FakeRuntime
from winpod.cri.proto import api_pb2 as api
from winpod.k8s.certificates import CertificateSubject
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.api_objects import ClusterInformers, pods_of_node_selector
from winpod.kubelet.kubelet import KubeletDeps
from winpod.kubelet.node.agent import NodeAgent
from winpod.kubelet.node.certificate_manager import (
    NodeIdentity,
    RenewalErrors,
    rotate_serving_certificate,
)
from winpod.kubelet.node.multi_node import SimulatedObjectSource, SimulatedVolumeManager
from winpod.kubelet.node.node_options import (
    ConnectionOptions,
    DirectoryOptions,
    NodeOptions,
    NodeSetup,
    split_among_nodes,
)
from winpod.kubelet.node.node_setup import available_handlers, connect_cluster
from winpod.kubelet.node.node_status import MachineInfo
from winpod.placement.model import Taint
from winpod.windows.builds import Build

TAINT = Taint("os", "Windows", "NoSchedule")


class OtherRuntime(FakeRuntime):
    def __init__(self, name: str, version: str, build: Build) -> None:
        super().__init__(build)
        self._answer = api.VersionResponse(runtime_name=name, runtime_version=version)

    async def version(self, request: api.VersionRequest) -> api.VersionResponse:
        del request
        return self._answer


async def run_kubelet(drive: Path, name: str, address: str, build: str, runtime: str) -> None:
    """Run until cancelled; `drive` is the instance's drive C:."""
    home = drive / "k/kubelet"
    kubeconfig = home / "kubeconfig"
    if runtime == "docker":
        kubeconfig = drive / "k/kubeconfig"
    pki = drive / "var/lib/kubelet/pki"
    pki.mkdir(parents=True, exist_ok=True)
    identity = NodeIdentity(name, kubeconfig, pki)
    connection = ConnectionOptions(kubeconfig, home / "bootstrap.kubeconfig")
    setup = NodeSetup(
        Config(drive),
        connection,
        NodeOptions(name, build, simulated=True, register_taint=[str(TAINT)]),
        directories=DirectoryOptions(pod_logs=drive),
    )
    access = await connect_cluster(connection, identity)
    (pki / "kubelet-client-current.pem").touch()
    async with _server(access) as server:
        cluster = ClusterInformers(server)
        objects = SimulatedObjectSource(server, name, cluster)
        version = "2.4.2" if runtime == "containerd" else "20.10.9"
        client = OtherRuntime(runtime, version, setup.build)
        share = split_among_nodes([setup])[name]
        handlers = await available_handlers(client)
        facts = replace(setup.node_config(handlers, share, address, "10.9.0.0/24"), root=drive)
        volumes = SimulatedVolumeManager(objects, facts)
        deps = KubeletDeps(client, facts, objects, volumes)
        agent = NodeAgent(server, deps, MachineInfo(port=0))
        pods = Reflector(server, v1.Pod, "/api/v1/pods", agent, pods_of_node_selector(name))
        subject = CertificateSubject(f"system:node:{name}", names=(name,), addresses=(address,))
        async with asyncio.TaskGroup() as group:
            group.create_task(supervise("services", cluster.run))
            group.create_task(supervise("pods", pods.run))
            group.create_task(agent.run())
            if runtime == "containerd":
                group.create_task(
                    rotate_serving_certificate(identity, subject, server, RenewalErrors())
                )


@asynccontextmanager
async def _server(access: RestConfig) -> AsyncIterator[ApiClient]:
    server = ApiClient(access)
    try:
        yield server
    finally:
        await server.close()

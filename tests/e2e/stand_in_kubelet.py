"""The part of kubelet.exe on an instance, played by winpod's node agent with simulated containers.

It joins with what is on the instance's disk and nothing else, and says that its runtime is the one
that its service depends on. It is a stand-in: the kubelet itself cannot run here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.memory import MemoryRuntime
from winpod.cri.proto import api_pb2 as api
from winpod.node.access import Access
from winpod.node.agent import Agent, for_good
from winpod.node.api import ApiServer
from winpod.node.api_source import ClusterWide, of_node
from winpod.node.certificate_metrics import Renewals
from winpod.node.certificates import Subject
from winpod.node.credentials import Identity, keep_serving
from winpod.node.following import Following
from winpod.node.joining import Cluster
from winpod.node.node_status import Machine
from winpod.node.runtimes import handlers_of
from winpod.node.settings import NodeSettings, parts_of
from winpod.node.simulated import SimulatedObjects, SimulatedVolumes
from winpod.windows.builds import parse_build
from winpod.windows.objects import Taint

TAINT = Taint("os", "Windows", "NoSchedule")


class OtherRuntime(MemoryRuntime):
    def __init__(self, name: str, version: str) -> None:
        super().__init__()
        self._answer = api.VersionResponse(runtime_name=name, runtime_version=version)

    async def version(self, request: api.VersionRequest) -> api.VersionResponse:
        del request
        return self._answer


async def run_kubelet(drive: Path, name: str, address: str, build: str, runtime: str) -> None:
    """Until it is cancelled; `drive` is the instance's drive C:."""
    settings = NodeSettings(
        name=name,
        build=parse_build(build),
        is_simulated=True,
        internal_ip=address,
        taints=(TAINT,),
    )
    home = drive / "k/kubelet"
    kubeconfig = home / "kubeconfig"
    if runtime == "docker":
        kubeconfig = drive / "k/kubeconfig"
    pki = drive / "var/lib/kubelet/pki"
    pki.mkdir(parents=True, exist_ok=True)
    identity = Identity(name, kubeconfig, pki)
    access = await Cluster(kubeconfig, home / "bootstrap.kubeconfig").access(identity)
    (pki / "kubelet-client-current.pem").touch()
    async with _server(access) as server:
        cluster = ClusterWide(server)
        objects = SimulatedObjects(server, name, cluster)
        client = OtherRuntime(runtime, "2.4.2" if runtime == "containerd" else "20.10.9")
        part = parts_of([settings], drive)[name]
        facts = settings.facts(
            drive, drive, await handlers_of(client), part, address, "10.9.0.0/24"
        )
        volumes = SimulatedVolumes(objects, facts)
        agent = Agent(server, client, facts, Machine(port=0), objects, volumes)
        pods = Following(server, v1.Pod, "/api/v1/pods", agent, of_node(name))
        subject = Subject(f"system:node:{name}", names=(name,), addresses=(address,))
        async with asyncio.TaskGroup() as group:
            group.create_task(for_good("services", cluster.run))
            group.create_task(for_good("pods", pods.run))
            group.create_task(agent.run())
            if runtime == "containerd":
                group.create_task(keep_serving(identity, subject, server, Renewals()))


@asynccontextmanager
async def _server(access: Access) -> AsyncIterator[ApiServer]:
    server = ApiServer(access)
    try:
        yield server
    finally:
        await server.close()

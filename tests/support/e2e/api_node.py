"""Node that serves the kubelet API."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e import windows_programs
from tests.support.e2e.node_process import ROOM
from tests.support.e2e.runtime_node import Node
from tests.support.known_objects import node_config_in
from tests.support.pushed_images import push
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import Base
from winpod.k8s.auth import ApiServerAuthorizer
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.api_objects import ApiObjectSource, ClusterInformers, pods_of_node_selector
from winpod.kubelet.eviction.thresholds import EvictionThresholds, parse_thresholds
from winpod.kubelet.kubelet import KubeletDeps
from winpod.kubelet.node.agent import NodeAgent
from winpod.kubelet.node.node_status import MachineInfo
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.server.server import KubeletServer
from winpod.kubelet.server.tls import TlsFiles
from winpod.kubelet.volumes.manager import VolumeManager

LOOPBACK = "127.0.0.1"
TALKER = "C:\\talker.exe"
PATIENCE = 300


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass
class ApiNode:
    """Node of the cluster and a namespace for its pods, accessed with kubectl."""

    plane: ControlPlane
    name: str
    image: str
    url: str
    runtime: CriClient

    async def run(self, *arguments: str, stdin: bytes = b"") -> Ran:
        async with self.running(*arguments) as process:
            out, err = await process.communicate(stdin)
            return Ran(process.returncode or 0, out.decode(), err.decode())

    async def kubectl(self, *arguments: str, stdin: bytes = b"") -> str:
        ran = await self.run(*arguments, stdin=stdin)
        assert ran.code == 0, ran.err
        return ran.out

    @asynccontextmanager
    async def running(
        self, *arguments: str, terminal: int | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        pipe = asyncio.subprocess.PIPE if terminal is None else terminal
        process = await asyncio.create_subprocess_exec(
            *self.plane.kubectl_command("--namespace", self.name, *arguments),
            env={**os.environ, "HOME": str(self.plane.directory)},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def start(self, name: str, *command: str, **spec: Any) -> None:
        container = {
            "name": "app",
            "image": self.image,
            "command": list(command or (TALKER,)),
            "stdin": True,
            **spec.pop("container", {}),
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "nodeName": self.name,
                "containers": [container],
                "terminationGracePeriodSeconds": 1,
                **spec,
            },
        }
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(pod).encode())
        await self.until_said(name, "")

    async def until_said(self, name: str, words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                ran = await self.run("logs", name)
                if ran.code == 0 and words in ran.out:
                    return
                await asyncio.sleep(0.3)

    async def until_complains(self, words: str, *command: str) -> None:
        """Retry until stderr of tar is printed: kubectl cp may exit before it has read that."""
        async with asyncio.timeout(PATIENCE):
            while True:
                ran = await self.run(*command)
                assert ran.code == 1, ran
                if words in ran.out:
                    return


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    """Build the programs before a test sets its own home: their cache is outside of it."""
    return {"talker": windows_programs.go_program(name="talker")}


@pytest.fixture
async def node(
    control_plane: ControlPlane,
    base: Base,
    programs: dict[str, Path],
    tmp_path: Path,
    home: Path,
    registry: str,
) -> AsyncIterator[ApiNode]:
    name = f"win-api-{tmp_path.name.rpartition('_')[2].lower()[-20:]}".replace("_", "-")
    image = await packed(programs, home, registry)
    await asyncio.to_thread(control_plane.create_namespace, name)
    kubeconfig = control_plane.kubeconfig_for(f"system:node:{name}", "system:nodes")
    serving = control_plane.serving_certificate(f"{name}-serving", f"IP:{LOOPBACK}")
    files = TlsFiles(serving.certificate, serving.key, control_plane.authority)
    runtime = Node(tmp_path, base)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(runtime)
        server = ApiClient(read_kubeconfig(kubeconfig))
        stack.push_async_callback(server.close)
        facts = replace(
            node_config_in(tmp_path / "node", handlers=frozenset(("runhcs-wcow-process",))),
            name=name,
            internal_ip=LOOPBACK,
            thresholds=parse_thresholds(ROOM, EvictionThresholds()),
        )
        cluster = ClusterInformers(server)
        objects = ApiObjectSource(server, name, cluster)
        deps = KubeletDeps(client, facts, objects, VolumeManager(objects, facts))
        agent = NodeAgent(server, deps, MachineInfo())
        own = KubeletServer(
            ServerContext(facts, agent.kubelet.runtime, agent.kubelet, objects),
            ApiServerAuthorizer(server, name),
        )
        await own.start(files, LOOPBACK, 0)
        stack.push_async_callback(own.close)
        agent.registration.set_server_port(own.port)
        pods = Reflector(server, v1.Pod, "/api/v1/pods", agent, pods_of_node_selector(name))
        parts = (objects.run(), cluster.run(), pods.run(), agent.run())
        tasks = [asyncio.create_task(part) for part in parts]
        node = ApiNode(control_plane, name, image, f"https://{LOOPBACK}:{own.port}", client)
        try:
            await until_registered(node)
            yield node
        finally:
            await node.run("delete", "pods", "--all", "--force", "--grace-period=0")
            await node.run("delete", "node", name)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
            for item in listed.items:
                request = api.RemovePodSandboxRequest(pod_sandbox_id=item.id)
                await client.call("RemovePodSandbox", request)


async def packed(programs: dict[str, Path], home: Path, registry: str) -> str:
    content = home / "content"
    content.mkdir(exist_ok=True)
    for name, program in programs.items():
        shutil.copy(program, content / f"{name}.exe")
    return await push(home, f"{registry}/talker:1", "10.0.20348.2113")


async def until_registered(node: ApiNode) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await node.run("get", "node", node.name)).code:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

"""Several nodes in one process, real or simulated.

Simulated nodes serve scale tests: their pods have no files, tokens or processes, and they share
connections and one pod watch. Admission, restarts, statuses, events and leases work as on other
nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path

from winpod.concurrency import supervise
from winpod.cri.fake_runtime import FakeRuntime
from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import spec_of
from winpod.kubelet.api_objects import ApiObjectSource, ClusterInformers
from winpod.kubelet.kubelet import KubeletDeps
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.node.agent import NodeAgent
from winpod.kubelet.node.node_options import NodeSetup, split_among_nodes
from winpod.kubelet.node.node_setup import (
    available_handlers,
    connect_cluster,
    run_node,
    source_address,
)
from winpod.kubelet.node.node_status import MachineInfo
from winpod.kubelet.node_config import CapacityShare, NodeConfig
from winpod.kubelet.volumes.manager import MountedVolumes, VolumeManager

_NOWHERE = Path("/nonexistent")


class NoMountedVolumes(MountedVolumes):
    def for_container(
        self,
        container: v1.Container | v1.EphemeralContainer,
        env: Mapping[str, str],
        handler: str = "",
    ) -> list[api.Mount]:
        del container, env, handler
        return []

    def kubelet_mounts(
        self,
        pod: v1.Pod,
        container: v1.Container | v1.EphemeralContainer,
        restart_count: int,
        addresses: Sequence[str],
        node_config: NodeConfig,
    ) -> list[api.Mount]:
        del pod, container, restart_count, addresses, node_config
        return []


_MOUNTED = NoMountedVolumes(_NOWHERE, {})


class SimulatedVolumeManager(VolumeManager):
    """Volume manager that sets up nothing."""

    def prepare(self) -> None:
        pass

    async def mount(self, pod: v1.Pod) -> MountedVolumes:
        del pod
        return _MOUNTED

    async def refresh(self, pod: v1.Pod) -> None:
        del pod

    async def unmount(self, uid: str) -> None:
        del uid

    async def remove_orphans(self, is_known: Callable[[str], bool]) -> None:
        del is_known


class SimulatedObjectSource(ApiObjectSource):
    """API objects without per-node requests: no Node watch and no tokens."""

    async def run(self) -> None:
        """Do nothing: no object is watched per node."""

    async def node(self) -> v1.Node | None:
        return None

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        del audience, seconds, pod
        return f"simulated:{namespace}:{service_account}"


_BOUND_PODS = {"fieldSelector": "spec.nodeName!="}
_SIMULATED_PODS = IPv4Network("10.128.0.0/9")
_log = logging.getLogger(__name__)


async def run_nodes(nodes: Sequence[NodeSetup]) -> None:
    """Run until cancelled; real nodes split the machine. A node that cannot start stops all."""
    shares = split_among_nodes(nodes)
    simulated = [node for node in nodes if node.node.simulated]
    try:
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                if not node.node.simulated:
                    group.create_task(run_node(node, shares[node.name]))
            if simulated:
                group.create_task(run_simulated_nodes(simulated, shares))
    except BaseExceptionGroup as errors:
        raise _first_error(errors) or errors from None


def _first_error(errors: BaseExceptionGroup[BaseException]) -> WinpodError | None:
    """Return the first WinpodError in nested exception groups."""
    for error in errors.exceptions:
        inner = _first_error(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(inner, WinpodError):
            return inner
    return None


class PodDispatcher:
    """Dispatches pods to the agents of their nodes."""

    def __init__(self, agents: dict[str, NodeAgent]) -> None:
        self._agents = agents

    async def on_list(self, objects: Sequence[v1.Pod]) -> None:
        by_node: dict[str, list[v1.Pod]] = {name: [] for name in self._agents}
        for pod in objects:
            if (name := _node_of(pod)) in by_node:
                by_node[name].append(pod)
        for name, pods in by_node.items():
            await self._agents[name].on_list(pods)

    def on_change(self, obj: v1.Pod) -> None:
        if agent := self._agents.get(_node_of(obj)):
            agent.on_change(obj)

    def on_delete(self, obj: v1.Pod) -> None:
        if agent := self._agents.get(_node_of(obj)):
            agent.on_delete(obj)


def _node_of(pod: v1.Pod) -> str:
    return spec_of(pod).nodeName or ""


async def run_simulated_nodes(
    nodes: Sequence[NodeSetup], shares: Mapping[str, CapacityShare]
) -> None:
    """Run simulated nodes with a shared kubeconfig that may act for all of them."""
    rest_config = await connect_cluster(nodes[0].connection, nodes[0].identity)
    server = ApiClient(rest_config)
    cluster = ClusterInformers(server)
    objects = SimulatedObjectSource(server, "", cluster)
    address = source_address(rest_config.url)
    subnets = _SIMULATED_PODS.subnets(new_prefix=24)
    agents: dict[str, NodeAgent] = {}
    metrics = KubeletMetrics()
    for node, subnet in zip(nodes, subnets, strict=False):
        client = FakeRuntime(node.build, node.config.handlers)
        handlers = await available_handlers(client)
        node_config = node.node_config(handlers, shares[node.name], address, str(subnet))
        volumes = SimulatedVolumeManager(objects, node_config)
        agents[node_config.name] = NodeAgent(
            server,
            KubeletDeps(client, node_config, objects, volumes, metrics),
            MachineInfo(port=0),
            manifests=node.directories.manifests,
            invalidate_namespace=objects.invalidate_namespace,
        )
    pods = Reflector(server, v1.Pod, "/api/v1/pods", PodDispatcher(agents), _BOUND_PODS)
    _log.info("Started %s simulated nodes, API server %s", len(agents), rest_config.url)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(supervise("services", cluster.run))
            group.create_task(supervise("pods", pods.run))
            for agent in agents.values():
                group.create_task(agent.run())
    finally:
        await server.close()

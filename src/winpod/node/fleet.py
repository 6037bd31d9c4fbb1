"""Many nodes in one process. Simulated ones share their connections and one watch of all pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network

from lightkube.models import core_v1 as v1

from winpod.cri.memory import MemoryRuntime
from winpod.node.agent import Agent, for_good
from winpod.node.api import ApiServer
from winpod.node.api_source import ClusterWide
from winpod.node.following import Following
from winpod.node.joining import Joined, address_towards, run_node
from winpod.node.node_status import Machine
from winpod.node.requests import spec_of
from winpod.node.runtimes import handlers_of
from winpod.node.settings import parts_of
from winpod.node.simulated import SimulatedObjects, SimulatedVolumes
from winpod.node.splitting import Part
from winpod.node.timings import Timings
from winpod.windows.errors import WinpodError

_BOUND = {"fieldSelector": "spec.nodeName!="}
_SIMULATED_PODS = IPv4Network("10.128.0.0/9")
_log = logging.getLogger(__name__)


async def run_nodes(nodes: Sequence[Joined]) -> None:
    """Until it is cancelled; real nodes split the machine. What one cannot begin with ends all."""
    parts = parts_of([node.settings for node in nodes], nodes[0].config.root)
    simulated = [node for node in nodes if node.settings.is_simulated]
    try:
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                if not node.settings.is_simulated:
                    group.create_task(run_node(node, parts[node.settings.name]))
            if simulated:
                group.create_task(run_simulated(simulated, parts))
    except BaseExceptionGroup as errors:
        raise _sentence_of(errors) or errors from None


def _sentence_of(errors: BaseExceptionGroup[BaseException]) -> WinpodError | None:
    """The first that was meant for people, however deep it is."""
    for error in errors.exceptions:
        found = _sentence_of(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, WinpodError):
            return found
    return None


class PodsByNode:
    """Tells each agent of the pods that are bound to its node."""

    def __init__(self, agents: dict[str, Agent]) -> None:
        self._agents = agents

    async def listed(self, objects: Sequence[v1.Pod]) -> None:
        found: dict[str, list[v1.Pod]] = {name: [] for name in self._agents}
        for pod in objects:
            if (name := _node_of(pod)) in found:
                found[name].append(pod)
        for name, pods in found.items():
            await self._agents[name].listed(pods)

    def changed(self, obj: v1.Pod) -> None:
        if agent := self._agents.get(_node_of(obj)):
            agent.changed(obj)

    def deleted(self, obj: v1.Pod) -> None:
        if agent := self._agents.get(_node_of(obj)):
            agent.deleted(obj)


def _node_of(pod: v1.Pod) -> str:
    return spec_of(pod).nodeName or ""


async def run_simulated(nodes: Sequence[Joined], parts: Mapping[str, Part]) -> None:
    """With the kubeconfig that they share, which must be allowed to act for all of them."""
    access = await nodes[0].cluster.access(nodes[0].identity)
    server = ApiServer(access)
    cluster = ClusterWide(server)
    objects = SimulatedObjects(server, "", cluster)
    address = address_towards(access.url)
    subnets = _SIMULATED_PODS.subnets(new_prefix=24)
    agents: dict[str, Agent] = {}
    timings = Timings()
    for node, subnet in zip(nodes, subnets, strict=False):
        client = MemoryRuntime(node.config.handlers)
        handlers = await handlers_of(client)
        settings, part = node.settings, parts[node.settings.name]
        facts = settings.facts(node.root, node.log_root, handlers, part, address, str(subnet))
        agents[facts.name] = Agent(
            server,
            client,
            facts,
            Machine(port=0),
            objects,
            SimulatedVolumes(objects, facts),
            manifests=node.manifests,
            forget=objects.forget,
            timings=timings,
        )
    pods = Following(server, v1.Pod, "/api/v1/pods", PodsByNode(agents), _BOUND)
    _log.info("%s simulated nodes at %s", len(agents), access.url)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(for_good("services", cluster.run))
            group.create_task(for_good("pods", pods.run))
            for agent in agents.values():
                group.create_task(agent.run())
    finally:
        await server.close()

"""Nodes of `winpod play`: one per Windows build, each with its own CRI runtime and kubelet.

Nodes start on demand and stop when no pod needs them. They share images, base, network and machine.
Allocatable of a node is an equal share of the machine; container limits are relative to the whole
machine, because that is how the runtime computes them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from winpod.config import ComputeKind, Config
from winpod.cri.assemble import RuntimeLocation, assemble, hypervisor_unavailable_reason
from winpod.cri.daemon import DaemonInfo
from winpod.cri.handler_status import HYPERVISOR_INFO, available_handlers, reported_accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import InvalidInput
from winpod.files import remove_tree
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import spec_of
from winpod.kubelet.eviction.thresholds import EvictionThresholds, ThresholdValue
from winpod.kubelet.interfaces import ObjectSource, StatusReporter
from winpod.kubelet.kubelet import Kubelet, KubeletDeps
from winpod.kubelet.node_config import (
    MIB,
    Capacity,
    NodeConfig,
    ReservedCapacity,
    machine_capacity,
)
from winpod.kubelet.volumes.manager import VolumeManager
from winpod.labels import ARCH_LABEL, BUILD_LABEL, OS_LABEL
from winpod.placement.model import Node
from winpod.play.apiserver.objects import Document
from winpod.play.apiserver.pods import PodStore
from winpod.play.kubelet_objects import from_document
from winpod.play.proxy.endpoints import DNS_ADDRESS
from winpod.windows.builds import Build, parse_build
from winpod.windows.isolation import Isolation

_THRESHOLDS = EvictionThresholds(
    memory=ThresholdValue(100 * MIB),
    node_disk=ThresholdValue(1024 * MIB),
    image_disk=ThresholdValue(1024 * MIB),
    image_high=Decimal(1),
)
"""Low eviction thresholds: the machine is a workstation whose disk usage is up to its user."""


def nodes_directory(root: Path) -> Path:
    return root / "nodes"


def node_document(build: Build, name: str) -> Document:
    """Return the Node object for a node of this build."""
    labels = {OS_LABEL: "windows", ARCH_LABEL: "amd64", BUILD_LABEL: str(build.base)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"nodeInfo": {"kernelVersion": str(build)}},
    }


def parse_node(text: str) -> Document:
    """Parse `2022` or `2022:name`; an existing name refers to the existing node."""
    release, _, name = text.partition(":")
    build = parse_build(release)
    short = build.release.short_name if build.release else str(build.number)
    return node_document(build, name or f"win-{short}")


def node_config_of(
    document: Document, root: Path, count: int, *, dns: str, simulated: bool
) -> NodeConfig:
    node = Node.from_object(document)
    build = node.build
    if build is None:
        raise InvalidInput(
            f"The node {node.name} has no build label.",
            f"Label it: {BUILD_LABEL}: 10.0.20348.",
        )
    kernel_build = parse_build(node.kernel_version) if node.kernel_version else build
    node_root = nodes_directory(root) / node.name
    machine = machine_capacity(root)
    cpus, memory, disk = int(machine.cpus), machine.memory_bytes, machine.disk_bytes
    builtin_labels = {OS_LABEL, ARCH_LABEL, BUILD_LABEL}
    return NodeConfig(
        name=node.name,
        build=kernel_build,
        root=node_root,
        cpus=cpus,
        memory_bytes=memory,
        disk_bytes=disk,
        reserved=ReservedCapacity(
            system=_share_of_other_nodes(cpus, memory, disk, count), eviction=Capacity()
        ),
        thresholds=_THRESHOLDS,
        labels={key: value for key, value in node.labels if key not in builtin_labels},
        taints=node.taints,
        internal_ip="127.0.0.1",
        cluster_dns=(dns,) if dns else (),
        log_root=node_root / "logs",
        is_simulated=simulated,
    )


def _share_of_other_nodes(cpus: int, memory: int, disk: int, count: int) -> Capacity:
    """Return the capacity that belongs to the other nodes."""
    others = count - 1
    return Capacity(
        Decimal(cpus) * others / count, memory * others // count, disk * others // count
    )


class PlayNode:
    """A running node. Its pods keep running when it stops."""

    def __init__(
        self,
        facts: NodeConfig,
        location: RuntimeLocation,
        objects: ObjectSource,
        reporter: StatusReporter,
    ) -> None:
        self.facts = facts
        self._location = location
        self._objects = objects
        self._reporter = reporter
        self._stack = AsyncExitStack()
        self._client: CriClient | None = None
        self._kubelet: Kubelet | None = None
        self.accelerator = ""
        self.volumes = VolumeManager(objects, facts)

    @property
    def socket(self) -> Path:
        return self._location.runtime.socket

    @property
    def kubelet(self) -> Kubelet:
        if self._kubelet is None:
            raise RuntimeError(f"node {self.facts.name} is not running")
        return self._kubelet

    async def start(self) -> None:
        location = self._location
        server = await self._stack.enter_async_context(assemble(location))
        await server.start(f"unix:{self.socket}")
        self._stack.push_async_callback(server.stop)
        serving = DaemonInfo(
            str(self.socket), str(location.host.base), os.getpid(), background=False
        )
        serving.write(location.root)
        self._stack.callback(serving.remove, location.root)
        self._client = CriClient(f"unix:{self.socket}")
        self._stack.push_async_callback(self._client.close)
        await self._run(self.facts)

    async def _run(self, facts: NodeConfig) -> None:
        if self._client is None:
            raise RuntimeError(f"node {facts.name} is not running")
        status = await self._client.call("Status", api.StatusRequest(verbose=True))
        self.accelerator = reported_accelerator(status.info, HYPERVISOR_INFO)
        self.facts = facts
        self.volumes = VolumeManager(self._objects, facts)
        deps = KubeletDeps(self._client, facts, self._objects, self.volumes)
        self._kubelet = Kubelet(deps, self._reporter)
        await self._kubelet.start()

    async def reconfigure(self, facts: NodeConfig) -> bool:
        """Restart the kubelet if the configuration differs.

        Return True if it restarted; the caller then has to pass the pods to it again.
        """
        if facts == self.facts:
            return False
        await self.kubelet.stop()
        await self._run(facts)
        return True

    async def stop(self) -> None:
        if self._kubelet:
            await self._kubelet.stop()
            self._kubelet = None
        await self._stack.aclose()


class NodeManager:
    def __init__(
        self, root: Path, config: Config, objects: ObjectSource, reporter: StatusReporter
    ) -> None:
        self._root = root
        self._config = config
        self._objects = objects
        self._reporter = reporter
        self._simulated = config.runtime.compute is ComputeKind.SIMULATED
        self.nodes: dict[str, PlayNode] = {}

    def running_nodes(self) -> list[NodeConfig]:
        return [node.facts for node in self.nodes.values()]

    def node_of(self, pod: v1.Pod) -> PlayNode | None:
        return self.nodes.get(spec_of(pod).nodeName or "")

    def assign_pod(self, pod: v1.Pod) -> bool:
        node = self.node_of(pod)
        if node is None:
            return False
        node.kubelet.update_pod(from_document(v1.Pod, pod.to_dict()))
        return True

    def available_handlers(self, build: Build) -> frozenset[str]:
        """Return the handlers that a node of this build can run on this machine."""
        location = RuntimeLocation(
            self._root, build, runtime=self._config.runtime, hypervisor=self._config.hypervisor
        )
        unavailable = {
            Isolation.PROCESS: "",
            Isolation.HYPERVISOR: hypervisor_unavailable_reason(location),
        }
        return frozenset(
            h.name for h in available_handlers(self._config.handlers, build, unavailable)
        )

    def node_configs(self, documents: Iterable[Document]) -> list[NodeConfig]:
        """Return the configurations of the nodes, with equal shares of the machine."""
        named = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Node"}
        dns = "" if self._simulated else DNS_ADDRESS
        configs = [
            node_config_of(document, self._root, len(named), dns=dns, simulated=self._simulated)
            for document in named.values()
        ]
        return [replace(facts, handlers=self.available_handlers(facts.build)) for facts in configs]

    def validate(self, documents: Iterable[Document]) -> None:
        """Reject nodes without a build, and two builds under one name."""
        builds = {name: node.facts.build for name, node in self.nodes.items()}
        for facts in map(self._config_of, (d for d in documents if d["kind"] == "Node")):
            existing = builds.setdefault(facts.name, facts.build)
            if existing.base != facts.build.base:
                state = "is already running" if facts.name in self.nodes else "is requested twice"
                raise InvalidInput(
                    f"The node {facts.name} of {existing.describe()} {state}, with another build.",
                    "Use another name for the new node: --node 2019:other.",
                )

    def _config_of(self, document: Document) -> NodeConfig:
        return node_config_of(document, self._root, 1, dns="", simulated=self._simulated)

    async def reconcile(self, documents: Sequence[Document], pods: PodStore) -> list[PlayNode]:
        """Start, reconfigure and stop nodes; return those that need their pods again."""
        self.validate(documents)
        desired = {facts.name: facts for facts in self.node_configs(documents)}
        for name in [name for name in self.nodes if name not in desired and not pods.on_node(name)]:
            removed = self.nodes.pop(name)
            await removed.stop()
            await asyncio.to_thread(_remove_node_root, removed.facts.root)
        changed = []
        for name, facts in desired.items():
            if (node := self.nodes.get(name)) is None:
                node = PlayNode(facts, self._location(facts), self._objects, self._reporter)
                await _start(node)
                self.nodes[name] = node
            elif not await node.reconfigure(facts):
                continue
            changed.append(node)
        return changed

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    def _location(self, facts: NodeConfig) -> RuntimeLocation:
        config, root = self._config, nodes_directory(self._root) / facts.name
        settings = replace(config.runtime, socket=root / "runtime/run.sock", tcp="")
        return RuntimeLocation(
            root,
            facts.build,
            config.images,
            config.handlers,
            config.network,
            settings,
            config.hypervisor,
            shared=self._root,
        )


async def _start(node: PlayNode) -> None:
    """Start a node, releasing everything again if that fails."""
    try:
        await node.start()
    except BaseException:
        await node.stop()
        raise


def _remove_node_root(root: Path) -> None:
    """Delete the files of a removed node, unless something is still mounted below."""
    mounts = Path("/proc/self/mountinfo").read_text()
    if f" {root}/" not in mounts:
        remove_tree(root, ignore_errors=True)

"""The nodes of this machine: each a Windows of its own build, with a runtime and an engine.

They share images, base and network, and the machine: each has an equal part of it. What pods of a
node may use is that part; their limits are shares of the whole machine, as its runtime counts.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

from winpod.cri.guests import HYPERVISOR_INFO, told_accelerator
from winpod.cri.local import Place, assembled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.cri.serving import Serving
from winpod.node.engine import Engine
from winpod.node.facts import MIB, NodeFacts, Reserved, Share
from winpod.node.play.objects import Document
from winpod.node.settings import this_machine
from winpod.node.sources import Objects, Reporter
from winpod.node.thresholds import Bound, Thresholds
from winpod.node.volumes import Volumes
from winpod.windows.builds import Build, parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import ARCH_LABEL, BUILD_LABEL, OS_LABEL, Node

_THRESHOLDS = Thresholds(
    memory=Bound(100 * MIB),
    node_disk=Bound(1024 * MIB),
    image_disk=Bound(1024 * MIB),
    image_high=Decimal(1),
)
"""The machine is somebody's own: how full its disk is, is theirs to say."""


def nodes_directory(root: Path) -> Path:
    return root / "nodes"


def node_document(build: Build, name: str) -> Document:
    """As a manifest would describe a node of this build."""
    labels = {OS_LABEL: "windows", ARCH_LABEL: "amd64", BUILD_LABEL: str(build.base)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"nodeInfo": {"kernelVersion": str(build)}},
    }


def parse_node(text: str) -> Document:
    """`2022`, or `2022:name`; a node that is there already is the same one."""
    release, _, name = text.partition(":")
    build = parse_build(release)
    short = build.release.short_name if build.release else str(build.number)
    return node_document(build, name or f"win-{short}")


def facts_of(document: Document, root: Path, count: int, *, dns: str, simulated: bool) -> NodeFacts:
    node = Node.from_object(document)
    build = node.build
    if build is None:
        raise InvalidInput(
            f"the node {node.name} states no build.",
            f"Label it: {BUILD_LABEL}: 10.0.20348.",
        )
    told = parse_build(node.kernel_version) if node.kernel_version else build
    place = nodes_directory(root) / node.name
    machine = this_machine(root)
    cpus, memory, disk = int(machine.cpus), machine.memory_bytes, machine.disk_bytes
    own = {OS_LABEL, ARCH_LABEL, BUILD_LABEL}
    return NodeFacts(
        name=node.name,
        build=told,
        root=place,
        cpus=cpus,
        memory_bytes=memory,
        disk_bytes=disk,
        reserved=Reserved(system=_rest(cpus, memory, disk, count), eviction=Share()),
        thresholds=_THRESHOLDS,
        labels={key: value for key, value in node.labels if key not in own},
        taints=node.taints,
        internal_ip="127.0.0.1",
        cluster_dns=(dns,) if dns else (),
        log_root=place / "logs",
        is_simulated=simulated,
    )


def _rest(cpus: int, memory: int, disk: int, count: int) -> Share:
    """What belongs to the other nodes."""
    others = count - 1
    return Share(Decimal(cpus) * others / count, memory * others // count, disk * others // count)


class PlayNode:
    """One node, from its start to its stop. Pods go on without it."""

    def __init__(
        self, facts: NodeFacts, place: Place, objects: Objects, reporter: Reporter
    ) -> None:
        self.facts = facts
        self._place = place
        self._objects = objects
        self._reporter = reporter
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._engine: Engine | None = None
        self.accelerator = ""
        self.volumes = Volumes(objects, facts)

    @property
    def socket(self) -> Path:
        return self._place.runtime.socket

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError(f"the node {self.facts.name} does not run")
        return self._engine

    async def start(self) -> None:
        place = self._place
        server = await self._stack.enter_async_context(assembled(place))
        await server.start(f"unix:{self.socket}")
        self._stack.push_async_callback(server.stop)
        serving = Serving(str(self.socket), str(place.host.base), os.getpid(), background=False)
        serving.write(place.root)
        self._stack.callback(serving.withdraw, place.root)
        self._client = Client(f"unix:{self.socket}")
        self._stack.push_async_callback(self._client.close)
        await self._run(self.facts)

    async def _run(self, facts: NodeFacts) -> None:
        if self._client is None:
            raise RuntimeError(f"the node {facts.name} does not run")
        status = await self._client.call("Status", api.StatusRequest(verbose=True))
        self.accelerator = told_accelerator(status.info, HYPERVISOR_INFO)
        self.facts = facts
        self.volumes = Volumes(self._objects, facts)
        self._engine = Engine(self._client, facts, self._objects, self._reporter, self.volumes)
        await self._engine.start()

    async def become(self, facts: NodeFacts) -> bool:
        """Another part of the machine, other labels or handlers: the engine starts anew, and its
        pods are to be given to it again. False where nothing is different."""
        if facts == self.facts:
            return False
        await self.engine.stop()
        await self._run(facts)
        return True

    async def stop(self) -> None:
        if self._engine:
            await self._engine.stop()
            self._engine = None
        await self._stack.aclose()

"""The nodes that run: started when they are asked for, stopped when nobody needs them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.config import Config
from winpod.cri.guests import startable
from winpod.cri.local import Place, guest_trouble
from winpod.cri.settings import Compute
from winpod.node.facts import NodeFacts
from winpod.node.play.nodes import PlayNode, facts_of, nodes_directory
from winpod.node.play.objects import Document
from winpod.node.play.pods import Pods
from winpod.node.play.services import DNS_ADDRESS
from winpod.node.play.source import typed
from winpod.node.requests import spec_of
from winpod.node.sources import Objects, Reporter
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.isolation import Isolation


class Fleet:
    def __init__(self, root: Path, config: Config, objects: Objects, reporter: Reporter) -> None:
        self._root = root
        self._config = config
        self._objects = objects
        self._reporter = reporter
        self._simulated = config.runtime.compute is Compute.SIMULATED
        self.nodes: dict[str, PlayNode] = {}

    def running(self) -> list[NodeFacts]:
        return [node.facts for node in self.nodes.values()]

    def node_of(self, pod: v1.Pod) -> PlayNode | None:
        return self.nodes.get(spec_of(pod).nodeName or "")

    def give(self, pod: v1.Pod) -> bool:
        node = self.node_of(pod)
        if node is None:
            return False
        node.engine.set(typed(v1.Pod, pod.to_dict()))
        return True

    def handlers_on(self, build: Build) -> frozenset[str]:
        """Those that a node of this build can start here and now."""
        place = Place(
            self._root, build, runtime=self._config.runtime, hypervisor=self._config.hypervisor
        )
        troubles = {Isolation.PROCESS: "", Isolation.HYPERVISOR: guest_trouble(place)}
        return frozenset(h.name for h in startable(self._config.handlers, build, troubles))

    def facts(self, documents: Iterable[Document]) -> list[NodeFacts]:
        """Of the nodes among these; each has an equal part of the machine."""
        named = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Node"}
        dns = "" if self._simulated else DNS_ADDRESS
        found = [
            facts_of(document, self._root, len(named), dns=dns, simulated=self._simulated)
            for document in named.values()
        ]
        return [replace(facts, handlers=self.handlers_on(facts.build)) for facts in found]

    def refuse(self, documents: Iterable[Document]) -> None:
        """A node that states no build, or another one than the node of its name."""
        builds = {name: node.facts.build for name, node in self.nodes.items()}
        for facts in map(self._facts_alone, (d for d in documents if d["kind"] == "Node")):
            there = builds.setdefault(facts.name, facts.build)
            if there.base != facts.build.base:
                how = "runs" if facts.name in self.nodes else "is asked for as well"
                raise InvalidInput(
                    f"The node {facts.name} is {there.describe()}, and {how}.",
                    "Give the other one another name, as in --node 2019:other.",
                )

    def _facts_alone(self, document: Document) -> NodeFacts:
        return facts_of(document, self._root, 1, dns="", simulated=self._simulated)

    async def settle(self, documents: Sequence[Document], pods: Pods) -> list[PlayNode]:
        """Those that need their pods: they are new, or began anew."""
        self.refuse(documents)
        wanted = {facts.name: facts for facts in self.facts(documents)}
        for name in [name for name in self.nodes if name not in wanted and not pods.on(name)]:
            unwanted = self.nodes.pop(name)
            await unwanted.stop()
            await asyncio.to_thread(_discard, unwanted.facts.root)
        fresh = []
        for name, facts in wanted.items():
            if (node := self.nodes.get(name)) is None:
                node = PlayNode(facts, self._place(facts), self._objects, self._reporter)
                await _start(node)
                self.nodes[name] = node
            elif not await node.become(facts):
                continue
            fresh.append(node)
        return fresh

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    def _place(self, facts: NodeFacts) -> Place:
        config, root = self._config, nodes_directory(self._root) / facts.name
        settings = replace(config.runtime, socket=root / "runtime/run.sock", tcp="")
        return Place(
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
    """One that cannot start leaves nothing behind that a later try would run into."""
    try:
        await node.start()
    except BaseException:
        await node.stop()
        raise


def _discard(root: Path) -> None:
    """The files of a node that is no more; what is still mounted there is left alone."""
    mounts = Path("/proc/self/mountinfo").read_text()
    if f" {root}/" not in mounts:
        shutil.rmtree(root, ignore_errors=True)

"""One node of a cluster: what it is told by an API server or by manifests, its engine does.

The parts go on by themselves: a server that is away, a watch that breaks off and a runtime that
restarts are waited for. Pods go on when all of this ends, and are found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.api import ApiServer
from winpod.node.engine import Engine
from winpod.node.facts import NodeFacts
from winpod.node.node_status import Machine
from winpod.node.pods import uid_of
from winpod.node.registration import Registration
from winpod.node.reporting import ApiReporter
from winpod.node.requests import metadata_of
from winpod.node.sources import Objects
from winpod.node.static_pods import Mirrors, StaticPods, is_mirror
from winpod.node.timings import Timings
from winpod.node.volumes import Volumes
from winpod.windows.errors import WinpodError

_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Agent:
    """Follows the pods that it is given as a `Follower`; the rest it does by itself."""

    def __init__(
        self,
        server: ApiServer,
        client: Client,
        facts: NodeFacts,
        machine: Machine,
        objects: Objects,
        volumes: Volumes,
        *,
        manifests: Path | None = None,
        forget: Callable[[str], None] = lambda _: None,
        forget_pod: Callable[[str], None] = lambda _: None,
        timings: Timings | None = None,
    ) -> None:
        self._client = client
        self._facts = facts
        self._forget = forget
        self._pods: dict[str, v1.Pod] = {}
        timings = timings or Timings()
        self.reporter = ApiReporter(server, facts.name, timings, forgotten=forget_pod)
        self.engine = Engine(client, facts, objects, self.reporter, volumes, timings=timings)
        self.registration = Registration(
            server, client, facts, machine, self.engine.pressures, self._node_told
        )
        self._mirrors = Mirrors(server, self.reporter.tell_again)
        self._statics = StaticPods(
            manifests or facts.root / "manifests", facts.name, self._statics_changed
        )
        self._pod_cidr = ""
        self._new_cidr = asyncio.Event()

    async def run(self) -> None:
        """For good; one that is cancelled leaves everything as it is."""
        self._statics.look()
        await self.engine.start()
        self.reporter.node_event("Normal", "Starting", "Starting kubelet.")
        try:
            await asyncio.gather(
                for_good("registration", self.registration.run),
                for_good("reports", self.reporter.run),
                for_good("static pods", self._statics.run),
                for_good("mirror pods", self._mirrors.run),
                for_good("pod network", self._keep_network),
            )
        finally:
            await self.engine.stop()

    async def listed(self, objects: Sequence[v1.Pod]) -> None:
        """All pods that are bound to the node."""
        for pod in objects:
            _forget_writers(pod)
        self._pods = {uid_of(pod): pod for pod in objects if not is_mirror(pod)}
        self._mirrors.listed(pod for pod in objects if is_mirror(pod))
        for pod in self._pods.values():
            self._forget(metadata_of(pod).namespace or "")
        await self.engine.replace([*self._statics.pods.values(), *self._pods.values()])
        for pod in self._pods.values():
            self.reporter.heard(pod)

    def changed(self, obj: v1.Pod) -> None:
        _forget_writers(obj)
        if is_mirror(obj):
            self._mirrors.changed(obj)
            return
        if uid_of(obj) not in self._pods:
            self._forget(metadata_of(obj).namespace or "")
        self._pods[uid_of(obj)] = obj
        self.engine.set(obj)
        self.reporter.heard(obj)

    def deleted(self, obj: v1.Pod) -> None:
        if is_mirror(obj):
            self._mirrors.deleted(obj)
            return
        self._pods.pop(uid_of(obj), None)
        self.engine.remove(uid_of(obj))

    def _statics_changed(self, before: dict[str, v1.Pod], now: dict[str, v1.Pod]) -> None:
        for uid in before.keys() - now.keys():
            self.engine.remove(uid)
        for pod in now.values():
            self.engine.set(pod)
        self._mirrors.statics(now)

    def _node_told(self, node: v1.Node) -> None:
        self._mirrors.of_node(node)
        spec = node.spec
        cidrs = (spec and spec.podCIDRs) or ([spec.podCIDR] if spec and spec.podCIDR else [])
        told = ",".join(cidrs) or self._facts.pod_cidr
        if told != self._pod_cidr:
            self._pod_cidr = told
            self._new_cidr.set()

    async def _keep_network(self) -> None:
        """The runtime is told the node's pod CIDR, as soon as there is one."""
        if self._facts.pod_cidr and not self._pod_cidr:
            self._pod_cidr = self._facts.pod_cidr
            self._new_cidr.set()
        while True:
            await self._new_cidr.wait()
            self._new_cidr.clear()
            try:
                network = api.NetworkConfig(pod_cidr=self._pod_cidr)
                config = api.RuntimeConfig(network_config=network)
                request = api.UpdateRuntimeConfigRequest(runtime_config=config)
                await self._client.call("UpdateRuntimeConfig", request)
                self.registration.look()
            except WinpodError as error:
                _log.info("the runtime is not told %s: %s", self._pod_cidr, error)
                self._new_cidr.set()
                await asyncio.sleep(_RETRY_SECONDS)


def _forget_writers(pod: v1.Pod) -> None:
    """Who wrote which field takes half of a pod's memory, and is nothing to a node."""
    metadata_of(pod).managedFields = None


async def for_good(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """What must not end: a mistake in one part of the node is no reason for the others to stop."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("%s broke off, and begins again", name)
        await asyncio.sleep(_RETRY_SECONDS)

"""Nodes that run nothing: for scale, their pods have no files, no tokens and no processes.

Everything else is as on other nodes: admission, restarts, statuses, events, leases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.node.api_source import ApiObjects
from winpod.node.facts import NodeFacts
from winpod.node.volumes import Mounted, Volumes

_NOWHERE = Path("/nonexistent")
_NOTHING = api.Mount()


class NothingMounted(Mounted):
    def for_container(
        self,
        container: v1.Container | v1.EphemeralContainer,
        env: Mapping[str, str],
        handler: str = "",
    ) -> list[api.Mount]:
        del container, env, handler
        return []

    def hosts_file(self, pod: v1.Pod, addresses: Sequence[str], facts: NodeFacts) -> api.Mount:
        del pod, addresses, facts
        return _NOTHING

    def termination_log(
        self, container: v1.Container | v1.EphemeralContainer, restart_count: int
    ) -> tuple[Path, api.Mount]:
        del container, restart_count
        return _NOWHERE, _NOTHING


_MOUNTED = NothingMounted(_NOWHERE, {})


class SimulatedVolumes(Volumes):
    """None are made, whatever their kind."""

    def prepare(self) -> None:
        pass

    async def mount(self, pod: v1.Pod) -> Mounted:
        del pod
        return _MOUNTED

    async def refresh(self, pod: v1.Pod) -> None:
        del pod

    async def unmount(self, uid: str) -> None:
        del uid

    async def sweep(self, is_known: Callable[[str], bool]) -> None:
        del is_known


class SimulatedObjects(ApiObjects):
    """The cluster's, but for what a node would ask about itself and its pods alone."""

    async def run(self) -> None:
        """There is nothing that is of one node."""

    async def node(self) -> v1.Node | None:
        return None

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        del audience, seconds, pod
        return f"simulated:{namespace}:{service_account}"

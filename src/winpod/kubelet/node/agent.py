"""The agent of one node: connects its kubelet to an API server and to static pod manifests.

Its parts run independently and retry: an unreachable server, a broken watch or a restarting runtime
is waited for. Pods keep running when the agent stops, and are adopted when it starts again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from winpod.concurrency import supervise
from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, uid_of
from winpod.kubelet.kubelet import Kubelet, KubeletDeps
from winpod.kubelet.node.node_status import MachineInfo
from winpod.kubelet.node.registration import NodeRegistration
from winpod.kubelet.static_pods import MirrorPods, StaticPods, is_mirror_pod
from winpod.kubelet.status.status_manager import StatusManager

_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class NodeAgent:
    """Runs one node. It is the reflector's handler for the pods bound to the node."""

    def __init__(
        self,
        server: ApiClient,
        deps: KubeletDeps,
        machine: MachineInfo,
        *,
        manifests: Path | None = None,
        invalidate_namespace: Callable[[str], None] = lambda _: None,
        invalidate_pod: Callable[[str], None] = lambda _: None,
    ) -> None:
        node_config = deps.node_config
        self._node_config = node_config
        self._invalidate_namespace = invalidate_namespace
        self._pods: dict[str, v1.Pod] = {}
        self.reporter = StatusManager(
            server, node_config.name, deps.metrics, on_forgotten=invalidate_pod
        )
        self.kubelet = Kubelet(deps, self.reporter)
        self.registration = NodeRegistration(
            server,
            self.kubelet.runtime,
            node_config,
            machine,
            self.kubelet.pressures,
            self._on_node_update,
        )
        self._mirror_pods = MirrorPods(server, self.reporter.resend)
        self._static_pods = StaticPods(
            manifests or node_config.root / "manifests",
            node_config.name,
            self._on_static_pods_change,
        )
        self._pod_cidr = ""
        self._cidr_changed = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled; pods are left running."""
        self._static_pods.scan()
        await self.kubelet.start()
        self.reporter.node_event("Normal", "Starting", "Starting kubelet.")
        try:
            await asyncio.gather(
                supervise("registration", self.registration.run),
                supervise("reports", self.reporter.run),
                supervise("static pods", self._static_pods.run),
                supervise("mirror pods", self._mirror_pods.run),
                supervise("pod network", self._sync_pod_cidr),
            )
        finally:
            await self.kubelet.stop()

    async def on_list(self, objects: Sequence[v1.Pod]) -> None:
        """Handle the list of all pods bound to the node."""
        for pod in objects:
            _drop_managed_fields(pod)
        self._pods = {uid_of(pod): pod for pod in objects if not is_mirror_pod(pod)}
        self._mirror_pods.on_list(pod for pod in objects if is_mirror_pod(pod))
        for pod in self._pods.values():
            self._invalidate_namespace(metadata_of(pod).namespace or "")
        await self.kubelet.replace_pods([*self._static_pods.pods.values(), *self._pods.values()])
        for pod in self._pods.values():
            self.reporter.on_server_status(pod)

    def on_change(self, obj: v1.Pod) -> None:
        _drop_managed_fields(obj)
        if is_mirror_pod(obj):
            self._mirror_pods.on_change(obj)
            return
        if uid_of(obj) not in self._pods:
            self._invalidate_namespace(metadata_of(obj).namespace or "")
        self._pods[uid_of(obj)] = obj
        self.kubelet.update_pod(obj)
        self.reporter.on_server_status(obj)

    def on_delete(self, obj: v1.Pod) -> None:
        if is_mirror_pod(obj):
            self._mirror_pods.on_delete(obj)
            return
        self._pods.pop(uid_of(obj), None)
        self.kubelet.remove_pod(uid_of(obj))

    def _on_static_pods_change(self, before: dict[str, v1.Pod], now: dict[str, v1.Pod]) -> None:
        for uid in before.keys() - now.keys():
            self.kubelet.remove_pod(uid)
        for pod in now.values():
            self.kubelet.update_pod(pod)
        self._mirror_pods.set_static_pods(now)

    def _on_node_update(self, node: v1.Node) -> None:
        self._mirror_pods.set_node(node)
        spec = node.spec
        cidrs = (spec and spec.podCIDRs) or ([spec.podCIDR] if spec and spec.podCIDR else [])
        pod_cidr = ",".join(cidrs) or self._node_config.pod_cidr
        if pod_cidr != self._pod_cidr:
            self._pod_cidr = pod_cidr
            self._cidr_changed.set()

    async def _sync_pod_cidr(self) -> None:
        """Pass the node's pod CIDR to the runtime whenever it changes."""
        if self._node_config.pod_cidr and not self._pod_cidr:
            self._pod_cidr = self._node_config.pod_cidr
            self._cidr_changed.set()
        while True:
            await self._cidr_changed.wait()
            self._cidr_changed.clear()
            try:
                network = api.NetworkConfig(pod_cidr=self._pod_cidr)
                config = api.RuntimeConfig(network_config=network)
                request = api.UpdateRuntimeConfigRequest(runtime_config=config)
                await self.kubelet.runtime.call("UpdateRuntimeConfig", request)
                self.registration.trigger()
            except WinpodError as error:
                _log.info("Failed to set pod CIDR %s in the runtime: %s", self._pod_cidr, error)
                self._cidr_changed.set()
                await asyncio.sleep(_RETRY_SECONDS)


def _drop_managed_fields(pod: v1.Pod) -> None:
    """Drop managedFields, which take half of a pod's memory and are not used."""
    metadata_of(pod).managedFields = None

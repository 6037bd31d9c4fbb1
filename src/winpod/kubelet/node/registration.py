"""Registers the node with the API server, updates its status and renews its lease.

The lease is renewed every ten seconds; the status is sent when it changes, and at least every five
minutes. Fields written by others stay, except a NotReady condition set by the node lifecycle
controller, which is overwritten. An unavailable runtime has 30 seconds to return before the node
becomes NotReady.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from winpod.clock import utc_now
from winpod.concurrency import Backoff
from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient, ApiError, forbidden_labels
from winpod.k8s.models import coordination_v1 as coordination
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta, OwnerReference
from winpod.kubelet.node.node_status import (
    MachineInfo,
    RuntimeFindings,
    has_changed,
    label_changes,
    new_node,
    node_labels,
    node_status,
    runtime_findings,
)
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.runtime_client import RuntimeClient
from winpod.kubelet.status.patch import status_patch
from winpod.labels import HYPERVISOR_LABEL

LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
STATUS_CHECK_SECONDS = 10.0
STATUS_REPORT_PERIOD = timedelta(minutes=5)
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0
_RUNTIME_TIMEOUT = 10.0
_RUNTIME_GRACE = 30.0
_LATE_SECONDS = 2 * RENEW_SECONDS
_SUSPECT_SECONDS = 120.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_NODES = "/api/v1/nodes"
_log = logging.getLogger(__name__)


class NodeRegistration:
    """Keeps the Node object and the lease of one node.

    `pressures` returns the node's pressure conditions.
    """

    def __init__(
        self,
        api_server: ApiClient,
        runtime: RuntimeClient,
        node_config: NodeConfig,
        machine: MachineInfo,
        pressures: Callable[[], frozenset[str]],
        on_node_update: Callable[[v1.Node], None] = lambda _: None,
    ) -> None:
        self._api = api_server
        self._runtime = runtime
        self._node_config = node_config
        self._machine = machine
        self._pressures = pressures
        self._on_node_update = on_node_update
        self._node: v1.Node | None = None
        self._reported_at: datetime | None = None
        self._reported_status: v1.NodeStatus | None = None
        self._lease: coordination.Lease | None = None
        self._triggered = asyncio.Event()
        self._last_findings: tuple[float, RuntimeFindings] | None = None
        self._renewed_at = time.monotonic()
        self._suspect_until = 0.0

    def set_server_port(self, port: int) -> None:
        """Set the port of the kubelet API, before registration."""
        self._machine = replace(self._machine, port=port)

    def trigger(self) -> None:
        """Update the status now."""
        self._triggered.set()

    async def run(self) -> None:
        await self._register()
        await asyncio.gather(self._status_loop(), self._lease_loop())

    async def _register(self) -> None:
        backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        while True:
            try:
                await self._try_register()
                return
            except WinpodError as error:
                if self._drop_forbidden_labels(error):
                    continue
                _log.warning("Failed to register node %s: %s", self._node_config.name, error)
                await asyncio.sleep(backoff.next())

    def _drop_forbidden_labels(self, error: WinpodError) -> bool:
        """Drop labels that the node may not set on itself; return whether any were dropped."""
        refused = forbidden_labels(error)
        own = self._node_config.labels
        left = {name: text for name, text in own.items() if name not in refused}
        if left == own:
            return False
        for name in own.keys() - left.keys():
            _log.warning(
                "Node %s may not set the label %s on itself. Run: kubectl label node %s %s=%s",
                *(self._node_config.name, name, self._node_config.name, name, own[name]),
            )
        self._node_config = replace(self._node_config, labels=left)
        return True

    async def _try_register(self) -> None:
        findings = await self._query_runtime()
        status = node_status(self._node_config, self._machine, findings, None, utc_now())
        try:
            self._store_node(
                await self._api.create(_NODES, new_node(self._node_config, findings, status))
            )
        except ApiError as error:
            if not error.is_conflict:
                raise
            await self._adopt(findings)

    async def _adopt(self, findings: RuntimeFindings) -> None:
        """Update the labels of a Node object that exists already."""
        node = await self._api.get(v1.Node, f"{_NODES}/{self._node_config.name}")
        if node is None:
            return
        await self._label(node, {**self._node_config.all_labels, **findings.labels})

    async def _label(self, node: v1.Node, desired: Mapping[str, str | None]) -> None:
        if changes := label_changes(node, desired):
            path = f"{_NODES}/{self._node_config.name}"
            node = await self._api.patch(v1.Node, path, {"metadata": {"labels": changes}})
        self._store_node(node, is_fresh=False)

    async def _status_loop(self) -> None:
        backoff = Backoff(_RETRY_SECONDS, STATUS_CHECK_SECONDS)
        while True:
            wait = STATUS_CHECK_SECONDS
            try:
                await self._update_status()
                backoff.reset()
            except WinpodError as error:
                _log.info("Failed to update status of node %s: %s", self._node_config.name, error)
                wait = backoff.next()
            try:
                async with asyncio.timeout(wait):
                    await self._triggered.wait()
            except TimeoutError:
                pass
            self._triggered.clear()

    async def _update_status(self) -> None:
        await self._refresh_node()
        findings = await self._query_runtime()
        if self._node and label_changes(self._node, findings.labels):
            await self._label(self._node, findings.labels)
        before = self._node.status if self._node else None
        new = node_status(self._node_config, self._machine, findings, before, utc_now())
        is_due = (
            self._reported_at is None or abs(utc_now() - self._reported_at) >= STATUS_REPORT_PERIOD
        )
        if not is_due and not has_changed(new, self._reported_status):
            return
        patch = status_patch(before.to_dict() if before else {}, new.to_dict())
        path = f"{_NODES}/{self._node_config.name}/status"
        try:
            self._store_node(await self._api.patch(v1.Node, path, {"status": patch}))
            self._reported_status = new
        except ApiError as error:
            if not error.is_not_found:
                raise
            await self._try_register()

    async def _refresh_node(self) -> None:
        """Read the Node object, if it may have changed.

        The cluster assigns the pod CIDR some time after the registration, and marks the node
        NotReady after missing heartbeats.
        """
        spec = self._node.spec if self._node else None
        has_subnet = self._node_config.pod_cidr or (spec and spec.podCIDR)
        if has_subnet and time.monotonic() > self._suspect_until:
            return
        node = await self._api.get(v1.Node, f"{_NODES}/{self._node_config.name}")
        if node is None:
            return
        self._node = node
        self._on_node_update(node)
        if not _conditions_match(self._reported_status, node.status):
            self._reported_status = None

    def _store_node(self, node: v1.Node, *, is_fresh: bool = True) -> None:
        self._node = node
        self._reported_at = utc_now() if is_fresh else None
        self._on_node_update(node)

    async def _query_runtime(self) -> RuntimeFindings:
        """Query the runtime. If it is unavailable for long, report that instead."""
        try:
            async with asyncio.timeout(_RUNTIME_TIMEOUT):
                version = await self._runtime.call("Version", api.VersionRequest())
                status = await self._runtime.call("Status", api.StatusRequest(verbose=True))
                images = await self._runtime.call("ListImages", api.ListImagesRequest())
        except (WinpodError, TimeoutError) as error:
            return self._without_runtime(error)
        findings = runtime_findings(version, status, images.images, self._pressures())
        self._last_findings = (time.monotonic(), findings)
        return findings

    def _without_runtime(self, error: Exception) -> RuntimeFindings:
        if self._last_findings and time.monotonic() < self._last_findings[0] + _RUNTIME_GRACE:
            return replace(self._last_findings[1], pressures=self._pressures())
        before = self._node.status if self._node else None
        info = before.nodeInfo if before else None
        return RuntimeFindings(
            info.containerRuntimeVersion if info else "",
            (f"container runtime is down: {error}",),
            tuple((before and before.runtimeHandlers) or ()),
            tuple((before and before.images) or ()),
            self._pressures(),
            node_labels(self._node).get(HYPERVISOR_LABEL, ""),
        )

    async def _lease_loop(self) -> None:
        while True:
            try:
                await self._renew_lease()
                self._note_renewal()
                await asyncio.sleep(RENEW_SECONDS)
            except WinpodError as error:
                level = logging.INFO if self._lease else logging.DEBUG  # log only the first failure
                _log.log(level, "Failed to renew lease of %s: %s", self._node_config.name, error)
                self._lease = None
                await asyncio.sleep(_RETRY_SECONDS)

    def _note_renewal(self) -> None:
        """After a late renewal, expect for a while that the node was marked NotReady."""
        now = time.monotonic()
        if now > self._renewed_at + _LATE_SECONDS:
            self._suspect_until = now + _SUSPECT_SECONDS
        self._renewed_at = now

    async def _renew_lease(self) -> None:
        path = f"{_LEASES}/{self._node_config.name}"
        lease = self._lease or await self._api.get(coordination.Lease, path)
        if lease is None:
            new_lease = coordination.Lease(
                metadata=ObjectMeta(
                    name=self._node_config.name,
                    namespace="kube-node-lease",
                    ownerReferences=self._owners(),
                ),
                spec=self._lease_spec(None),
            )
            self._lease = await self._api.create(_LEASES, new_lease)
            return
        lease.spec = self._lease_spec(lease.spec)
        self._lease = await self._api.replace(path, lease)

    def _lease_spec(self, before: coordination.LeaseSpec | None) -> coordination.LeaseSpec:
        """Return the renewed spec.

        The API requires microseconds in its time. The time only increases, whatever the clock does:
        watchers do not count an earlier time as a renewal.
        """
        last = (before and before.renewTime) or datetime.min.replace(tzinfo=UTC)
        renewed = max(utc_now(), last + timedelta(microseconds=1))
        return coordination.LeaseSpec(
            holderIdentity=self._node_config.name,
            leaseDurationSeconds=LEASE_SECONDS,
            renewTime=renewed if renewed.microsecond else renewed + timedelta(microseconds=1),
        )

    def _owners(self) -> list[OwnerReference]:
        metadata = self._node.metadata if self._node else None
        if metadata is None or not metadata.uid:
            return []
        return [
            OwnerReference(
                apiVersion="v1", kind="Node", name=self._node_config.name, uid=metadata.uid
            )
        ]


def _conditions_match(reported: v1.NodeStatus | None, current: v1.NodeStatus | None) -> bool:
    """Whether the server's conditions match the reported ones."""
    statuses = {c.type: c.status for c in (current and current.conditions) or ()}
    return all(statuses.get(c.type) == c.status for c in (reported and reported.conditions) or ())

"""A node among the cluster's nodes: registered, its status told, its lease renewed.

The lease says every ten seconds that the node lives; the status is told when it changes, and every
five minutes anyway. What others wrote into the Node object stays as it is, but that a node is not
ready which was not heard of for a while: that is told again. A runtime that is away has half a
minute to come back before the node says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lightkube.models import coordination_v1 as coordination
from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.api import ApiServer, Refused
from winpod.node.facts import NodeFacts
from winpod.node.node_status import (
    HYPERVISOR_LABEL,
    Found,
    Machine,
    found_of,
    is_news,
    labels_of,
    new_node,
    node_status,
    wrong_labels,
)
from winpod.node.status_patch import status_patch
from winpod.windows.errors import WinpodError

LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
LOOK_SECONDS = 10.0
TELL_AFTER = timedelta(minutes=5)
_RETRY_SECONDS, _LONGEST_WAIT = 1.0, 30.0
_ANSWER_SECONDS = 10.0
_RUNTIME_PATIENCE = 30.0
_LATE_SECONDS = 2 * RENEW_SECONDS
_DOUBT_SECONDS = 120.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_NODES = "/api/v1/nodes"
_log = logging.getLogger(__name__)


class Registration:
    """`pressures` are those that the node evicts pods for."""

    def __init__(
        self,
        api_server: ApiServer,
        client: Client,
        facts: NodeFacts,
        machine: Machine,
        pressures: Callable[[], frozenset[str]],
        told: Callable[[v1.Node], None] = lambda _: None,
    ) -> None:
        self._api = api_server
        self._client = client
        self._facts = facts
        self._machine = machine
        self._pressures = pressures
        self._told = told
        self._node: v1.Node | None = None
        self._told_at: datetime | None = None
        self._told_status: v1.NodeStatus | None = None
        self._lease: coordination.Lease | None = None
        self._look_now = asyncio.Event()
        self._found: tuple[float, Found] | None = None
        self._renewed_at = time.monotonic()
        self._doubted_until = 0.0

    def listens_at(self, port: int) -> None:
        """Where the node's own API is, known before it is registered."""
        self._machine = replace(self._machine, port=port)

    def look(self) -> None:
        """Something has changed that the status tells."""
        self._look_now.set()

    async def run(self) -> None:
        await self._register()
        await asyncio.gather(self._keep_status(), self._keep_lease())

    async def _register(self) -> None:
        wait = _RETRY_SECONDS
        while True:
            try:
                await self._try_to_register()
                return
            except WinpodError as error:
                if self._leave_out_labels(error):
                    continue
                _log.warning("%s is not registered: %s", self._facts.name, error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)

    def _leave_out_labels(self, error: WinpodError) -> bool:
        """A node may not give itself every label; others may. False where it is not about that."""
        _, sign, names = error.sentence.partition("not allowed to set the following labels: ")
        refused = {name.strip() for name in names.rstrip(".").split(",")} if sign else set()
        own = self._facts.labels
        left = {name: text for name, text in own.items() if name not in refused}
        if left == own:
            return False
        for name in own.keys() - left.keys():
            _log.warning(
                "%s may not label itself; do it: kubectl label node %s %s=%s",
                *(self._facts.name, self._facts.name, name, own[name]),
            )
        self._facts = replace(self._facts, labels=left)
        return True

    async def _try_to_register(self) -> None:
        found = await self._find()
        status = node_status(self._facts, self._machine, found, None, _now())
        try:
            self._take(await self._api.create(_NODES, new_node(self._facts, found, status)))
        except Refused as error:
            if not error.is_conflict:
                raise
            await self._take_over(found)

    async def _take_over(self, found: Found) -> None:
        """The node was here before: its labels are brought up to date."""
        known = await self._api.get(v1.Node, f"{_NODES}/{self._facts.name}")
        if known is None:
            return
        await self._label(known, {**self._facts.all_labels, **found.labels})

    async def _label(self, known: v1.Node, wanted: Mapping[str, str | None]) -> None:
        if wrong := wrong_labels(known, wanted):
            path = f"{_NODES}/{self._facts.name}"
            known = await self._api.patch(v1.Node, path, {"metadata": {"labels": wrong}})
        self._take(known, is_fresh=False)

    async def _keep_status(self) -> None:
        retry = _RETRY_SECONDS
        while True:
            wait = LOOK_SECONDS
            try:
                await self._tell_status()
                retry = _RETRY_SECONDS
            except WinpodError as error:
                _log.info("the status of %s waits: %s", self._facts.name, error)
                wait, retry = retry, min(retry * 2, LOOK_SECONDS)
            try:
                async with asyncio.timeout(wait):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            self._look_now.clear()

    async def _tell_status(self) -> None:
        await self._hear()
        found = await self._find()
        if self._node and wrong_labels(self._node, found.labels):
            await self._label(self._node, found.labels)
        before = self._node.status if self._node else None
        new = node_status(self._facts, self._machine, found, before, _now())
        is_time = self._told_at is None or abs(_now() - self._told_at) >= TELL_AFTER
        if not is_time and not is_news(new, self._told_status):
            return
        patch = status_patch(before.to_dict() if before else {}, new.to_dict())
        path = f"{_NODES}/{self._facts.name}/status"
        try:
            self._take(await self._api.patch(v1.Node, path, {"status": patch}))
            self._told_status = new
        except Refused as error:
            if not error.is_missing:
                raise
            await self._try_to_register()

    async def _hear(self) -> None:
        """What the cluster has of the node: it gives it a subnet some time after it got to know it,
        and says that it is not ready when it did not hear of it for a while."""
        spec = self._node.spec if self._node else None
        has_subnet = self._facts.pod_cidr or (spec and spec.podCIDR)
        if has_subnet and time.monotonic() > self._doubted_until:
            return
        known = await self._api.get(v1.Node, f"{_NODES}/{self._facts.name}")
        if known is None:
            return
        self._node = known
        self._told(known)
        if not _agree(self._told_status, known.status):
            self._told_status = None

    def _take(self, node: v1.Node, *, is_fresh: bool = True) -> None:
        self._node = node
        self._told_at = _now() if is_fresh else None
        self._told(node)

    async def _find(self) -> Found:
        """What the runtime says; that it says nothing for long is a finding too."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                version = await self._client.call("Version", api.VersionRequest())
                status = await self._client.call("Status", api.StatusRequest(verbose=True))
                images = await self._client.call("ListImages", api.ListImagesRequest())
        except (WinpodError, TimeoutError) as error:
            return self._without_runtime(error)
        found = found_of(version, status, images.images, self._pressures())
        self._found = (time.monotonic(), found)
        return found

    def _without_runtime(self, error: Exception) -> Found:
        if self._found and time.monotonic() < self._found[0] + _RUNTIME_PATIENCE:
            return replace(self._found[1], pressures=self._pressures())
        before = self._node.status if self._node else None
        info = before.nodeInfo if before else None
        return Found(
            info.containerRuntimeVersion if info else "",
            (f"container runtime is down: {error}",),
            tuple((before and before.runtimeHandlers) or ()),
            tuple((before and before.images) or ()),
            self._pressures(),
            labels_of(self._node).get(HYPERVISOR_LABEL, ""),
        )

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self._renew_lease()
                self._note_renewal()
                await asyncio.sleep(RENEW_SECONDS)
            except WinpodError as error:
                level = logging.INFO if self._lease else logging.DEBUG  # said once, tried often
                _log.log(level, "the lease of %s is not renewed: %s", self._facts.name, error)
                self._lease = None
                await asyncio.sleep(_RETRY_SECONDS)

    def _note_renewal(self) -> None:
        """One that comes late may be too late: those who wait for it hear of it later still."""
        now = time.monotonic()
        if now > self._renewed_at + _LATE_SECONDS:
            self._doubted_until = now + _DOUBT_SECONDS
        self._renewed_at = now

    async def _renew_lease(self) -> None:
        path = f"{_LEASES}/{self._facts.name}"
        lease = self._lease or await self._api.get(coordination.Lease, path)
        if lease is None:
            made = coordination.Lease(
                metadata=ObjectMeta(
                    name=self._facts.name,
                    namespace="kube-node-lease",
                    ownerReferences=self._owners(),
                ),
                spec=self._lease_spec(None),
            )
            self._lease = await self._api.create(_LEASES, made)
            return
        lease.spec = self._lease_spec(lease.spec)
        self._lease = await self._api.replace(path, lease)

    def _lease_spec(self, before: coordination.LeaseSpec | None) -> coordination.LeaseSpec:
        """Its time is written with microseconds, always, which the API insists on.

        It only grows, whatever the clock does: who watches takes an earlier one for no renewal.
        """
        last = (before and before.renewTime) or datetime.min.replace(tzinfo=UTC)
        renewed = max(_now(), last + timedelta(microseconds=1))
        return coordination.LeaseSpec(
            holderIdentity=self._facts.name,
            leaseDurationSeconds=LEASE_SECONDS,
            renewTime=renewed if renewed.microsecond else renewed + timedelta(microseconds=1),
        )

    def _owners(self) -> list[OwnerReference]:
        metadata = self._node.metadata if self._node else None
        if metadata is None or not metadata.uid:
            return []
        return [
            OwnerReference(apiVersion="v1", kind="Node", name=self._facts.name, uid=metadata.uid)
        ]


def _agree(told: v1.NodeStatus | None, has: v1.NodeStatus | None) -> bool:
    """Whether conditions are as they were told."""
    found = {c.type: c.status for c in (has and has.conditions) or ()}
    return all(found.get(c.type) == c.status for c in (told and told.conditions) or ())


def _now() -> datetime:
    return datetime.now(UTC)

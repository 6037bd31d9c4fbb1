"""Reads snapshots of the cluster for upgrades: nodes, RuntimeClasses and workloads.

Images are resolved only for workloads that the upgrade affects; uncertain results are treated as
unresolved, with the problem. Lists are paginated and processed in a thread, so that an operator
with twenty thousand pods stays responsive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from winpod.images.lookup import ImageLookup, ImageLookupResult, Secrets
from winpod.k8s.client import ApiClient
from winpod.operator.cluster_cache import CLASSES, NODES, PODS
from winpod.operator.owners import (
    WORKLOADS,
    Key,
    ListedPod,
    OwnedWorkload,
    OwnerObject,
    live_pods,
    workloads_of,
)
from winpod.operator.pull_secrets import PullSecrets
from winpod.operator.runtimeclasses.desired_classes import desired_classes
from winpod.operator.runtimeclasses.node_labels import change_labels, with_labels
from winpod.operator.settings import OperatorSettings
from winpod.operator.upgrade.moves import UpgradeWorkload
from winpod.operator.upgrade.plan import (
    ClusterSnapshot,
    UpgradePlan,
    concerned_workloads,
    plan_upgrade,
)
from winpod.operator.upgrade.spec import UpgradeSpec
from winpod.placement.model import Node
from winpod.placement.predicates import with_allocated

LookUp = Callable[[str, Secrets], Awaitable[ImageLookupResult]]
_LOOKUP_SECONDS = 30.0
_RECENT_SECONDS = 60.0
"""How long a resolved tag counts as current."""
_CLASS_KIND = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
_T = TypeVar("_T")


class SnapshotReader:
    def __init__(
        self, api: ApiClient, settings: Callable[[], OperatorSettings], look_up: LookUp
    ) -> None:
        self._api = api
        self._settings = settings
        self._look_up = look_up
        self._secrets = PullSecrets(api)

    async def plan(self, spec: UpgradeSpec, snapshot: ClusterSnapshot) -> UpgradePlan:
        return await asyncio.to_thread(plan_upgrade, spec, snapshot)

    async def snapshot(self, spec: UpgradeSpec) -> ClusterSnapshot:
        """Read the cluster, with the images of the affected workloads."""
        nodes, classes, pods, *owners = await asyncio.gather(
            self._list(NODES, dict[str, Any]),
            self._list(CLASSES, dict[str, Any]),
            self._list(PODS, ListedPod),
            *(self._owners(kind, base_path) for kind, base_path in WORKLOADS.items()),
        )
        owners_by_key = {key: owner for group in owners for key, owner in group.items()}
        settings = self._settings()
        unresolved, owned = await asyncio.to_thread(
            _build_snapshot, nodes, classes, pods, owners_by_key, settings
        )
        names = {str(workload) for workload in concerned_workloads(spec, unresolved)}
        concerned = [o for o in owned if str(o.workload) in names]
        resolved = await asyncio.gather(*(self._with_images(workload) for workload in concerned))
        with_images = {str(workload): workload for workload in resolved}
        workloads = (with_images.get(str(workload), workload) for workload in unresolved.workloads)
        return replace(unresolved, workloads=tuple(workloads))

    async def uses_class(self, name: str) -> str:
        """Return a pod that uses this class, or an empty string."""
        for pod in live_pods(await self._list(PODS, ListedPod)):
            if pod.pod.runtime_class == name:
                return f"{pod.pod.namespace}/{pod.pod.name}"
        return ""

    async def _owners(self, kind: str, base_path: str) -> dict[Key, OwnerObject]:
        listed = await self._list(f"{base_path}/{kind.lower()}s", OwnerObject)
        return {(kind, m.metadata.namespace, m.metadata.name): m for m in listed}

    async def _list(self, path: str, kind: type[_T]) -> list[_T]:
        return (await self._api.list(kind, path, {})).items

    async def _with_images(self, owned: OwnedWorkload) -> UpgradeWorkload:
        workload = owned.workload
        names = workload.pod.pull_secrets
        secrets = await self._secrets.find(workload.namespace, names, owned.account)
        texts = workload.pod.images
        lookups = await asyncio.gather(*(self._look_up(text, secrets) for text in texts))
        owners_by_key = {
            t: f.image for t, f in zip(texts, lookups, strict=True) if f.image and not f.problem
        }
        problems = tuple(dict.fromkeys(f.problem for f in lookups if f.problem))
        return replace(workload, images=owners_by_key, problems=problems)


def _build_snapshot(
    nodes: Sequence[Mapping[str, Any]],
    classes: Iterable[Mapping[str, Any]],
    pods: Iterable[ListedPod],
    owners: Mapping[Key, OwnerObject],
    settings: OperatorSettings,
) -> tuple[ClusterSnapshot, list[OwnedWorkload]]:
    live = live_pods(pods)
    bound = (replace(p.pod.template, node_name=p.pod.node) for p in live if p.pod.node)
    nodes_with_usage = with_allocated((_node(obj, settings) for obj in nodes), bound)
    desired = tuple(
        desired_class.to_object() for desired_class in desired_classes(nodes_with_usage, settings)
    )
    owned = workloads_of(live, owners)
    owners_by_key = tuple({**_CLASS_KIND, **obj} for obj in classes)
    uids = {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in nodes}
    return ClusterSnapshot(
        nodes_with_usage,
        owners_by_key,
        tuple(o.workload for o in owned),
        desired,
        uids,
    ), owned


def _node(obj: Mapping[str, Any], settings: OperatorSettings) -> Node:
    """Decode a node, with the labels that the operator sets."""
    node = Node.from_object(obj)
    return with_labels(node, change_labels(node)) if settings.labels else node


def recent_lookup(images: ImageLookup) -> LookUp:
    """Resolve images for moves, for which guesses and older tags are not sufficient."""
    return partial(images.describe, budget=_LOOKUP_SECONDS, max_age=_RECENT_SECONDS)


class SnapshotCache:
    def __init__(self, reader: SnapshotReader, spec: UpgradeSpec) -> None:
        self._reader = reader
        self._spec = spec
        self._lock = asyncio.Lock()
        self._snapshot: ClusterSnapshot | None = None
        self._plan: UpgradePlan | None = None

    async def snapshot(self) -> ClusterSnapshot:
        async with self._lock:
            return await self._read_snapshot()

    async def plan(self) -> tuple[ClusterSnapshot, UpgradePlan]:
        async with self._lock:
            snapshot = await self._read_snapshot()
            if self._plan is None:
                self._plan = await self._reader.plan(self._spec, snapshot)
            return snapshot, self._plan

    async def _read_snapshot(self) -> ClusterSnapshot:
        if self._snapshot is None:
            self._snapshot = await self._reader.snapshot(self._spec)
        return self._snapshot

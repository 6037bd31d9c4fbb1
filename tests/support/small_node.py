"""Node with simulated containers: a real CRI server with a kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.cri_node import Node
from tests.support.known_objects import KnownObjects, node_config_in, read
from winpod.concurrency import BackoffPolicy
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import uid_of
from winpod.kubelet.interfaces import EventType
from winpod.kubelet.kubelet import Kubelet, KubeletDeps
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.volumes.manager import VolumeManager

QUICK = BackoffPolicy(timedelta(seconds=0.4), timedelta(seconds=2))


class AdjustableClock:
    """Clock that can be set back."""

    def __init__(self) -> None:
        self._shift = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._shift

    def set_back(self) -> None:
        self._shift = timedelta(hours=-5)


@dataclass
class Recorder:
    """Recorder of the kubelet's reports, in order."""

    statuses: dict[str, list[v1.PodStatus]] = field(default_factory=dict)
    events: list[tuple[str, str, str, str]] = field(default_factory=list)
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        self.statuses.setdefault(uid_of(pod), []).append(status)
        self.changed.set()

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        self.annotations[uid_of(pod)] = dict(annotations)
        self.changed.set()

    async def event(
        self, pod: v1.Pod, kind: EventType, reason: str, message: str, container: str = ""
    ) -> None:
        del kind
        self.events.append((uid_of(pod), reason, message, container))
        self.changed.set()

    async def pod_deleted(self, pod: v1.Pod) -> None:
        self.deleted.append(uid_of(pod))
        self.changed.set()

    def reasons(self, uid: str) -> list[str]:
        return [reason for about, reason, *_ in self.events if about == uid]

    def last(self, uid: str) -> Any:
        return self.statuses[uid][-1] if uid in self.statuses else v1.PodStatus()

    def phases(self, uid: str) -> list[str]:
        """Return each phase once, in order."""
        return list(dict.fromkeys(status.phase or "" for status in self.statuses.get(uid, [])))


@dataclass
class SmallNode:
    runtime: Node
    node_config: NodeConfig
    objects: KnownObjects = field(default_factory=KnownObjects)
    reporter: Recorder = field(default_factory=Recorder)
    patience: float = 120.0

    @asynccontextmanager
    async def kubelet(
        self, client: CriClient, volumes: VolumeManager | None = None, **more: Any
    ) -> AsyncIterator[Kubelet]:
        volumes = volumes or VolumeManager(self.objects, self.node_config)
        deps = KubeletDeps(client, self.node_config, self.objects, volumes, backoff=QUICK, **more)
        kubelet = Kubelet(deps, self.reporter)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.stop()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, checked on every report.

        A timeout fails with all reports.
        """
        try:
            async with asyncio.timeout(self.patience):
                while not condition():
                    self.reporter.changed.clear()
                    await self.reporter.changed.wait()
        except TimeoutError:
            last = {uid: statuses[-1].to_dict() for uid, statuses in self.reporter.statuses.items()}
            events, deleted = self.reporter.events, self.reporter.deleted
            reports = f"last statuses {last}, events {events}, deleted {deleted}"
            raise AssertionError(f"timed out waiting for a condition: {reports}") from None


def small_node(root: Path, **node_config: Any) -> SmallNode:
    return SmallNode(Node(root), node_config_in(root / "node", **node_config))


def pod_of(image: str, name: str = "web", *commands: str, **spec: Any) -> v1.Pod:
    """Return a pod with one container per command; `simulate 1 0.5` fails after half a second."""
    containers = [
        {"name": f"app-{n}" if n else "app", "image": image, "command": command.split()}
        for n, command in enumerate(commands or ("serve",))
    ]
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": 1}
    for extra in spec.get("initContainers", ()):
        extra.setdefault("image", image)
    for given, container in zip(spec.pop("with_each", ()), containers, strict=False):
        container.update(given)
    return read(v1.Pod, {"metadata": metadata, "spec": {"containers": containers, **spec}})


async def pulled(client: CriClient, image: str) -> str:
    await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=image)))
    return image

"""A node whose containers are simulated: a real CRI server, and the engine over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lightkube.models import core_v1 as v1

from tests.cri.test_life import Node
from tests.node.known_objects import KnownObjects, facts_in, read
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.backoff import Pace
from winpod.node.engine import Engine
from winpod.node.facts import NodeFacts
from winpod.node.pods import uid_of
from winpod.node.sources import Kind
from winpod.node.volumes import Volumes

QUICK = Pace(timedelta(seconds=0.4), timedelta(seconds=2))


class PutBack:
    """A clock that somebody puts back."""

    def __init__(self) -> None:
        self._shift = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._shift

    def put_back(self) -> None:
        self._shift = timedelta(hours=-5)


@dataclass
class Recorder:
    """What the engine has said, in its order."""

    statuses: dict[str, list[v1.PodStatus]] = field(default_factory=dict)
    events: list[tuple[str, str, str, str]] = field(default_factory=list)
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    away: list[str] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def status(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        self.statuses.setdefault(uid_of(pod), []).append(status)
        self.told.set()

    async def annotate(self, pod: v1.Pod, annotations: Mapping[str, str]) -> None:
        self.annotations[uid_of(pod)] = dict(annotations)
        self.told.set()

    async def event(
        self, pod: v1.Pod, kind: Kind, reason: str, message: str, container: str = ""
    ) -> None:
        del kind
        self.events.append((uid_of(pod), reason, message, container))
        self.told.set()

    async def gone(self, pod: v1.Pod) -> None:
        self.away.append(uid_of(pod))
        self.told.set()

    def reasons(self, uid: str) -> list[str]:
        return [reason for about, reason, *_ in self.events if about == uid]

    def last(self, uid: str) -> Any:
        return self.statuses[uid][-1] if uid in self.statuses else v1.PodStatus()

    def phases(self, uid: str) -> list[str]:
        """Each phase once, in the order they came."""
        return list(dict.fromkeys(status.phase or "" for status in self.statuses.get(uid, [])))


@dataclass
class SmallNode:
    runtime: Node
    facts: NodeFacts
    objects: KnownObjects = field(default_factory=KnownObjects)
    said: Recorder = field(default_factory=Recorder)
    patience: float = 120.0

    @asynccontextmanager
    async def engine(self, client: Client, **more: Any) -> AsyncIterator[Engine]:
        volumes = Volumes(self.objects, self.facts)
        engine = Engine(client, self.facts, self.objects, self.said, volumes, pace=QUICK, **more)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Looks whenever something was said; all that was said is the failure's message."""
        try:
            async with asyncio.timeout(self.patience):
                while not is_so():
                    self.said.told.clear()
                    await self.said.told.wait()
        except TimeoutError:
            last = {uid: told[-1].to_dict() for uid, told in self.said.statuses.items()}
            told = f"the last statuses {last}, events {self.said.events}, away {self.said.away}"
            raise AssertionError(f"it did not come true, and this was said: {told}") from None


def small_node(root: Path, **facts: Any) -> SmallNode:
    return SmallNode(Node(root), facts_in(root / "node", **facts))


def pod_of(image: str, name: str = "web", *commands: str, **spec: Any) -> v1.Pod:
    """A pod of one container for each command; `simulate 1 0.5` fails after half a second."""
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


async def pulled(client: Client, image: str) -> str:
    await client.call("PullImage", api.PullImageRequest(image=api.ImageSpec(image=image)))
    return image

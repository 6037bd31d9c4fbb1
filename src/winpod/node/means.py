"""What the engine acts with: the runtime, the cluster's objects, and the rest of the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from lightkube.models import core_v1 as v1

from winpod.cri.rpc import Client
from winpod.node.backoff import Pace
from winpod.node.checks import Checks
from winpod.node.facts import NodeFacts
from winpod.node.pulling import Puller
from winpod.node.readiness import Readiness
from winpod.node.sources import Kind, Objects, Reporter
from winpod.node.timings import Timings
from winpod.node.view import CALL_SECONDS, RuntimeView, call_in_time
from winpod.node.volumes import Volumes


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Means:
    client: Client
    facts: NodeFacts
    objects: Objects
    reporter: Reporter
    volumes: Volumes
    puller: Puller
    checks: Checks
    view: RuntimeView
    readiness: Readiness
    timings: Timings
    clock: Callable[[], datetime] = utc_now
    pace: Pace = field(default_factory=Pace)

    async def call(self, name: str, request: Message, seconds: float = CALL_SECONDS) -> Any:
        return await call_in_time(self.client, name, request, seconds)

    async def tell(
        self, pod: v1.Pod, kind: Kind, reason: str, message: str, container: str = ""
    ) -> None:
        await self.reporter.event(pod, kind, reason, message, container)

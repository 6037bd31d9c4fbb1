"""Shared dependencies of the kubelet's parts: runtime client, API objects, and managers."""

from __future__ import annotations

from dataclasses import dataclass, field

from winpod.clock import Clock, utc_now
from winpod.concurrency import BackoffPolicy
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.images.image_manager import ImageManager
from winpod.kubelet.interfaces import EventType, ObjectSource, StatusReporter
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.pleg import Pleg
from winpod.kubelet.prober.probe import Prober
from winpod.kubelet.runtime_client import RuntimeClient
from winpod.kubelet.volumes.manager import VolumeManager


@dataclass(frozen=True, slots=True)
class KubeletContext:
    runtime: RuntimeClient
    node_config: NodeConfig
    objects: ObjectSource
    reporter: StatusReporter
    volumes: VolumeManager
    image_manager: ImageManager
    prober: Prober
    pleg: Pleg
    metrics: KubeletMetrics
    clock: Clock = utc_now
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)

    async def record_event(
        self, pod: v1.Pod, kind: EventType, reason: str, message: str, container: str = ""
    ) -> None:
        await self.reporter.event(pod, kind, reason, message, container)

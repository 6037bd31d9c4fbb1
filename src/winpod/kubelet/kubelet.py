"""The kubelet: runs the pods bound to the node through the container runtime.

Starts one worker per pod, shares one PLEG between them, and runs the node's periodic tasks: volume
refresh, image garbage collection, log rotation and eviction. Pods that are missing from the source
but still present in the runtime are killed. A pod that is added again while it terminates, and a
static pod whose predecessor of the same name terminates, wait until that termination is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from winpod.clock import Clock, utc_now
from winpod.concurrency import BackoffPolicy
from winpod.cri.rpc import CriClient
from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.k8s.pods import format_pod, is_static, metadata_of, pod_log_fields, uid_of
from winpod.kubelet.admission.handler import AdmissionHandler
from winpod.kubelet.admission.predicates import AllocatedResources
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.eviction.manager import EvictionManager
from winpod.kubelet.images.image_gc import ImageGC
from winpod.kubelet.images.image_manager import ImageManager
from winpod.kubelet.interfaces import ObjectSource, StatusReporter
from winpod.kubelet.logs.rotation import LogRotation
from winpod.kubelet.metrics import KubeletMetrics
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.pleg import Pleg
from winpod.kubelet.pod_worker import PodWorker, WorkerContext
from winpod.kubelet.prober.probe import Prober
from winpod.kubelet.prober.results import ProbeResult
from winpod.kubelet.prober.worker import ProbeType
from winpod.kubelet.runtime_client import RuntimeClient
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimePod
from winpod.kubelet.volumes.manager import VolumeManager

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyncPeriods:
    """Periods of the node's background tasks, in seconds."""

    volumes: float = 60.0
    eviction: float = 10.0
    images: float = 300.0
    logs: float = 10.0


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod of this node with its reported status and its state in the runtime.

    `probe_counts` counts probe results by container, probe type and result.
    """

    pod: v1.Pod
    status: v1.PodStatus | None
    runtime_pod: RuntimePod
    probe_counts: Mapping[tuple[str, ProbeType, ProbeResult], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubeletDeps:
    """What a kubelet depends on besides its status reporter."""

    client: CriClient
    node_config: NodeConfig
    objects: ObjectSource
    volumes: VolumeManager
    metrics: KubeletMetrics = field(default_factory=KubeletMetrics)
    clock: Clock = utc_now
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    sync_periods: SyncPeriods = field(default_factory=SyncPeriods)


class Kubelet:
    def __init__(self, deps: KubeletDeps, reporter: StatusReporter) -> None:
        self._sync_periods = deps.sync_periods
        self.metrics = deps.metrics
        self.runtime = RuntimeClient(deps.client, self.metrics)
        self._pleg = Pleg(self.runtime, self._on_runtime_change)
        self._context = KubeletContext(
            runtime=self.runtime,
            node_config=deps.node_config,
            objects=deps.objects,
            reporter=reporter,
            volumes=deps.volumes,
            image_manager=ImageManager(self.runtime, deps.objects, reporter),
            prober=Prober(self.runtime),
            pleg=self._pleg,
            metrics=self.metrics,
            clock=deps.clock,
            backoff=deps.backoff,
        )
        self._image_gc = ImageGC(self._context)
        self._log_rotation = LogRotation(self.runtime)
        self._eviction_manager = EvictionManager(
            self._context, self._image_gc, self._evictable_pods
        )
        admission = AdmissionHandler(
            self._context,
            self._allocated_resources,
            self._eviction_manager.pressures,
            self._active_pods,
        )
        self._worker_context = WorkerContext(self._allocated_resources, admission.admission_failure)
        self._workers: dict[str, PodWorker] = {}
        self._waiting: dict[str, v1.Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._background_tasks: list[asyncio.Task[None]] = []
        self._is_source_synced = asyncio.Event()

    @property
    def is_runtime_up(self) -> bool:
        """Whether the last PLEG relist succeeded."""
        return self._pleg.is_answering

    async def start(self) -> None:
        """Start the PLEG and the background tasks. Pods are synced after the first relist."""
        self._context.volumes.prepare()
        self._pleg.start()
        self._background_tasks.append(asyncio.create_task(self._remove_orphans()))
        self._start_periodic("Volume refresh", self._sync_periods.volumes, self._refresh_volumes)
        if not self._context.node_config.is_simulated:
            self._start_periodic(
                "Eviction check", self._sync_periods.eviction, self._eviction_manager.synchronize
            )
            self._start_periodic(
                "Image garbage collection", self._sync_periods.images, self._collect_images
            )
            self._start_periodic(
                "Log rotation", self._sync_periods.logs, self._log_rotation.rotate_all
            )

    async def stop(self) -> None:
        """Stop syncing. Containers keep running."""
        tasks = [*self._tasks.values(), *self._background_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pleg.stop()
        await self._context.prober.close()

    def pressures(self) -> frozenset[str]:
        """Return the node conditions that reject pods: MemoryPressure, DiskPressure."""
        return self._eviction_manager.pressures()

    def update_pod(self, pod: v1.Pod) -> None:
        """Handle a pod that was added, changed, or marked for deletion."""
        worker = self._workers.get(uid_of(pod))
        if worker and not worker.is_removed:
            worker.set(pod)
        elif self._must_wait(pod):
            self._waiting[uid_of(pod)] = pod
        else:
            self._start_worker(pod)

    def remove_pod(self, uid: str) -> None:
        """Handle a pod that no longer exists in the source."""
        self._waiting.pop(uid, None)
        if worker := self._workers.get(uid):
            worker.remove()

    async def replace_pods(self, pods: Iterable[v1.Pod]) -> None:
        """Replace the full set of pods; pods that are not listed are removed."""
        listed = {uid_of(pod): pod for pod in pods}
        for pod in listed.values():
            self.update_pod(pod)
        for uid in (self._workers.keys() | self._waiting.keys()) - listed.keys():
            self.remove_pod(uid)
        self._is_source_synced.set()
        for uid in self._pleg.uids():
            self._on_runtime_change(uid)

    def pods(self) -> list[PodEntry]:
        return [self._to_entry(worker) for worker in self._workers.values()]

    def find_pod(self, namespace: str, name: str) -> PodEntry | None:
        for worker in reversed(self._workers.values()):
            if _full_name(worker.pod) == (namespace, name):
                return self._to_entry(worker)
        return None

    def find_container(self, namespace: str, name: str, container: str) -> RuntimeContainer | None:
        """Return the newest container with that name."""
        entry = self.find_pod(namespace, name)
        return entry.runtime_pod.latest_container(container) if entry else None

    def _to_entry(self, worker: PodWorker) -> PodEntry:
        status = worker.status or worker.pod.status
        return PodEntry(worker.pod, status, self._pleg.pod(worker.uid), worker.probe_counts)

    def _must_wait(self, pod: v1.Pod) -> bool:
        """Whether this pod, or a static pod of the same name, is still terminating."""
        if uid_of(pod) in self._workers:
            return True
        return is_static(pod) and self.find_pod(*_full_name(pod)) is not None

    def _start_worker(self, pod: v1.Pod) -> PodWorker:
        worker = PodWorker(pod, self._context, self._worker_context)
        self._workers[worker.uid] = worker
        task = asyncio.create_task(self._run_worker(worker), name=f"pod {worker.uid}")
        self._tasks[worker.uid] = task
        return worker

    async def _run_worker(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[worker.uid], self._tasks[worker.uid]
            self._context.image_manager.forget_pod(worker.uid)
        self._start_waiting_pods()
        for other in self._workers.values():
            if other.is_resize_deferred:
                other.wake()

    def _start_waiting_pods(self) -> None:
        """Start the waiting pods whose predecessor has terminated."""
        for uid, pod in list(self._waiting.items()):
            if not self._must_wait(pod):
                del self._waiting[uid]
                self._start_worker(pod)

    def _allocated_resources(self, excluded_uid: str) -> list[AllocatedResources]:
        return [
            worker.allocated_resources
            for worker in self._workers.values()
            if worker.is_active and worker.uid != excluded_uid
        ]

    def _active_pods(self) -> dict[str, tuple[v1.Pod, PodWorker]]:
        return {w.uid: (w.allocated_pod, w) for w in self._workers.values() if w.is_active}

    def _evictable_pods(self) -> dict[str, tuple[v1.Pod, PodWorker]]:
        return {
            uid: pair for uid, pair in self._active_pods().items() if not pair[1].is_terminating
        }

    def _on_runtime_change(self, uid: str) -> None:
        if worker := self._workers.get(uid):
            worker.wake()
        elif self._is_source_synced.is_set() and (runtime_pod := self._pleg.pod(uid)).sandboxes:
            self._start_worker(_pod_from_runtime(uid, runtime_pod)).remove()

    async def _remove_orphans(self) -> None:
        """Remove orphaned volumes once, after the source and the runtime have both been listed."""
        await self._is_source_synced.wait()
        await self._pleg.is_synced.wait()
        try:
            await self._context.volumes.remove_orphans(self._is_pod_present)
        except OSError as error:
            _log.warning("Failed to remove orphaned pod volumes: %s", error)

    def _is_pod_present(self, uid: str) -> bool:
        return uid in self._workers or uid in self._pleg.uids()

    async def _refresh_volumes(self) -> None:
        for worker in list(self._workers.values()):
            if worker.is_active:
                try:
                    await self._context.volumes.refresh(worker.pod)
                except WinpodError as error:
                    _log.info(
                        "Failed to refresh volumes of pod %s: %s",
                        *(format_pod(worker.pod), error),
                        extra=pod_log_fields(worker.pod),
                    )

    async def _collect_images(self) -> None:
        await self._image_gc.collect_garbage()

    def _start_periodic(
        self, name: str, seconds: float, task: Callable[[], Awaitable[None]]
    ) -> None:
        self._background_tasks.append(
            asyncio.create_task(self._run_periodically(name, seconds, task))
        )

    async def _run_periodically(
        self, name: str, seconds: float, task: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await task()
            except (WinpodError, OSError) as error:
                _log.warning("Periodic task %s failed: %s", name, error, extra={"task": name})
            except Exception:
                _log.exception("Periodic task %s failed", name, extra={"task": name})


def _full_name(pod: v1.Pod) -> tuple[str, str]:
    metadata = metadata_of(pod)
    return metadata.namespace or "", metadata.name or ""


def _pod_from_runtime(uid: str, runtime_pod: RuntimePod) -> v1.Pod:
    """Rebuild a minimal pod from the runtime's records, to kill a pod the source does not have."""
    newest = runtime_pod.sandboxes[0]
    names = dict.fromkeys(container.name for container in runtime_pod.containers())
    return v1.Pod(
        metadata=ObjectMeta(uid=uid, name=newest.name, namespace=newest.namespace),
        spec=v1.PodSpec(containers=[v1.Container(name=name) for name in names]),
    )

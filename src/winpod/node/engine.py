"""The kubelet's heart: pods in, what the runtime does with them out.

A worker for each pod, one view of the runtime for all, and what the node does for itself: volumes
kept up to date, images that nobody uses removed, pods evicted before the machine has nothing left.
Pods that a source does not name, and that only the runtime remembers, are ended. A pod that comes
back while it ends, and a static pod whose predecessor of the same name ends, wait for that end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lightkube.models import core_v1 as v1
from lightkube.models.meta_v1 import ObjectMeta

from winpod.cri.rpc import Client
from winpod.node.admission import Taken
from winpod.node.backoff import Pace
from winpod.node.checks import Checks
from winpod.node.facts import NodeFacts
from winpod.node.health import Result
from winpod.node.image_garbage import ImageGarbage
from winpod.node.log_rotation import LogRotation
from winpod.node.means import Means, utc_now
from winpod.node.pods import is_static, uid_of
from winpod.node.probes import Kind
from winpod.node.pulling import Puller
from winpod.node.readiness import Readiness
from winpod.node.relief import Relief
from winpod.node.requests import metadata_of
from winpod.node.seen import ContainerSeen, PodSeen
from winpod.node.sources import Objects, Reporter
from winpod.node.taking import Taking
from winpod.node.timings import TimedRuntime, Timings
from winpod.node.view import RuntimeView
from winpod.node.volumes import Volumes
from winpod.node.worker import Neighbours, Worker
from winpod.windows.errors import WinpodError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How many seconds pass between two rounds of each work that the node does for itself."""

    volumes: float = 60.0
    relief: float = 10.0
    images: float = 300.0
    logs: float = 10.0


@dataclass(frozen=True, slots=True)
class PodFound:
    """A pod that the engine has, what it says of it, and what the runtime has of it.

    `probed` counts the answers of probes, by container and kind.
    """

    pod: v1.Pod
    status: v1.PodStatus | None
    seen: PodSeen
    probed: Mapping[tuple[str, Kind, Result], int] = field(default_factory=dict)


class Engine:
    def __init__(
        self,
        client: Client,
        facts: NodeFacts,
        objects: Objects,
        reporter: Reporter,
        volumes: Volumes,
        clock: Callable[[], datetime] = utc_now,
        pace: Pace | None = None,
        timings: Timings | None = None,
        rhythm: Rhythm | None = None,
    ) -> None:
        self._rhythm = rhythm or Rhythm()
        self.timings = timings or Timings()
        client = TimedRuntime(client, self.timings)
        self._view = RuntimeView(client, self._changed)
        self._means = Means(
            client=client,
            facts=facts,
            objects=objects,
            reporter=reporter,
            volumes=volumes,
            puller=Puller(client, objects, reporter),
            checks=Checks(client),
            view=self._view,
            readiness=Readiness(client),
            timings=self.timings,
            clock=clock,
            pace=pace or Pace(),
        )
        self._images = ImageGarbage(self._means)
        self._logs = LogRotation(client)
        self._relief = Relief(self._means, self._images, self._could_go)
        taking = Taking(self._means, self._taken, self._relief.pressures, self._active)
        self._neighbours = Neighbours(self._taken, taking.refusal)
        self._workers: dict[str, Worker] = {}
        self._waiting: dict[str, v1.Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._chores: list[asyncio.Task[None]] = []
        self._is_settled = asyncio.Event()

    @property
    def is_answered(self) -> bool:
        """Whether the runtime answers at the moment."""
        return self._view.is_answering

    async def start(self) -> None:
        """Pods that were set are looked after from now on, once the runtime has answered."""
        self._means.volumes.prepare()
        self._view.start()
        self._chores.append(asyncio.create_task(self._sweep()))
        self._begin(self._rhythm.volumes, self._refresh_volumes)
        if not self._means.facts.is_simulated:
            self._begin(self._rhythm.relief, self._relief.look)
            self._begin(self._rhythm.images, self._collect_images)
            self._begin(self._rhythm.logs, self._logs.look)

    async def stop(self) -> None:
        """Pods go on; nobody looks after them."""
        tasks = [*self._tasks.values(), *self._chores]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._view.stop()
        await self._means.checks.close()

    def pressures(self) -> frozenset[str]:
        """The conditions of the node that keep pods away: MemoryPressure, DiskPressure."""
        return self._relief.pressures()

    def set(self, pod: v1.Pod) -> None:
        """A pod that is new, has changed, or is to be deleted."""
        worker = self._workers.get(uid_of(pod))
        if worker and not worker.is_removed:
            worker.set(pod)
        elif self._has_to_wait(pod):
            self._waiting[uid_of(pod)] = pod
        else:
            self._look_after(pod)

    def remove(self, uid: str) -> None:
        """The pod is no longer anywhere else."""
        self._waiting.pop(uid, None)
        if worker := self._workers.get(uid):
            worker.remove()

    async def replace(self, pods: Iterable[v1.Pod]) -> None:
        """All pods that there are: others have been removed, also while nobody looked."""
        named = {uid_of(pod): pod for pod in pods}
        for pod in named.values():
            self.set(pod)
        for uid in (self._workers.keys() | self._waiting.keys()) - named.keys():
            self.remove(uid)
        self._is_settled.set()
        for uid in self._view.uids():
            self._changed(uid)

    def pods(self) -> list[PodFound]:
        return [self._found(worker) for worker in self._workers.values()]

    def find(self, namespace: str, name: str) -> PodFound | None:
        for worker in reversed(self._workers.values()):
            if _full_name(worker.pod) == (namespace, name):
                return self._found(worker)
        return None

    def find_container(self, namespace: str, name: str, container: str) -> ContainerSeen | None:
        """The newest container of that name."""
        found = self.find(namespace, name)
        return found.seen.last(container) if found else None

    def _found(self, worker: Worker) -> PodFound:
        status = worker.status or worker.pod.status
        return PodFound(worker.pod, status, self._view.seen(worker.uid), worker.probed)

    def _has_to_wait(self, pod: v1.Pod) -> bool:
        """Whether it has still to end itself, or another static pod of its name has."""
        if uid_of(pod) in self._workers:
            return True
        return is_static(pod) and self.find(*_full_name(pod)) is not None

    def _look_after(self, pod: v1.Pod) -> Worker:
        worker = Worker(pod, self._means, self._neighbours)
        self._workers[worker.uid] = worker
        task = asyncio.create_task(self._life(worker), name=f"pod {worker.uid}")
        self._tasks[worker.uid] = task
        return worker

    async def _life(self, worker: Worker) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[worker.uid], self._tasks[worker.uid]
        self._let_in()
        for other in self._workers.values():
            if other.waits_for_room:
                other.wake()

    def _let_in(self) -> None:
        """Those that nobody has to go before any more."""
        for uid, pod in list(self._waiting.items()):
            if not self._has_to_wait(pod):
                del self._waiting[uid]
                self._look_after(pod)

    def _taken(self, but: str) -> list[Taken]:
        return [
            worker.takes
            for worker in self._workers.values()
            if worker.is_active and worker.uid != but
        ]

    def _active(self) -> dict[str, tuple[v1.Pod, Worker]]:
        return {w.uid: (w.given, w) for w in self._workers.values() if w.is_active}

    def _could_go(self) -> dict[str, tuple[v1.Pod, Worker]]:
        return {uid: pair for uid, pair in self._active().items() if not pair[1].is_ending}

    def _changed(self, uid: str) -> None:
        if worker := self._workers.get(uid):
            worker.wake()
        elif self._is_settled.is_set() and (seen := self._view.seen(uid)).sandboxes:
            self._look_after(_remembered(uid, seen)).remove()

    async def _sweep(self) -> None:
        """Once, when both the source and the runtime have said which pods there are."""
        await self._is_settled.wait()
        await self._view.is_known.wait()
        try:
            await self._means.volumes.sweep(self._is_known)
        except OSError as error:
            _log.warning("what is left of pods that are gone stays: %s", error)

    def _is_known(self, uid: str) -> bool:
        return uid in self._workers or uid in self._view.uids()

    async def _refresh_volumes(self) -> None:
        for worker in list(self._workers.values()):
            if worker.is_active:
                try:
                    await self._means.volumes.refresh(worker.pod)
                except WinpodError as error:
                    _log.info("volumes of %s stay as they are: %s", worker.uid, error)

    async def _collect_images(self) -> None:
        await self._images.collect()

    def _begin(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        self._chores.append(asyncio.create_task(self._every(seconds, chore)))

    async def _every(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await chore()
            except (WinpodError, OSError) as error:
                _log.warning("the node's own work has to wait: %s", error)
            except Exception:
                _log.exception("the node's own work broke off, and begins again")


def _full_name(pod: v1.Pod) -> tuple[str, str]:
    metadata = metadata_of(pod)
    return metadata.namespace or "", metadata.name or ""


def _remembered(uid: str, seen: PodSeen) -> v1.Pod:
    """What the runtime remembers of a pod that nobody else knows."""
    newest = seen.sandboxes[0]
    names = dict.fromkeys(container.name for container in seen.containers())
    return v1.Pod(
        metadata=ObjectMeta(uid=uid, name=newest.name, namespace=newest.namespace),
        spec=v1.PodSpec(containers=[v1.Container(name=name) for name in names]),
    )

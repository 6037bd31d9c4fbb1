"""Probe workers of one pod: schedule its probes and track the health of its containers.

A container is probed from when it runs until it exits. Liveness and readiness probes wait for the
startup probe to succeed. After an agent restart, a container that was ready stays ready until a
probe fails.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal

from winpod.clock import Clock
from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import init_containers, is_sidecar, regular_containers
from winpod.kubelet.interfaces import StatusReporter
from winpod.kubelet.prober.probe import PROBE_SUCCESS, ProbeAnswer, Prober
from winpod.kubelet.prober.results import ContainerHealth, ProbeResult, ResultStreak
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimePod
from winpod.kubelet.status.container_status import container_id

ProbeType = Literal["startup", "liveness", "readiness"]
_KINDS: tuple[ProbeType, ...] = ("startup", "liveness", "readiness")
_INITIAL = {
    "startup": ProbeResult.UNKNOWN,
    "liveness": ProbeResult.SUCCESS,
    "readiness": ProbeResult.FAILURE,
}


def probe_of(container: v1.Container, kind: ProbeType) -> v1.Probe | None:
    probes = {
        "startup": container.startupProbe,
        "liveness": container.livenessProbe,
        "readiness": container.readinessProbe,
    }
    return probes[kind]


def initial_health(container: v1.Container, reported: v1.ContainerStatus | None) -> ContainerHealth:
    """Return the health before the first probe; `reported` is the container's status."""
    results = {
        kind: _INITIAL[kind] if probe_of(container, kind) else ProbeResult.SUCCESS
        for kind in _KINDS
    }
    if reported and reported.started:
        results["startup"] = ProbeResult.SUCCESS
    if reported and reported.ready:
        results["readiness"] = ProbeResult.SUCCESS
    return ContainerHealth(results["startup"], results["liveness"], results["readiness"])


class ProbeWorker:
    """Probes the containers of one pod.

    With `is_simulated`, network probes always succeed, as there is nothing to connect to.
    """

    def __init__(
        self,
        prober: Prober,
        reporter: StatusReporter,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        is_simulated: bool,
    ) -> None:
        self._prober = prober
        self._reporter = reporter
        self._clock = clock
        self._on_change = on_change
        self._is_simulated = is_simulated
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._started: dict[str, asyncio.Event] = {}
        self.health: dict[str, ContainerHealth] = {}
        self.counts: Counter[tuple[str, ProbeType, ProbeResult]] = Counter()

    def update(self, pod: v1.Pod, runtime_pod: RuntimePod, status: v1.PodStatus | None) -> None:
        """Start and stop probes to match the running containers."""
        running = {container.id: container for container in runtime_pod.running_containers()}
        for id_ in [id_ for id_ in self._tasks if id_ not in running]:
            self._remove(id_)
        probed = [
            *(c for c in init_containers(pod) if is_sidecar(c)),
            *regular_containers(pod),
        ]
        for container in probed:
            last = runtime_pod.latest_container(container.name)
            if last and last.is_running and last.id not in self._tasks:
                self._start_probes(pod, container, last, runtime_pod.ips, status)

    def stop(self, kinds: tuple[ProbeType, ...] = _KINDS) -> None:
        """Stop probing; results are kept."""
        for tasks in self._tasks.values():
            for task in tasks:
                if task.get_name() in kinds:
                    task.cancel()

    def _remove(self, id_: str) -> None:
        for task in self._tasks.pop(id_):
            task.cancel()
        self._started.pop(id_, None)
        self.health.pop(id_, None)

    def _start_probes(
        self,
        pod: v1.Pod,
        container: v1.Container,
        last: RuntimeContainer,
        ips: tuple[str, ...],
        status: v1.PodStatus | None,
    ) -> None:
        self.health[last.id] = initial_health(container, _reported_status(status, last))
        started = self._started[last.id] = asyncio.Event()
        if self.health[last.id].has_started:
            started.set()
        ip = ips[0] if ips else ""
        self._tasks[last.id] = [
            _task(self._probe_loop(pod, container, last, kind, probe, ip), kind)
            for kind in _KINDS
            if (probe := probe_of(container, kind)) and not (kind == "startup" and started.is_set())
        ]

    async def _probe_loop(
        self,
        pod: v1.Pod,
        container: v1.Container,
        last: RuntimeContainer,
        kind: ProbeType,
        probe: v1.Probe,
        ip: str,
    ) -> None:
        if kind != "startup":
            await self._started[last.id].wait()
        await asyncio.sleep(self._delay(probe, last))
        streak = ResultStreak()
        while True:
            answer = await self._probe_once(pod, container, last.id, kind, probe, ip)
            self.counts[container.name, kind, answer] += 1
            if answer is not ProbeResult.UNKNOWN:
                streak = streak.after(answer)
                if streak.reaches_threshold(
                    probe.successThreshold or 1, probe.failureThreshold or 3
                ):
                    self._set(last.id, kind, answer)
                    if kind == "startup" or (kind, answer) == ("liveness", ProbeResult.FAILURE):
                        return
            await asyncio.sleep(probe.periodSeconds or 10)

    def _delay(self, probe: v1.Probe, last: RuntimeContainer) -> float:
        age = (self._clock() - (last.started_at or self._clock())).total_seconds()
        return (probe.initialDelaySeconds or 0) - min(max(age, 0), probe.initialDelaySeconds or 0)

    def _set(self, id_: str, kind: ProbeType, result: ProbeResult) -> None:
        before = self.health.get(id_)
        if before is None:
            return
        after = replace(before, **{kind: result})
        if kind == "startup" and result is ProbeResult.SUCCESS:
            self._started[id_].set()
        if after != before:
            self.health[id_] = after
            self._on_change()

    async def _probe_once(
        self,
        pod: v1.Pod,
        container: v1.Container,
        id_: str,
        kind: ProbeType,
        probe: v1.Probe,
        ip: str,
    ) -> ProbeResult:
        async def record_event(reason: str, message: str) -> None:
            text = f"{kind.capitalize()} probe {message}"
            await self._reporter.event(pod, "Warning", reason, text, container.name)

        try:
            answer = await self._run_probe(container, id_, probe, ip)
        except WinpodError as error:
            await record_event("Unhealthy", f"errored and resulted in unknown state: {error}")
            return ProbeResult.UNKNOWN
        if answer.warning:
            await record_event("ProbeWarning", f"warning: {answer.output}")
        if answer.result is ProbeResult.FAILURE:
            await record_event("Unhealthy", f"failed: {answer.output}")
        return answer.result

    def _run_probe(
        self, container: v1.Container, id_: str, probe: v1.Probe, ip: str
    ) -> Awaitable[ProbeAnswer]:
        seconds = float(probe.timeoutSeconds or 1)
        if probe.exec:
            return self._prober.exec(id_, probe.exec.command or [], seconds)
        if self._is_simulated:
            return _always_success()
        if probe.httpGet:
            return self._prober.http(probe.httpGet, container, ip, seconds)
        if probe.tcpSocket:
            return self._prober.tcp(probe.tcpSocket, container, ip, seconds)
        if probe.grpc:
            return self._prober.grpc(probe.grpc, ip, seconds)
        return _always_success()


async def _always_success() -> ProbeAnswer:
    return PROBE_SUCCESS


def _task(work: Coroutine[Any, Any, None], kind: ProbeType) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=kind)


def _reported_status(
    status: v1.PodStatus | None, last: RuntimeContainer
) -> v1.ContainerStatus | None:
    if status is None:
        return None
    statuses = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return next((s for s in statuses if s.containerID == container_id(last.id)), None)

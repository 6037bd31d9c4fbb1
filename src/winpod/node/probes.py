"""The probes of one pod's containers: who asks when, and what the answers make of their health.

A container is asked from when it runs until it ends. Until its startup probe has succeeded, the
others wait. One that was well when the agent was restarted stays well until a probe says otherwise.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from lightkube.models import core_v1 as v1

from winpod.node.checks import GOOD, Answer, Checks
from winpod.node.container_states import container_id
from winpod.node.health import Health, Result, Run
from winpod.node.pods import init_containers, is_sidecar, regular_containers
from winpod.node.seen import ContainerSeen, PodSeen
from winpod.node.sources import Reporter
from winpod.windows.errors import WinpodError

Kind = Literal["startup", "liveness", "readiness"]
_KINDS: tuple[Kind, ...] = ("startup", "liveness", "readiness")
_INITIAL = {
    "startup": Result.UNKNOWN,
    "liveness": Result.SUCCESS,
    "readiness": Result.FAILURE,
}


def probe_of(container: v1.Container, kind: Kind) -> v1.Probe | None:
    found = {
        "startup": container.startupProbe,
        "liveness": container.livenessProbe,
        "readiness": container.readinessProbe,
    }
    return found[kind]


def first_health(container: v1.Container, known: v1.ContainerStatus | None) -> Health:
    """Before anything is asked; `known` is what was said of this very container earlier."""
    results = {
        kind: _INITIAL[kind] if probe_of(container, kind) else Result.SUCCESS for kind in _KINDS
    }
    if known and known.started:
        results["startup"] = Result.SUCCESS
    if known and known.ready:
        results["readiness"] = Result.SUCCESS
    return Health(results["startup"], results["liveness"], results["readiness"])


class Probes:
    """`is_simulated` answers for containers that nobody can connect to."""

    def __init__(
        self,
        checks: Checks,
        reporter: Reporter,
        clock: Callable[[], datetime],
        changed: Callable[[], None],
        *,
        is_simulated: bool,
    ) -> None:
        self._checks = checks
        self._reporter = reporter
        self._clock = clock
        self._changed = changed
        self._is_simulated = is_simulated
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._started: dict[str, asyncio.Event] = {}
        self.health: dict[str, Health] = {}
        self.answers: Counter[tuple[str, Kind, Result]] = Counter()

    def follow(self, pod: v1.Pod, seen: PodSeen, status: v1.PodStatus | None) -> None:
        """Ask the containers that run, and no others."""
        running = {container.id: container for container in seen.running()}
        for id_ in [id_ for id_ in self._tasks if id_ not in running]:
            self._forget(id_)
        probed = [
            *(c for c in init_containers(pod) if is_sidecar(c)),
            *regular_containers(pod),
        ]
        for container in probed:
            last = seen.last(container.name)
            if last and last.is_running and last.id not in self._tasks:
                self._begin(pod, container, last, seen.ips, status)

    def stop(self, kinds: tuple[Kind, ...] = _KINDS) -> None:
        """No more questions; what was found stays."""
        for tasks in self._tasks.values():
            for task in tasks:
                if task.get_name() in kinds:
                    task.cancel()

    def _forget(self, id_: str) -> None:
        for task in self._tasks.pop(id_):
            task.cancel()
        self._started.pop(id_, None)
        self.health.pop(id_, None)

    def _begin(
        self,
        pod: v1.Pod,
        container: v1.Container,
        last: ContainerSeen,
        ips: tuple[str, ...],
        status: v1.PodStatus | None,
    ) -> None:
        self.health[last.id] = first_health(container, _known(status, last))
        started = self._started[last.id] = asyncio.Event()
        if self.health[last.id].has_started:
            started.set()
        ip = ips[0] if ips else ""
        self._tasks[last.id] = [
            _task(self._ask(pod, container, last, kind, probe, ip), kind)
            for kind in _KINDS
            if (probe := probe_of(container, kind)) and not (kind == "startup" and started.is_set())
        ]

    async def _ask(
        self,
        pod: v1.Pod,
        container: v1.Container,
        last: ContainerSeen,
        kind: Kind,
        probe: v1.Probe,
        ip: str,
    ) -> None:
        if kind != "startup":
            await self._started[last.id].wait()
        await asyncio.sleep(self._delay(probe, last))
        run = Run()
        while True:
            answer = await self._answer(pod, container, last.id, kind, probe, ip)
            self.answers[container.name, kind, answer] += 1
            if answer is not Result.UNKNOWN:
                run = run.after(answer)
                if run.counts(probe.successThreshold or 1, probe.failureThreshold or 3):
                    self._set(last.id, kind, answer)
                    if kind == "startup" or (kind, answer) == ("liveness", Result.FAILURE):
                        return
            await asyncio.sleep(probe.periodSeconds or 10)

    def _delay(self, probe: v1.Probe, last: ContainerSeen) -> float:
        age = (self._clock() - (last.started_at or self._clock())).total_seconds()
        return (probe.initialDelaySeconds or 0) - min(max(age, 0), probe.initialDelaySeconds or 0)

    def _set(self, id_: str, kind: Kind, result: Result) -> None:
        before = self.health.get(id_)
        if before is None:
            return
        after = replace(before, **{kind: result})
        if kind == "startup" and result is Result.SUCCESS:
            self._started[id_].set()
        if after != before:
            self.health[id_] = after
            self._changed()

    async def _answer(
        self,
        pod: v1.Pod,
        container: v1.Container,
        id_: str,
        kind: Kind,
        probe: v1.Probe,
        ip: str,
    ) -> Result:
        async def tell(reason: str, message: str) -> None:
            text = f"{kind.capitalize()} probe {message}"
            await self._reporter.event(pod, "Warning", reason, text, container.name)

        try:
            answer = await self._check(container, id_, probe, ip)
        except WinpodError as error:
            await tell("Unhealthy", f"errored and resulted in unknown state: {error}")
            return Result.UNKNOWN
        if answer.warning:
            await tell("ProbeWarning", f"warning: {answer.output}")
        if answer.result is Result.FAILURE:
            await tell("Unhealthy", f"failed: {answer.output}")
        return answer.result

    def _check(
        self, container: v1.Container, id_: str, probe: v1.Probe, ip: str
    ) -> Awaitable[Answer]:
        seconds = float(probe.timeoutSeconds or 1)
        if probe.exec:
            return self._checks.command(id_, probe.exec.command or [], seconds)
        if self._is_simulated:
            return _always_good()
        if probe.httpGet:
            return self._checks.http(probe.httpGet, container, ip, seconds)
        if probe.tcpSocket:
            return self._checks.tcp(probe.tcpSocket, container, ip, seconds)
        if probe.grpc:
            return self._checks.grpc(probe.grpc, ip, seconds)
        return _always_good()


async def _always_good() -> Answer:
    return GOOD


def _task(work: Coroutine[Any, Any, None], kind: Kind) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=kind)


def _known(status: v1.PodStatus | None, last: ContainerSeen) -> v1.ContainerStatus | None:
    if status is None:
        return None
    told = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return next((one for one in told if one.containerID == container_id(last.id)), None)

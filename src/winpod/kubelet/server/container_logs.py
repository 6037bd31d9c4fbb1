"""`/containerLogs`: the log of a container or of its previous instance, for `kubectl logs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from aiohttp import web

from winpod.clock import utc_now
from winpod.concurrency import cancel_and_wait
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import InvalidInput, Unavailable
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.kubelet import PodEntry
from winpod.kubelet.logs.reader import LogLine, LogPrinter, LogReader, log_time
from winpod.kubelet.runtime_client import RuntimeClient
from winpod.kubelet.runtime_status import RuntimeContainer
from winpod.kubelet.server.context import CONTAINER, ServerContext, container_of, pod_of, query_flag
from winpod.kubelet.status.container_status import container_id

_POLL_SECONDS = 1.0
_STREAMS = {"": "", "All": "", "Stdout": "stdout", "Stderr": "stderr"}
_PULL_REASONS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Parsed log options. `since` is in the log's time format; `stream` is empty for both."""

    last: int | None = None
    since: str = ""
    stream: str = ""
    limit: int | None = None


def parse_log_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    stream = query.get("stream", "")
    if stream not in _STREAMS:
        raise InvalidInput(f'stream is "{stream}".', "It can be All, Stdout or Stderr.")
    last = None if query.get("tailLines") == "all" else _number(query, "tailLines", minimum=0)
    if last is not None and _STREAMS[stream]:
        raise InvalidInput("tailLines cannot be combined with stream Stdout or Stderr.")
    return LogOptions(
        last, _since(query, now), _STREAMS[stream], _number(query, "limitBytes", minimum=1)
    )


def _number(query: Mapping[str, str], name: str, minimum: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise InvalidInput(f'{name} is "{text}".', f"It must be a number of at least {minimum}.")
    return number


def _since(query: Mapping[str, str], now: datetime) -> str:
    seconds, moment = _number(query, "sinceSeconds", minimum=1), query.get("sinceTime", "")
    if seconds is not None and moment:
        raise InvalidInput("sinceSeconds and sinceTime cannot be combined.")
    if seconds is not None:
        return log_time(now - timedelta(seconds=seconds))
    if not moment:
        return ""
    try:
        return log_time(datetime.fromisoformat(moment))
    except ValueError:
        raise InvalidInput(f'sinceTime is "{moment}".', "Write 2026-01-31T12:00:00Z.") from None


def select_container(entry: PodEntry, pod: str, name: str, previous: bool) -> RuntimeContainer:
    """Return the container whose log the pod's status refers to, or raise why there is none."""
    subject = f'container "{name}" in pod "{pod}"'
    status = _status_of(entry.status, name)
    if status is None:
        raise InvalidInput(f"{subject} is not available")
    state = status.state or v1.ContainerState()
    before = status.lastState.terminated if status.lastState else None
    if previous:
        id_ = before.containerID if before else None
        if not id_:
            raise InvalidInput(f'previous terminated container "{name}" in pod "{pod}" not found')
    elif state.running:
        id_ = status.containerID
    else:
        ends = [end for end in (state.terminated, before) if end]
        id_ = next((end.containerID for end in ends if end.containerID), None)
        if not id_ and ends:
            raise InvalidInput(f"{subject} is terminated")
        if not id_:
            reason = (state.waiting and state.waiting.reason) or "no logs yet"
            raise InvalidInput(
                f"{subject} is waiting to start: {_PULL_REASONS.get(reason, reason)}"
            )
    for container in entry.runtime_pod.containers_named(name):
        if container_id(container.id) == id_:
            return container
    raise InvalidInput(f"the log of {subject} was removed with it: {id_}")


def _status_of(status: v1.PodStatus | None, name: str) -> v1.ContainerStatus | None:
    if status is None:
        return None
    for statuses in (
        status.containerStatuses,
        status.initContainerStatuses,
        status.ephemeralContainerStatuses,
    ):
        for container_status in statuses or ():
            if container_status.name == name:
                return container_status
    return None


class LogHandlers:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        return [web.get(f"/containerLogs/{CONTAINER}", self._logs)]

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        entry = pod_of(request, self._context.pods)
        name = container_of(request, entry)
        try:
            options = parse_log_options(request.query, utc_now())
        except InvalidInput as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from None
        previous = query_flag(request, "previous")
        container = select_container(entry, request.match_info["pod"], name, previous)
        if not container.log_path:
            raise InvalidInput(f'container "{name}" was created without a log.')
        log = LogReader(Path(container.log_path), options.last)
        try:
            return await self._send(request, options, container.id, log)
        finally:
            log.close()

    async def _send(
        self, request: web.Request, options: LogOptions, container: str, log: LogReader
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/plain"
        response.enable_chunked_encoding()
        await response.prepare(request)
        printer = LogPrinter(timestamps=query_flag(request, "timestamps"))
        left = options.limit
        async with aclosing(
            self._lines(log, container, follow=query_flag(request, "follow"))
        ) as lines:
            async for line in lines:
                if line.time < options.since or options.stream not in ("", line.stream):
                    continue
                text = printer.text(line)[:left]
                await response.write(text)
                if left is not None and (left := left - len(text)) == 0:
                    break
        await response.write_eof()
        return response

    async def _lines(
        self, log: LogReader, container: str, *, follow: bool
    ) -> AsyncGenerator[LogLine, None]:
        for line in log.read():
            yield line
        if follow:
            ended = asyncio.create_task(_wait_exited(self._context.runtime, container))
            try:
                async for line in log.follow(ended):
                    yield line
            finally:
                await cancel_and_wait(ended)


async def _wait_exited(runtime: RuntimeClient, container: str) -> None:
    """Wait until the container has exited; an unavailable runtime is retried."""
    request = api.ContainerStatusRequest(container_id=container)
    while True:
        with suppress(Unavailable):
            try:
                status = (await runtime.call("ContainerStatus", request)).status
            except RemoteError:
                return
            if status.state not in (api.CONTAINER_RUNNING, api.CONTAINER_CREATED):
                return
        await asyncio.sleep(_POLL_SECONDS)

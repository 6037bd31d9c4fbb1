"""`/containerLogs`: what a container wrote, or the one before it, as `kubectl logs` asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from aiohttp import web
from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.node.container_states import container_id
from winpod.node.engine import PodFound
from winpod.node.logs import Line, Log, Printer, log_time
from winpod.node.means import utc_now
from winpod.node.seen import ContainerSeen
from winpod.node.server_parts import (
    CONTAINER,
    Parts,
    container_of,
    pod_of,
    says_yes,
)
from winpod.windows.errors import InvalidInput, Unavailable

_LOOK_SECONDS = 1.0
_STREAMS = {"": "", "All": "", "Stdout": "stdout", "Stderr": "stderr"}
_PULLS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a log. `since` is in the log's words, and `stream` is empty for both."""

    last: int | None = None
    since: str = ""
    stream: str = ""
    limit: int | None = None


def wanted(query: Mapping[str, str], now: datetime) -> Wanted:
    stream = query.get("stream", "")
    if stream not in _STREAMS:
        raise InvalidInput(f'stream is "{stream}".', "It can be All, Stdout or Stderr.")
    last = None if query.get("tailLines") == "all" else _number(query, "tailLines", least=0)
    if last is not None and _STREAMS[stream]:
        raise InvalidInput("tailLines and one stream of the two cannot be asked for together.")
    return Wanted(last, _since(query, now), _STREAMS[stream], _number(query, "limitBytes", least=1))


def _number(query: Mapping[str, str], name: str, least: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidInput(f'{name} is "{text}".', f"It must be a number from {least} on.")
    return number


def _since(query: Mapping[str, str], now: datetime) -> str:
    seconds, moment = _number(query, "sinceSeconds", least=1), query.get("sinceTime", "")
    if seconds is not None and moment:
        raise InvalidInput("sinceSeconds and sinceTime cannot be asked for together.")
    if seconds is not None:
        return log_time(now - timedelta(seconds=seconds))
    if not moment:
        return ""
    try:
        return log_time(datetime.fromisoformat(moment))
    except ValueError:
        raise InvalidInput(f'sinceTime is "{moment}".', "Write 2026-01-31T12:00:00Z.") from None


def container_to_read(found: PodFound, pod: str, name: str, previous: bool) -> ContainerSeen:
    """The one whose log is meant: as the pod's status tells of it, or why there is none."""
    this = f'container "{name}" in pod "{pod}"'
    status = _status_of(found.status, name)
    if status is None:
        raise InvalidInput(f"{this} is not available")
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
            raise InvalidInput(f"{this} is terminated")
        if not id_:
            reason = (state.waiting and state.waiting.reason) or "no logs yet"
            raise InvalidInput(f"{this} is waiting to start: {_PULLS.get(reason, reason)}")
    for container in found.seen.of(name):
        if container_id(container.id) == id_:
            return container
    raise InvalidInput(f"the log of {this} was removed with it: {id_}")


def _status_of(status: v1.PodStatus | None, name: str) -> v1.ContainerStatus | None:
    if status is None:
        return None
    for listed in (
        status.containerStatuses,
        status.initContainerStatuses,
        status.ephemeralContainerStatuses,
    ):
        for one in listed or ():
            if one.name == name:
                return one
    return None


class LogPages:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[web.RouteDef]:
        return [web.get(f"/containerLogs/{CONTAINER}", self._logs)]

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        found = pod_of(request, self._parts.pods)
        name = container_of(request, found)
        try:
            asked = wanted(request.query, utc_now())
        except InvalidInput as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from None
        previous = says_yes(request, "previous")
        container = container_to_read(found, request.match_info["pod"], name, previous)
        if not container.log_path:
            raise InvalidInput(f'container "{name}" was made without a log.')
        log = Log(Path(container.log_path), asked.last)
        try:
            return await self._send(request, asked, container.id, log)
        finally:
            log.close()

    async def _send(
        self, request: web.Request, asked: Wanted, container: str, log: Log
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/plain"
        response.enable_chunked_encoding()
        await response.prepare(request)
        printer = Printer(timestamps=says_yes(request, "timestamps"))
        left = asked.limit
        async with aclosing(
            self._lines(log, container, follow=says_yes(request, "follow"))
        ) as lines:
            async for line in lines:
                if line.time < asked.since or asked.stream not in ("", line.stream):
                    continue
                text = printer.text(line)[:left]
                await response.write(text)
                if left is not None and (left := left - len(text)) == 0:
                    break
        await response.write_eof()
        return response

    async def _lines(self, log: Log, container: str, *, follow: bool) -> AsyncGenerator[Line, None]:
        for line in log.read():
            yield line
        if follow:
            ended = asyncio.create_task(_end(self._parts.client, container))
            try:
                async for line in log.follow(ended):
                    yield line
            finally:
                ended.cancel()


async def _end(client: Client, container: str) -> None:
    """Returns when the container runs no longer; a runtime that does not answer is waited for."""
    request = api.ContainerStatusRequest(container_id=container)
    while True:
        with suppress(Unavailable):
            try:
                status = (await client.call("ContainerStatus", request)).status
            except RemoteError:
                return
            if status.state not in (api.CONTAINER_RUNNING, api.CONTAINER_CREATED):
                return
        await asyncio.sleep(_LOOK_SECONDS)

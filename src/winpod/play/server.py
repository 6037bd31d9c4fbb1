"""The play daemon: one process per root, behind a Unix socket that only its owner can open.

It exits when nothing is left to run. Pods do not end with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
from aiohttp import web

from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.config import Config
from winpod.errors import Unavailable, WinpodError
from winpod.files import FileLock
from winpod.images.registry.auth import ResolvedCredentials
from winpod.play.apiserver.objects import Document, ObjectKey
from winpod.play.apply import AppliedChange
from winpod.play.control_plane import ApplyRequest, ControlPlane
from winpod.play.views import names_view, object_view, state_view

_ApplyResult = tuple[list[AppliedChange], list[str]]
_log = logging.getLogger(__name__)
IDLE_SECONDS = 5.0
PREPARE_SECONDS = 60.0
"""How long the client that started the daemon may take to send its first request."""
_MAX_REQUEST_BYTES = 64 * 1024 * 1024


def play_directory(root: Path) -> Path:
    return root / "play"


def socket_path(root: Path) -> Path:
    return play_directory(root) / "play.sock"


async def serve(root: Path, config: Config) -> None:
    directory = play_directory(root)
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock.try_acquire(directory / "lock")
    if lock is None:
        raise Unavailable(f"Another play daemon already serves {root}.")
    emulation = is_emulation_allowed(config.hypervisor.allow_emulation, os.environ)
    try:
        control_plane = ControlPlane(root, config)
        try:
            await _run(control_plane, emulation)
        finally:
            await control_plane.stop()
    finally:
        lock.release()


async def _run(control_plane: ControlPlane, emulation: bool) -> None:
    api = PlayApi(control_plane, emulation)
    runner = web.AppRunner(api.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    socket = socket_path(control_plane.root)
    socket.unlink(missing_ok=True)
    await control_plane.start()
    umask = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(socket)).start()
    finally:
        os.umask(umask)
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    exits = [asyncio.create_task(stopped.wait()), asyncio.create_task(api.wait_idle())]
    try:
        await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in exits:
            task.cancel()
        socket.unlink(missing_ok=True)
        await api.cancel_applies()
        await runner.cleanup()


class PlayApi:
    """HTTP handlers. A WinpodError is returned with its reason, message and hint."""

    def __init__(self, control_plane: ControlPlane, emulation: bool) -> None:
        self._control_plane = control_plane
        self._emulation = emulation
        self._active_requests = 0
        self._applies: set[asyncio.Task[_ApplyResult]] = set()
        self._last_request_end = asyncio.get_running_loop().time()
        self._idle_timeout = PREPARE_SECONDS

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._handle_errors], client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_get("/process", self._process)
        app.router.add_get("/state", self._state)
        app.router.add_get("/names", self._names)
        app.router.add_get("/events", self._events)
        app.router.add_get("/object", self._object)
        app.router.add_post("/apply", self._apply)
        app.router.add_post("/delete", self._delete)
        return app

    async def wait_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.5)
            quiet = loop.time() - self._last_request_end
            is_idle = self._control_plane.is_done and not self._active_requests
            if is_idle and quiet > self._idle_timeout:
                return

    @web.middleware
    async def _handle_errors(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        self._active_requests += 1
        try:
            return await handler(request)
        except WinpodError as error:
            return web.json_response(error.to_dict(), status=400)
        finally:
            self._active_requests -= 1
            self._last_request_end = asyncio.get_running_loop().time()

    async def _process(self, _: web.Request) -> web.Response:
        return web.json_response({"id": os.getpid(), "emulation": self._emulation})

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(state_view(self._control_plane))

    async def _names(self, _: web.Request) -> web.Response:
        return web.json_response(
            [[k.kind, k.namespace, k.name] for k in names_view(self._control_plane)]
        )

    async def _events(self, _: web.Request) -> web.Response:
        return web.json_response(list(self._control_plane.events.all()))

    async def _object(self, request: web.Request) -> web.Response:
        query = request.query
        key = ObjectKey(query["kind"], query.get("namespace", ""), query["name"])
        return web.json_response(object_view(self._control_plane, key), dumps=_dumps)

    async def _apply(self, request: web.Request) -> web.StreamResponse:
        """Apply objects, and stream the progress and the result, each as a line of JSON.

        The apply is cancelled if the client disconnects.
        """
        self._idle_timeout = IDLE_SECONDS
        lines: asyncio.Queue[Document | None] = asyncio.Queue()
        work = asyncio.create_task(
            self._control_plane.apply(_to_request(await request.json()), lines.put_nowait)
        )
        work.add_done_callback(lambda _: lines.put_nowait(None))
        self._applies.add(work)
        try:
            response = web.StreamResponse()
            response.content_type = "application/x-ndjson"
            while (line := await lines.get()) is not None:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(_encode_line(line))
            if not response.prepared:
                await work  # was rejected; the status says so
            await response.write(_encode_line(await _result(work)))
            return response
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            self._applies.discard(work)

    async def cancel_applies(self) -> None:
        """Cancel applies that still pull images, and wait until their cleanup is done."""
        for work in self._applies:
            work.cancel()
        await asyncio.gather(*self._applies, return_exceptions=True)

    async def _delete(self, request: web.Request) -> web.Response:
        self._idle_timeout = IDLE_SECONDS
        body = await request.json()
        volumes = bool(body.get("volumes"))
        if body.get("all"):
            keys = self._control_plane.desired.applied_keys(volumes=volumes)
        else:
            keys = [ObjectKey(*parts) for parts in body["keys"]]
        changes = await self._control_plane.delete(keys, volumes=volumes)
        return web.json_response({"changes": _to_rows(changes)})


def _to_request(body: Document) -> ApplyRequest:
    return ApplyRequest(
        body.get("objects", ()),
        body.get("nodes", ()),
        body.get("layouts", ()),
        body.get("publish", ()),
        msgspec.convert(body.get("credentials", {}), ResolvedCredentials),
    )


async def _result(work: asyncio.Task[_ApplyResult]) -> Document:
    try:
        changes, notes = await work
    except WinpodError as error:
        return {"type": "error", **error.to_dict()}
    except Exception:
        _log.exception("Apply failed")
        return {"type": "error"}
    return {"type": "applied", "changes": _to_rows(changes), "notes": notes}


def _to_rows(changes: Iterable[AppliedChange]) -> list[list[str]]:
    return [[c.key.kind, c.key.namespace, c.key.name, c.what] for c in changes]


def _encode_line(line: Document) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _dumps(value: object) -> str:
    return json.dumps(value, default=str)

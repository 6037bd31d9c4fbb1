"""The process that plays: one for a root, behind a socket that only its owner can reach.

It ends by itself when there is nothing left to look after; pods do not end with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.cri.config import Config
from winpod.images.store_lock import FileLock
from winpod.node.play.objects import Key
from winpod.node.play.telling import names, state, whole
from winpod.node.play.world import Asked, World
from winpod.windows.errors import Unavailable, WinpodError

_log = logging.getLogger(__name__)
IDLE_SECONDS = 5.0
_LIMIT = 64 * 1024 * 1024


def play_directory(root: Path) -> Path:
    return root / "play"


def socket_path(root: Path) -> Path:
    return play_directory(root) / "play.sock"


async def serve(root: Path, config: Config) -> None:
    folder = play_directory(root)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock.try_take(folder / "lock")
    if lock is None:
        raise Unavailable(f"{root} is played by another process already.")
    emulation = is_emulation_allowed(config.hypervisor.allow_emulation, os.environ)
    try:
        world = World(root, config)
        try:
            await _run(world, emulation)
        finally:
            await world.stop()
    finally:
        lock.release()


async def _run(world: World, emulation: bool) -> None:
    answers = Answers(world, emulation)
    runner = web.AppRunner(answers.app(), access_log=None)
    await runner.setup()
    socket = socket_path(world.root)
    socket.unlink(missing_ok=True)
    await world.start()
    before = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(socket)).start()
    finally:
        os.umask(before)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    ends = [asyncio.create_task(stopped.wait()), asyncio.create_task(answers.until_idle())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        socket.unlink(missing_ok=True)
        await runner.cleanup()


class Answers:
    """What clients can ask. An error of ours is its sentence and its advice."""

    def __init__(self, world: World, emulation: bool) -> None:
        self._world = world
        self._emulation = emulation
        self._going_on = 0
        self._last_end = asyncio.get_running_loop().time()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._told], client_max_size=_LIMIT)
        app.router.add_get("/process", self._process)
        app.router.add_get("/state", self._state)
        app.router.add_get("/names", self._names)
        app.router.add_get("/events", self._events)
        app.router.add_get("/object", self._object)
        app.router.add_post("/pulls", self._pulls)
        app.router.add_post("/apply", self._apply)
        app.router.add_post("/delete", self._delete)
        return app

    async def until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.5)
            quiet = loop.time() - self._last_end
            if self._world.is_done and not self._going_on and quiet > IDLE_SECONDS:
                return

    @web.middleware
    async def _told(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        self._going_on += 1
        try:
            return await handler(request)
        except WinpodError as error:
            told = {"sentence": error.sentence, "advice": error.advice}
            return web.json_response(told, status=400)
        finally:
            self._going_on -= 1
            self._last_end = asyncio.get_running_loop().time()

    async def _process(self, _: web.Request) -> web.Response:
        return web.json_response({"id": os.getpid(), "emulation": self._emulation})

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(state(self._world))

    async def _names(self, _: web.Request) -> web.Response:
        return web.json_response([[k.kind, k.namespace, k.name] for k in names(self._world)])

    async def _events(self, _: web.Request) -> web.Response:
        return web.json_response(list(self._world.events.all()))

    async def _object(self, request: web.Request) -> web.Response:
        query = request.query
        key = Key(query["kind"], query.get("namespace", ""), query["name"])
        return web.json_response(whole(self._world, key), dumps=_dumps)

    async def _pulls(self, request: web.Request) -> web.Response:
        found = await self._world.pulls(_asked(await request.json()))
        return web.json_response([asdict(pull) for pull in found])

    async def _apply(self, request: web.Request) -> web.Response:
        changes, notes = await self._world.apply(_asked(await request.json()))
        told = [[c.key.kind, c.key.namespace, c.key.name, c.what] for c in changes]
        return web.json_response({"changes": told, "notes": notes})

    async def _delete(self, request: web.Request) -> web.Response:
        body = await request.json()
        volumes = bool(body.get("volumes"))
        if body.get("all"):
            keys = self._world.desired.everything(volumes=volumes)
        else:
            keys = [Key(*parts) for parts in body["keys"]]
        changes = await self._world.delete(keys, volumes=volumes)
        told = [[c.key.kind, c.key.namespace, c.key.name, c.what] for c in changes]
        return web.json_response({"changes": told})


def _asked(body: dict[str, Any]) -> Asked:
    return Asked(
        body.get("objects", ()),
        body.get("nodes", ()),
        body.get("layouts", ()),
        body.get("publish", ()),
        body.get("local", ()),
    )


def _dumps(value: object) -> str:
    return json.dumps(value, default=str)

"""Exec, Attach and PortForward calls, and their streaming backend.

A call validates the request and returns a URL. The client then connects to the streaming server,
and the request is validated again, because up to a minute may have passed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address

from winpod.compute.agent.client import Stream, TerminalSize
from winpod.compute.agent.protocol import Signal
from winpod.compute.backend import Backend, ExecSession, ProgramStreams
from winpod.concurrency import cancel_and_wait
from winpod.cri import streaming
from winpod.cri.idle import IdleTracker
from winpod.cri.proto import api_pb2 as api
from winpod.cri.services.containers import require_ready_sandbox, require_running_container
from winpod.cri.services.sandboxes import SandboxNetwork
from winpod.cri.state import ContainerRecord, Phase, RuntimeState
from winpod.cri.streaming import ByteReader, StreamingServer
from winpod.errors import InvalidInput, WinpodError
from winpod.network.errors import PortNotListening

HANG_UP_SECONDS = 5.0
ATTACH_PATIENCE = 10.0
_LOOPBACK = "127.0.0.1"


class ExecService:
    """The calls that return a URL, and the streaming server."""

    def __init__(
        self, state: RuntimeState, backend: Backend, networks: SandboxNetwork, activity: IdleTracker
    ) -> None:
        self._state = state
        self._server = StreamingServer(
            CriStreamingBackend(state, backend, networks), during=activity.track
        )

    async def start(self, addresses: Sequence[str]) -> None:
        """Listen on an address that clients of these CRI addresses can reach."""
        await self._server.start(advertised_host(addresses))

    async def stop(self) -> None:
        """Close every session and its exec process."""
        await self._server.close()

    async def exec(self, request: api.ExecRequest) -> api.ExecResponse:
        if not request.cmd:
            raise InvalidInput("the command is empty.")
        url = self._server.exec_url(
            self._running_id(request.container_id),
            list(request.cmd),
            stdin=request.stdin,
            stdout=request.stdout,
            stderr=request.stderr,
            tty=request.tty,
        )
        return api.ExecResponse(url=url)

    async def attach(self, request: api.AttachRequest) -> api.AttachResponse:
        """Attach to a container. It may not be started yet, so that no output is lost."""
        id_ = request.container_id
        url = self._server.attach_url(
            require_attachable_container(self._state, id_).id if id_ else "",
            stdin=request.stdin,
            stdout=request.stdout,
            stderr=request.stderr,
            tty=request.tty,
        )
        return api.AttachResponse(url=url)

    async def port_forward(self, request: api.PortForwardRequest) -> api.PortForwardResponse:
        id_ = request.pod_sandbox_id
        sandbox = require_ready_sandbox(self._state, id_).id if id_ else ""
        return api.PortForwardResponse(url=self._server.port_forward_url(sandbox, request.port))

    def _running_id(self, id_: str) -> str:
        """Return the full ID. An empty one is kept: it is reported as missing, not as unknown."""
        return require_running_container(self._state, id_).id if id_ else ""


class CriStreamingBackend:
    """Connects client streams to containers and pods."""

    def __init__(self, state: RuntimeState, backend: Backend, networks: SandboxNetwork) -> None:
        self._state = state
        self._backend = backend
        self._networks = networks

    async def exec(
        self, container_id: str, command: Sequence[str], io: streaming.ClientStreams, *, tty: bool
    ) -> int:
        container = require_running_container(self._state, container_id)
        terminal = TerminalSize() if tty else None
        async with await self._backend.exec(
            container.id, command, terminal=terminal, stdin=io.stdin is not None
        ) as program:
            try:
                await _copy_streams(program, io, write_timeout=None)
                return await program.wait()
            except asyncio.CancelledError:
                await _hang_up(program)
                raise

    async def attach(self, container_id: str, io: streaming.ClientStreams, *, tty: bool) -> None:
        """Attach to the container. Its config decides whether it has a terminal, not `tty`."""
        del tty
        container = require_attachable_container(self._state, container_id)
        stdin = io.stdin is not None and container.parsed_config.stdin
        async with await self._backend.attach(container.id, stdin=stdin) as program:
            await _copy_streams(
                program,
                io,
                write_timeout=ATTACH_PATIENCE,
                discard_stdin=not container.parsed_config.stdin,
            )

    async def connect(
        self, sandbox_id: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sandbox = require_ready_sandbox(self._state, sandbox_id)
        addresses = sandbox.ips.split()
        try:
            connection = await self._backend.dial(sandbox.id, port, addresses)
        except OSError as error:
            raise PortNotListening(sandbox.id, port, error.strerror or str(error)) from None
        return connection or await self._networks.dial(sandbox.id, port, addresses)


class ClientTooSlow(WinpodError):
    """An attached client does not read the output. The container must not block on it."""

    code = "ABORTED"

    def __init__(self) -> None:
        super().__init__(
            f"the client did not read the container's output for {ATTACH_PATIENCE:.0f} seconds.",
            "Attach again; missed output is in the log.",
        )


def require_attachable_container(state: RuntimeState, id_: str) -> ContainerRecord:
    container = state.container(id_)
    if container.phase in (Phase.CREATED, Phase.STARTING):
        return container
    return require_running_container(state, id_)


def advertised_host(addresses: Sequence[str]) -> str:
    """Return the host for URLs: that of the first TCP address, else loopback."""
    for address in addresses:
        host = address.rpartition(":")[0].strip("[]")
        with contextlib.suppress(ValueError):
            if not ip_address(host).is_unspecified:
                return host
    return _LOOPBACK


async def _copy_streams(
    program: ProgramStreams,
    io: streaming.ClientStreams,
    *,
    write_timeout: float | None,
    discard_stdin: bool = False,
) -> None:
    """Copy the streams until the program exits.

    Output to a stream that the client closed is dropped. With `discard_stdin` so is its input.
    """
    tasks = [asyncio.create_task(_copy_sizes(program, io.resize))]
    if io.stdin:
        stdin_task = _discard(io.stdin) if discard_stdin else _copy_stdin(program, io.stdin)
        tasks.append(asyncio.create_task(stdin_task))
    try:
        async for stream, data in program.output():
            writer = io.stdout if stream is Stream.OUTPUT else io.stderr
            if writer is None:
                continue
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(write_timeout):
                    await writer.write(data)
    except TimeoutError:
        raise ClientTooSlow from None
    finally:
        await cancel_and_wait(*tasks)


async def _copy_stdin(program: ProgramStreams, stdin: ByteReader) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await stdin.read():
            await program.write(data)
    await program.close_stdin()


async def _discard(stdin: ByteReader) -> None:
    while await stdin.read():
        pass


async def _copy_sizes(
    program: ProgramStreams, sizes: AsyncIterator[streaming.StreamTerminalSize]
) -> None:
    async for size in sizes:
        await program.resize(TerminalSize(size.width, size.height))


async def _hang_up(program: ExecSession) -> None:
    """Send CTRL_CLOSE to the program and wait as long as Windows does."""
    with contextlib.suppress(TimeoutError, WinpodError):
        async with asyncio.timeout(HANG_UP_SECONDS):
            await program.signal(Signal.CLOSE)
            await program.wait()

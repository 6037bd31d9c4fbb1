"""Exec, attach and port-forward: where a client is sent to, and what it finds there.

A call checks and answers a URL; the client's streams then come to the streaming server, and what
was checked is checked again, because a minute may have passed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address

from winpod.compute.agent import Signal, Size, Stream
from winpod.compute.backend import Backend, Executed, Joined
from winpod.cri import streaming
from winpod.cri.activity import Activity
from winpod.cri.containers import ready_sandbox, running_container
from winpod.cri.proto import api_pb2 as api
from winpod.cri.sandboxes import Networks
from winpod.cri.state import Container, Phase, State
from winpod.cri.streaming import ByteReader, StreamingServer
from winpod.network.errors import NotListening
from winpod.windows.errors import InvalidInput, WinpodError

HANG_UP_SECONDS = 5.0
ATTACH_PATIENCE = 10.0
_LOOPBACK = "127.0.0.1"


class Streams:
    """The calls that answer a URL, and the server behind those."""

    def __init__(
        self, state: State, backend: Backend, networks: Networks, activity: Activity
    ) -> None:
        self._state = state
        self._server = StreamingServer(Joints(state, backend, networks), during=activity.one)

    async def start(self, addresses: Sequence[str]) -> None:
        """Listen where clients of these addresses of the CRI can reach it."""
        await self._server.start(reachable_host(addresses))

    async def stop(self) -> None:
        """Ends every session, and the programs that were executed in them."""
        await self._server.close()

    async def exec(self, request: api.ExecRequest) -> api.ExecResponse:
        if not request.cmd:
            raise InvalidInput("there is no command to run in the container.")
        url = self._server.exec_url(
            self._running(request.container_id),
            list(request.cmd),
            stdin=request.stdin,
            stdout=request.stdout,
            stderr=request.stderr,
            tty=request.tty,
        )
        return api.ExecResponse(url=url)

    async def attach(self, request: api.AttachRequest) -> api.AttachResponse:
        """Also to a container that is still to be started, whose first output is then not lost."""
        id_ = request.container_id
        url = self._server.attach_url(
            attachable_container(self._state, id_).id if id_ else "",
            stdin=request.stdin,
            stdout=request.stdout,
            stderr=request.stderr,
            tty=request.tty,
        )
        return api.AttachResponse(url=url)

    async def port_forward(self, request: api.PortForwardRequest) -> api.PortForwardResponse:
        id_ = request.pod_sandbox_id
        sandbox = ready_sandbox(self._state, id_).id if id_ else ""
        return api.PortForwardResponse(url=self._server.port_forward_url(sandbox, request.port))

    def _running(self, id_: str) -> str:
        """The whole id; a missing one stays so, which is another mistake than a wrong one."""
        return running_container(self._state, id_).id if id_ else ""


class Joints:
    """What the streaming server joins a client's streams to."""

    def __init__(self, state: State, backend: Backend, networks: Networks) -> None:
        self._state = state
        self._backend = backend
        self._networks = networks

    async def exec(
        self, container_id: str, command: Sequence[str], io: streaming.Streams, *, tty: bool
    ) -> int:
        container = running_container(self._state, container_id)
        terminal = Size() if tty else None
        async with await self._backend.exec(
            container.id, command, terminal=terminal, stdin=io.stdin is not None
        ) as program:
            try:
                await _carry(program, io, patience=None)
                return await program.wait()
            except asyncio.CancelledError:
                await _hang_up(program)
                raise

    async def attach(self, container_id: str, io: streaming.Streams, *, tty: bool) -> None:
        """The container has a terminal or has none, whatever a client says."""
        del tty
        container = attachable_container(self._state, container_id)
        stdin = io.stdin is not None and container.known.stdin
        async with await self._backend.attach(container.id, stdin=stdin) as program:
            await _carry(program, io, patience=ATTACH_PATIENCE, deaf=not container.known.stdin)

    async def connect(
        self, sandbox_id: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sandbox = ready_sandbox(self._state, sandbox_id)
        addresses = sandbox.ips.split()
        try:
            found = await self._backend.dial(sandbox.id, port, addresses)
        except OSError as error:
            raise NotListening(sandbox.id, port, error.strerror or str(error)) from None
        return found or await self._networks.dial(sandbox.id, port, addresses)


class TooSlow(WinpodError):
    """A client does not take what a container writes, and the container must not wait for it."""

    code = "ABORTED"

    def __init__(self) -> None:
        super().__init__(
            f"nothing of the container's output was taken for {ATTACH_PATIENCE:.0f} seconds, and "
            "the container waits for nobody longer.",
            "Attach again; the log has what was missed.",
        )


def attachable_container(state: State, id_: str) -> Container:
    container = state.container(id_)
    if container.phase in (Phase.CREATED, Phase.STARTING):
        return container
    return running_container(state, id_)


def reachable_host(addresses: Sequence[str]) -> str:
    """Of `unix:PATH` and `HOST:PORT`: the address whose clients may be on another machine."""
    for address in addresses:
        host = address.rpartition(":")[0].strip("[]")
        with contextlib.suppress(ValueError):
            if not ip_address(host).is_unspecified:
                return host
    return _LOOPBACK


async def _carry(
    program: Joined, io: streaming.Streams, *, patience: float | None, deaf: bool = False
) -> None:
    """Both ways until the program has ended. A stream that the client took back is dropped, and
    so is what it sends to a program without input."""
    helpers = [asyncio.create_task(_follow_sizes(program, io.resize))]
    if io.stdin:
        feeding = _drop(io.stdin) if deaf else _feed(program, io.stdin)
        helpers.append(asyncio.create_task(feeding))
    try:
        async for stream, data in program.output():
            writer = io.stdout if stream is Stream.OUTPUT else io.stderr
            if writer is None:
                continue
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(patience):
                    await writer.write(data)
    except TimeoutError:
        raise TooSlow from None
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


async def _feed(program: Joined, stdin: ByteReader) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await stdin.read():
            await program.write(data)
    await program.end_input()


async def _drop(stdin: ByteReader) -> None:
    while await stdin.read():
        pass


async def _follow_sizes(program: Joined, sizes: AsyncIterator[streaming.Size]) -> None:
    async for size in sizes:
        await program.resize(Size(size.width, size.height))


async def _hang_up(program: Executed) -> None:
    """Tell a program that its terminal is closed, and give it the time Windows gives."""
    with contextlib.suppress(TimeoutError, WinpodError):
        async with asyncio.timeout(HANG_UP_SECONDS):
            await program.signal(Signal.CLOSE)
            await program.wait()

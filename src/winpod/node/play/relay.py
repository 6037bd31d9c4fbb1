"""Ports of this machine that lead to pods: one connection, one pod, whichever is the next.

Whoever asks for a port is answered by a pod that is ready at that moment. A pod that does not take
the connection is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0
_UDP_IDLE_SECONDS = 60.0
_CHUNK = 64 * 1024
_MOST_UDP_CLIENTS = 1024

Target = tuple[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Port:
    address: str
    number: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        return f"{self.address}:{self.number}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class Route:
    targets: tuple[Target, ...] = ()
    sticky: bool = False


class Relays:
    """The ports that lead somewhere now. `troubles` says why one does not."""

    def __init__(self) -> None:
        self._open: dict[Port, _Relay] = {}
        self.troubles: dict[Port, str] = {}

    async def update(self, wanted: Mapping[Port, Route]) -> None:
        for port in [port for port in self._open if port not in wanted]:
            await self._open.pop(port).close()
        for port in [port for port in self.troubles if port not in wanted]:
            del self.troubles[port]
        for port, route in wanted.items():
            if relay := self._open.get(port):
                relay.route = route
                continue
            relay = _UdpRelay(port, route) if port.protocol == "UDP" else _TcpRelay(port, route)
            try:
                await relay.open()
            except OSError as error:
                self.troubles[port] = _trouble(port, error)
                continue
            self.troubles.pop(port, None)
            self._open[port] = relay

    async def close(self) -> None:
        await self.update({})


def _trouble(port: Port, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{port} is taken by another program. End that, or choose another port."
    return f"{port} cannot be opened: {os.strerror(error.errno or 0)}."


class _Relay:
    def __init__(self, port: Port, route: Route) -> None:
        self.port = port
        self.route = route
        self._turn = count()

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def choices(self, client: str) -> Sequence[Target]:
        """All targets, the one whose turn it is first; for a sticky route the client's own."""
        targets = self.route.targets
        if not targets:
            return ()
        if self.route.sticky:
            start = int.from_bytes(hashlib.sha256(client.encode()).digest()[:4], "big")
        else:
            start = next(self._turn)
        start %= len(targets)
        return (*targets[start:], *targets[:start])


class _TcpRelay(_Relay):
    def __init__(self, port: Port, route: Route) -> None:
        super().__init__(port, route)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.port.address, self.port.number)

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._tasks.add(task)
        try:
            client = str(writer.get_extra_info("peername")[0])
            if there := await self._connect(client):
                await join((reader, writer), there)
        except (ConnectionError, OSError):
            pass
        finally:
            self._tasks.discard(task)
            _abort(writer)

    async def _connect(
        self, client: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address, number in self.choices(client):
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(address, number)
            except (OSError, TimeoutError) as error:
                _log.debug("%s does not lead to %s:%d: %r", self.port, address, number, error)
        return None


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(one: Ends, other: Ends) -> None:
    """Both ways, until both have ended."""
    ways = [
        asyncio.create_task(_carry(one[0], other[1])),
        asyncio.create_task(_carry(other[0], one[1])),
    ]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        for writer in (one[1], other[1]):
            with contextlib.suppress(OSError):
                writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


class _UdpRelay(_Relay):
    """A client keeps its pod for as long as it sends something now and then."""

    def __init__(self, port: Port, route: Route) -> None:
        super().__init__(port, route)
        self._transport: asyncio.DatagramTransport | None = None
        self._clients: dict[Any, _UdpClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        where = (self.port.address, self.port.number)
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(self._received), local_addr=where
        )

    async def close(self) -> None:
        for client in list(self._clients.values()):
            client.close()
        for task in self._tasks:
            task.cancel()
        if self._transport:
            self._transport.close()

    def _received(self, data: bytes, sender: Any) -> None:
        if client := self._clients.get(sender):
            client.send(data)
        elif len(self._clients) < _MOST_UDP_CLIENTS:
            task = asyncio.create_task(self._begin(data, sender))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _begin(self, data: bytes, sender: Any) -> None:
        target = next(iter(self.choices(str(sender[0]))), None)
        if target is None or self._transport is None:
            return
        transport = self._transport
        client = _UdpClient(
            lambda reply: transport.sendto(reply, sender), lambda: self._clients.pop(sender, None)
        )
        if self._clients.setdefault(sender, client) is client:
            await client.open(target)
        self._clients[sender].send(data)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, received: Any) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._received(data, addr)


class _UdpClient:
    def __init__(self, reply: Any, ended: Any) -> None:
        self._reply = reply
        self._ended = ended
        self._transport: asyncio.DatagramTransport | None = None
        self._early: list[bytes] = []
        self._idle: asyncio.TimerHandle | None = None

    async def open(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(self._answered), remote_addr=target
        )
        for data in self._early:
            self._transport.sendto(data)
        self._early.clear()
        self._touch()

    def send(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
            return
        self._touch()
        self._transport.sendto(data)

    def _answered(self, data: bytes, _: Any) -> None:
        self._touch()
        self._reply(data)

    def _touch(self) -> None:
        if self._idle:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_UDP_IDLE_SECONDS, self.close)

    def close(self) -> None:
        if self._idle:
            self._idle.cancel()
        if self._transport:
            self._transport.close()
        self._ended()

"""The streaming server with the executors and the port-forwarder of client-go.

Containers are local processes (tests/support/streaming_backend.py). The tests cover the protocol,
over SPDY and WebSocket.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.e2e.streaming_client import Running, StreamingClient
from tests.support.streaming_backend import EXIT_WITH, LocalBackend

from winpod.cri.streaming import StreamingServer

MIB = 1024 * 1024
TIMEOUT = 300.0
BIG = 64 * MIB
TRANSPORTS = ["spdy", "websocket"]
SPDY_PROTOCOLS = [f"v{version}.channel.k8s.io" for version in (5, 4, 3, 2)] + ["channel.k8s.io"]

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> StreamingClient:
    def report(line: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(line, flush=True)

    return StreamingClient(tmp_path_factory.mktemp("streaming-client"), report)


@pytest.fixture
def backend() -> LocalBackend:
    return LocalBackend()


@pytest.fixture
async def server(backend: LocalBackend) -> AsyncIterator[StreamingServer]:
    server = StreamingServer(backend)
    await server.start()
    yield server
    await server.close()


async def test_exec_separates_stdout_and_stderr(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    command = ["sh", "-c", "echo out; echo err >&2"]
    url = server.exec_url("container", command, stdout=True, stderr=True)
    async with client.command(url, "-stdout", "-stderr", "-transport", transport) as running:
        assert await running.stdout.read() == b"out\n"
        assert await running.stderr.read() == b"err\n"
        assert (await running.outcome()).error == ""


@pytest.mark.parametrize("protocol", SPDY_PROTOCOLS)
async def test_exec_with_every_protocol_version(
    server: StreamingServer, client: StreamingClient, transport: str, protocol: str
) -> None:
    if transport == "websocket" and protocol not in ("v5.channel.k8s.io", "v4.channel.k8s.io"):
        protocol = "v5.channel.k8s.io,v4.channel.k8s.io"
    url = server.exec_url("container", ["head", "-c", "5"], stdin=True, stdout=True)
    flags = ("-stdin", "-stdout", "-transport", transport, "-protocols", protocol)
    async with client.command(url, *flags) as running:
        running.stdin.write(b"hello and more")
        running.stdin.close()
        assert await running.stdout.read() == b"hello"
        assert (await running.outcome()).error == ""


async def test_stdin_closes_with_client(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.exec_url("container", ["sha256sum"], stdin=True, stdout=True)
    async with client.command(url, "-stdin", "-stdout", "-transport", transport) as running:
        running.stdin.write(b"windows")
        running.stdin.close()
        digest = hashlib.sha256(b"windows").hexdigest()
        assert await running.stdout.read() == f"{digest}  -\n".encode()
        assert (await running.outcome()).error == ""


async def test_64_mib_are_streamed_unchanged(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.exec_url("container", ["cat"], stdin=True, stdout=True)
    async with client.command(url, "-stdin", "-stdout", "-transport", transport) as running:
        sent, received = hashlib.sha256(), hashlib.sha256()

        async def send() -> None:
            for _ in range(BIG // MIB):
                block = os.urandom(MIB)
                sent.update(block)
                running.stdin.write(block)
                await running.stdin.drain()
            running.stdin.close()

        sending = asyncio.create_task(send())
        count = 0
        while block := await running.stdout.read(MIB):
            received.update(block)
            count += len(block)
        await sending
        assert (await running.outcome()).error == ""
        assert count == BIG
        assert received.digest() == sent.digest()


@pytest.mark.parametrize("code", [1, 44, 255])
async def test_exit_code_is_returned(
    server: StreamingServer, client: StreamingClient, transport: str, code: int
) -> None:
    url = server.exec_url("container", ["sh", "-c", f"exit {code}"], stdout=True)
    async with client.command(url, "-stdout", "-transport", transport) as running:
        outcome = await running.outcome()
    assert outcome.code == code
    assert outcome.error == f"command terminated with exit code {code}"


@pytest.mark.parametrize("code", [-1073741819, 3221225477])
async def test_32_bit_exit_code_is_sent_unsigned(
    server: StreamingServer, client: StreamingClient, transport: str, code: int
) -> None:
    """client-go parses only 8 bits, and reports the value in its error."""
    url = server.exec_url("container", [EXIT_WITH, str(code)], stdout=True)
    async with client.command(url, "-stdout", "-transport", transport) as running:
        outcome = await running.outcome()
    assert outcome.error == 'error stream protocol error: invalid exit code value "3221225477"'


async def test_runtime_error_is_returned(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.exec_url("elsewhere", ["true"], stdout=True)
    async with client.command(url, "-stdout", "-transport", transport) as running:
        outcome = await running.outcome()
    assert outcome.error == (
        "Internal error occurred: error executing command in container:"
        " There is no container elsewhere."
    )


async def test_terminal_follows_client_size(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    command = ["sh", "-c", "trap 'exit 7' INT; while stty size; do sleep 0.1; done"]
    url = server.exec_url("container", command, stdin=True, stdout=True, tty=True)
    flags = ("-stdin", "-stdout", "-tty", "-transport", transport)
    async with client.command(url, *flags) as running, asyncio.timeout(TIMEOUT):
        for width, height in ((80, 24), (100, 30)):
            running.resize(width, height)
            await running.stdout.readuntil(f"{height} {width}\r\n".encode())
        running.stdin.write(b"\x03")
        outcome = await running.outcome()
    assert outcome.code == 7


async def test_attach_streams(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.attach_url("container", stdin=True, stdout=True, stderr=True)
    flags = ("-stdin", "-stdout", "-stderr", "-transport", transport)
    async with client.command(url, *flags) as running:
        running.stdin.write(b"typed\n")
        assert await running.stdout.readline() == b"typed\n"
        running.stdin.close()
        assert (await running.outcome()).error == ""


async def test_process_group_gets_hangup_on_client_disconnect(
    server: StreamingServer, client: StreamingClient, backend: LocalBackend, transport: str
) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; sleep 600"], stdout=True)
    async with client.command(url, "-stdout", "-transport", transport) as running:
        assert await running.stdout.readline() == b"up\n"
        running.process.kill()
    async with asyncio.timeout(TIMEOUT):
        group = await backend.ended_by_hangup.get()
        await _wait_group_exited(group)


async def test_client_disconnect_with_unread_input_is_detected(
    server: StreamingServer, client: StreamingClient, backend: LocalBackend, transport: str
) -> None:
    url = server.exec_url("container", ["sh", "-c", "echo up; sleep 600"], stdin=True, stdout=True)
    async with client.command(url, "-stdin", "-stdout", "-transport", transport) as running:
        assert await running.stdout.readline() == b"up\n"
        running.stdin.write(bytes(16 * MIB))
        await asyncio.sleep(1)
        running.process.kill()
    async with asyncio.timeout(TIMEOUT):
        await backend.ended_by_hangup.get()


async def test_slow_client_uses_bounded_memory(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.exec_url("container", ["head", "-c", str(BIG), "/dev/zero"], stdout=True)
    before = _resident_kib()
    async with client.command(url, "-stdout", "-transport", transport) as running:
        assert await running.stdout.readexactly(MIB)
        await asyncio.sleep(2)
        growth = _resident_kib() - before
        count = MIB
        while block := await running.stdout.read(MIB):
            count += len(block)
        assert (await running.outcome()).error == ""
    assert count == BIG
    assert growth < 16 * 1024, f"the server grew by {growth} KiB"


async def test_slow_process_uses_bounded_memory(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.exec_url("container", ["sh", "-c", "sleep 2; wc -c"], stdin=True, stdout=True)
    before = _resident_kib()
    async with client.command(url, "-stdin", "-stdout", "-transport", transport) as running:

        async def send() -> None:
            for _ in range(BIG // MIB):
                running.stdin.write(bytes(MIB))
                await running.stdin.drain()
            running.stdin.close()

        sending = asyncio.create_task(send())
        await asyncio.sleep(1.5)
        growth = _resident_kib() - before
        assert int(await running.stdout.read()) == BIG
        await sending
    assert growth < 24 * 1024, f"the server grew by {growth} KiB"


async def _wait_group_exited(group: int) -> None:
    """Wait until the group has no processes; they may be reaped by another process."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            await asyncio.sleep(0.05)


def _resident_kib() -> int:
    """Return the resident memory of this process, which runs the server."""
    with open("/proc/self/status") as status:  # noqa: PTH123
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def forwarded(
    server: StreamingServer, client: StreamingClient, transport: str, serve: Serve
) -> AsyncIterator[Running]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        url = server.port_forward_url("sandbox")
        async with client.forward(url, [port], "-transport", transport) as running:
            yield running


async def answer_after_eof(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer only after EOF, which requires half-close."""
    data = await reader.read()
    writer.write(hashlib.sha256(data).hexdigest().encode())
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_port_forward_supports_half_close(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    async with forwarded(server, client, transport, answer_after_eof) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.local_ports[0])
        data = os.urandom(3 * MIB)
        writer.write(data)
        writer.write_eof()
        assert (await reader.read()).decode() == hashlib.sha256(data).hexdigest()
        writer.close()


async def test_concurrent_connections_are_forwarded(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    async def exchange(port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = os.urandom(128 * 1024)
        writer.write(data)
        received = await reader.readexactly(len(data))
        writer.close()
        return received == data

    async with forwarded(server, client, transport, echo) as running:
        port = running.local_ports[0]
        for _ in range(3):
            async with asyncio.timeout(TIMEOUT):
                assert all(await asyncio.gather(*(exchange(port) for _ in range(50))))


async def test_64_mib_are_forwarded_unchanged(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    async with forwarded(server, client, transport, echo) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.local_ports[0])
        sent, received = hashlib.sha256(), hashlib.sha256()

        async def send() -> None:
            for _ in range(BIG // MIB):
                block = os.urandom(MIB)
                sent.update(block)
                writer.write(block)
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        while block := await reader.read(MIB):
            received.update(block)
        await sending
        assert received.digest() == sent.digest()
        writer.close()


async def test_port_forward_to_closed_port_is_reported(
    server: StreamingServer, client: StreamingClient, transport: str
) -> None:
    url = server.port_forward_url("sandbox")
    async with client.forward(url, [1], "-transport", transport) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.local_ports[0])
        assert await reader.read() == b""
        writer.close()
        assert b"Nothing listens on port 1 of the pod." in await running.stderr.read()

"""Exec, attach and port-forward into real Windows containers, with the clients of client-go."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.streaming_client import Running, StreamingClient
from tests.support.cri_node import run_sandbox, start, status
from tests.support.e2e import windows_programs
from tests.support.e2e.runtime_node import Node, create_with, ended, node, pulled
from tests.support.registries import home, registry

from winpod.compute.agent.client import AgentClient
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.cri.services import exec as exec_service

__all__ = ["home", "node", "registry"]

MIB = 1 << 20
TIMEOUT = 300.0
TALKER = "C:\\talker.exe"
LAUNCHED = "C:\\launched.exe"


@pytest.fixture(scope="module")
def streams(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> StreamingClient:
    def report(line: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(line, flush=True)

    return StreamingClient(tmp_path_factory.mktemp("streaming-client"), report)


class Pod:
    """A pod with one running container, and streaming clients for it."""

    def __init__(self, node: Node, client: CriClient, streams: StreamingClient) -> None:
        self.node = node
        self.client = client
        self._streams = streams
        self.sandbox = self.container = ""

    async def run(self, image: str, command: Sequence[str], **config: Any) -> None:
        logs = str(self.node.root / "logs")
        self.sandbox = await run_sandbox(self.client, log_directory=logs)
        more = {"log_path": "app.log", **config}
        self.container = await create_with(
            self.client, self.sandbox, image, tuple(command), "app", more
        )
        await start(self.client, self.container)

    async def wait_until_logged(self, text: str) -> None:
        await wait_until_written(self.node.root / "logs/app.log", text)

    @asynccontextmanager
    async def exec(self, command: Sequence[str], *flags: str) -> AsyncIterator[Running]:
        request = api.ExecRequest(
            container_id=self.container, cmd=command, **_stream_options(flags)
        )
        url = (await self.client.call("Exec", request)).url
        async with self._streams.command(url, *flags) as running:
            yield running

    async def run_talker(self, image: str, **config: Any) -> None:
        """Run a program that executes commands from its stdin, and wait until it listens."""
        await self.run(image, [TALKER], stdin=True, **config)
        await self.wait_until_logged("listening")

    @asynccontextmanager
    async def attach(self, *flags: str) -> AsyncIterator[Running]:
        request = api.AttachRequest(container_id=self.container, **_stream_options(flags))
        url = (await self.client.call("Attach", request)).url
        async with self._streams.command(url, *flags) as running:
            yield running

    @asynccontextmanager
    async def forward(self, port: int, transport: str) -> AsyncIterator[Running]:
        request = api.PortForwardRequest(pod_sandbox_id=self.sandbox, port=[port])
        url = (await self.client.call("PortForward", request)).url
        async with self._streams.forward(url, [port], "-transport", transport) as running:
            yield running

    async def programs(self) -> list[str]:
        """Return the names of the processes in the container."""
        agent = AgentClient(self.node.root / "containers" / self.container / "run/agent.sock")
        return [process.name for process in await agent.processes()]

    async def wait_for_count(self, name: str, count: int) -> None:
        """Wait until exactly this many processes of this name run."""
        async with asyncio.timeout(TIMEOUT):
            while (await self.programs()).count(name) != count:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.1)


def read_if_exists(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def wait_until_written(file: Path, text: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while text not in await asyncio.to_thread(read_if_exists, file):  # noqa: ASYNC110 - files are polled
            await asyncio.sleep(0.1)


async def next_line(running: Running) -> bytes:
    """Read the next line, without the greeting, which may be delivered late."""
    line = await running.stdout.readline()
    return await running.stdout.readline() if line == b"listening\n" else line


async def wait_until_attached(writer: Running, reader: Running) -> None:
    """Wait until one client receives what the other has written."""
    reading = asyncio.create_task(reader.stdout.readuntil(b"heard are you there\n"))
    async with asyncio.timeout(TIMEOUT):
        while not reading.done():
            writer.stdin.write(b"are you there\n")
            await asyncio.wait((reading,), timeout=0.5)
        await reading


def _stream_options(flags: Sequence[str]) -> dict[str, bool]:
    return {name: f"-{name}" in flags for name in ("stdin", "stdout", "stderr", "tty")}


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    return {
        "talker.exe": windows_programs.go_program(name="talker"),
        "launched.exe": windows_programs.c_program("launched"),
        "narrow.exe": windows_programs.c_program("launched", architecture="x86"),
    }


@pytest.fixture
async def pod(
    programs: dict[str, Path], node: Node, home: Path, registry: str, streams: StreamingClient
) -> AsyncIterator[tuple[Pod, str]]:
    content = home / "content"
    content.mkdir()
    for name, program in programs.items():
        shutil.copy(program, content / name)
    async with node as client:
        yield Pod(node, client, streams), await pulled(client, home, registry)


TRANSPORTS = pytest.mark.parametrize("transport", ["spdy", "websocket"])


@TRANSPORTS
async def test_exec_streams_stdio_and_exit_code(pod: tuple[Pod, str], transport: str) -> None:
    """Check stdin, stdout, stderr, the exit code, and EOF without stdin."""
    target, image = pod
    await target.run(image, [LAUNCHED, "sleep"])
    flags = ("-stdin", "-stdout", "-stderr", "-transport", transport)
    async with target.exec([TALKER], *flags) as running:
        running.stdin.write(b"hello\ncry oh no\n")
        assert await running.stdout.readuntil(b"hello\n") == b"listening\nheard hello\n"
        assert await running.stderr.readline() == b"oh no\n"
        running.stdin.close()
        assert await running.stdout.read() == b"no more input\n"
        assert (await running.outcome()).error == ""
    async with target.exec([TALKER], "-stdout", "-transport", transport) as running:
        assert await running.stdout.read() == b"listening\nno more input\n"
    for code, expected in ((3, "exit code 3"), (1060, '"1060"'), (0xC0000005, '"3221225477"')):
        async with target.exec([TALKER], *flags) as running:
            running.stdin.write(f"exit {code}\n".encode())
            assert expected in (await running.outcome()).error
    async with target.exec(["gone.exe"], "-stdout", "-transport", transport) as running:
        assert "The system cannot find the file specified." in (await running.outcome()).error


async def test_exec_of_unsupported_program_is_rejected(
    pod: tuple[Pod, str],
) -> None:
    target, image = pod
    await target.run(image, [LAUNCHED, "sleep"])
    message = (
        "narrow.exe is a 32-bit program, and the Wine base has only 64-bit Windows. "
        "Build a base with both: winpod base build --with-32bit"
    )
    request = api.ExecSyncRequest(container_id=target.container, cmd=["narrow"], timeout=300)
    with pytest.raises(RemoteError) as caught:
        await target.client.call("ExecSync", request)
    assert str(caught.value) == message
    async with target.exec(["C:\\NARROW.exe"], "-stdout") as running:
        assert message.partition(" ")[2] in (await running.outcome()).error


async def test_exec_inherits_environment_directory_and_user(pod: tuple[Pod, str]) -> None:
    target, image = pod
    security = api.WindowsContainerSecurityContext(run_as_username="ContainerUser")
    await target.run(
        image,
        [LAUNCHED, "sleep"],
        working_dir="C:\\Windows",
        envs=[api.KeyValue(key="Who", value=b"winpod")],
        windows=api.WindowsContainerConfig(security_context=security),
    )
    command = ["cmd", "/c", "echo %WHO%&cd&echo %USERNAME%&echo x>C:\\talker.exe"]
    request = api.ExecSyncRequest(container_id=target.container, cmd=command, timeout=300)
    answer = await target.client.call("ExecSync", request)
    expected = ["winpod", "c:\\windows", "containeruser"]
    assert [line.lower() for line in answer.stdout.decode().splitlines()] == expected
    assert b"Access denied" in answer.stderr
    async with target.exec(command, "-stdout") as running:
        output = (await running.stdout.read()).decode()
    assert [line.lower() for line in output.splitlines()] == expected


@TRANSPORTS
async def test_exec_terminal_follows_client_size(pod: tuple[Pod, str], transport: str) -> None:
    target, image = pod
    await target.run(image, [LAUNCHED, "sleep"])
    flags = ("-stdin", "-stdout", "-tty", "-transport", transport)
    async with target.exec([LAUNCHED, "size"], *flags) as running, asyncio.timeout(TIMEOUT):
        await running.stdout.readuntil(b"console 1 1")
        await check_resizes(running)
        outcome = await running.outcome()
    assert outcome.code == 42


async def check_resizes(running: Running) -> None:
    """Check that the program reports each size; it exits at the last one."""
    for width, height in ((100, 30), (132, 43)):
        running.resize(width, height)
        await running.stdout.readuntil(f"size {width} {height}".encode())
    await running.stdout.read()


async def test_exec_is_closed_and_killed_on_client_disconnect(
    pod: tuple[Pod, str], tmp_path: Path
) -> None:
    target, image = pod
    (tmp_path / "heard").mkdir()
    mount = api.Mount(host_path=str(tmp_path / "heard"), container_path="C:\\heard")
    await target.run_talker(image, mounts=[mount])
    line = f"echo up&{LAUNCHED} stubborn >C:\\heard\\what.txt"
    async with target.exec(["cmd", "/c", line], "-stdout") as running:
        assert await running.stdout.readline() == b"up\r\n"
        await wait_until_written(tmp_path / "heard/what.txt", "waiting")
        running.process.kill()
    await target.wait_for_count("launched.exe", 0)
    assert "event 2" in (tmp_path / "heard/what.txt").read_text()
    assert (await status(target.client, target.container)).state == api.CONTAINER_RUNNING


async def test_exec_timeout_kills_process_tree(
    pod: tuple[Pod, str],
) -> None:
    target, image = pod
    await target.run_talker(image)
    for seconds in (3, 15, 60, 240):  # retry with longer timeouts, for slow hosts
        request = api.ExecSyncRequest(
            container_id=target.container, cmd=[LAUNCHED, "family", "3"], timeout=seconds
        )
        call, max_count = asyncio.create_task(target.client.call("ExecSync", request)), 0
        while not call.done():
            max_count = max(max_count, (await target.programs()).count("launched.exe"))
            await asyncio.wait((call,), timeout=0.1)
        with pytest.raises(RemoteError) as caught:
            await call
        assert caught.value.status.name == "DEADLINE_EXCEEDED"
        await target.wait_for_count("launched.exe", 0)
        if max_count == 3:
            break
    assert max_count == 3


@TRANSPORTS
async def test_attach_streams_of_container(pod: tuple[Pod, str], transport: str) -> None:
    """Sequential and concurrent clients; all receive the output and end with the target."""
    target, image = pod
    await target.run_talker(image)
    flags = ("-stdin", "-stdout", "-stderr", "-transport", transport)
    async with target.attach(*flags) as running:
        running.stdin.write(b"first\n")
        assert await next_line(running) == b"heard first\n"
        running.stdin.close()
        await asyncio.sleep(0.5)
    assert (await status(target.client, target.container)).state == api.CONTAINER_RUNNING
    async with (
        target.attach(*flags) as writer,
        target.attach("-stdout", "-transport", transport) as reader,
    ):
        await wait_until_attached(writer, reader)
        writer.stdin.write(b"second\ncry oh no\n")
        for client in (writer, reader):
            await client.stdout.readuntil(b"heard second\n")
        assert await writer.stderr.readline() == b"oh no\n"
        writer.stdin.write(b"exit 1060\n")
        for client in (writer, reader):
            assert (await client.outcome()).error == ""
    assert (await ended(target.client, target.container)).exit_code == 1060
    await target.wait_until_logged("stdout F heard first")


async def test_attach_and_exec_work_after_runtime_restart(node: Node, pod: tuple[Pod, str]) -> None:
    target, image = pod
    await target.run_talker(image, envs=[api.KeyValue(key="WHO", value=b"winpod")])
    await node.__aexit__()
    target.client = await node.__aenter__()
    async with target.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"again\n")
        assert await next_line(running) == b"heard again\n"
    async with target.exec(["cmd", "/c", "echo %WHO%"], "-stdout") as running:
        assert await running.stdout.read() == b"winpod\r\n"


async def test_stdin_once_closes_with_first_client(pod: tuple[Pod, str]) -> None:
    target, image = pod
    await target.run_talker(image, stdin_once=True)
    async with target.attach("-stdout"):
        await asyncio.sleep(0.5)
    async with target.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"hello\n")
        running.stdin.close()
        assert await next_line(running) == b"heard hello\n"
        assert await running.stdout.read() == b"no more input\n"
        assert (await running.outcome()).error == ""
    assert (await ended(target.client, target.container)).exit_code == 0


@TRANSPORTS
async def test_attach_terminal_of_container(pod: tuple[Pod, str], transport: str) -> None:
    target, image = pod
    await target.run(image, [LAUNCHED, "size"], stdin=True, tty=True)
    flags = ("-stdin", "-stdout", "-tty", "-transport", transport)
    async with target.attach(*flags) as running, asyncio.timeout(TIMEOUT):
        await check_resizes(running)
        assert (await running.outcome()).error == ""
    assert (await ended(target.client, target.container)).exit_code == 42


async def test_slow_attached_client_gets_all_output(
    pod: tuple[Pod, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit for clients that do not read is tested separately."""
    monkeypatch.setattr(exec_service, "ATTACH_PATIENCE", TIMEOUT)
    target, image = pod
    await target.run_talker(image)
    async with target.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"hello\n")
        assert await next_line(running) == b"heard hello\n"
        running.stdin.write(b"flood 24\nexit 0\n")
        await asyncio.sleep(4)
        count = 0
        while block := await running.stdout.read(MIB):
            count += len(block)
        assert (await running.outcome()).error == ""
    assert count == 24 * MIB


async def test_stalled_attached_client_is_dropped(
    pod: tuple[Pod, str],
) -> None:
    target, image = pod
    await target.run_talker(image)
    async with target.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"flood 24\nexit 0\n")
        async with asyncio.timeout(TIMEOUT):
            assert (await ended(target.client, target.container)).exit_code == 0
        while await running.stdout.read(MIB):
            pass
        assert "the client did not read" in (await running.outcome()).error


@TRANSPORTS
async def test_port_forward_to_windows_server(pod: tuple[Pod, str], transport: str) -> None:
    target, image = pod
    await target.run(image, [TALKER, "127.0.0.1:8080"])
    async with target.forward(8080, transport) as running, asyncio.timeout(TIMEOUT):
        await target.wait_until_logged("serving")
        for path in ("/a", "/b"):
            answer = await _get(running.local_ports[0], path)
            assert answer.endswith(f"{path} from Windows".encode())
    async with target.forward(9, transport) as running:
        assert await _get(running.local_ports[0], "/") == b""
        assert b"failed to connect to localhost:9" in await running.stderr.read()


async def _get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()

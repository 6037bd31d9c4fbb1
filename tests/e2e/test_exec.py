"""Exec, attach and port-forward with client-go's own clients, into real Windows containers."""

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
from winpod.cri.services import exec as streams_of_cri

__all__ = ["home", "node", "registry"]

MIB = 1 << 20
PATIENCE = 300.0
TALK = "C:\\talker.exe"
LAUNCHED = "C:\\launched.exe"


@pytest.fixture(scope="module")
def streams(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> StreamingClient:
    def say(line: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(line, flush=True)

    return StreamingClient(tmp_path_factory.mktemp("streaming-client"), say)


class Pod:
    """One container that runs, and clients for it."""

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

    async def until_logged(self, words: str) -> None:
        await until_written(self.node.root / "logs/app.log", words)

    @asynccontextmanager
    async def exec(self, command: Sequence[str], *flags: str) -> AsyncIterator[Running]:
        request = api.ExecRequest(container_id=self.container, cmd=command, **_asked(flags))
        url = (await self.client.call("Exec", request)).url
        async with self._streams.command(url, *flags) as running:
            yield running

    async def talk(self, image: str, **config: Any) -> None:
        """With a program that does what it is told, once it listens."""
        await self.run(image, [TALK], stdin=True, **config)
        await self.until_logged("listening")

    @asynccontextmanager
    async def attach(self, *flags: str) -> AsyncIterator[Running]:
        request = api.AttachRequest(container_id=self.container, **_asked(flags))
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
        """The names of what runs in the container's Windows."""
        agent = AgentClient(self.node.root / "containers" / self.container / "run/agent.sock")
        return [process.name for process in await agent.processes()]

    async def until(self, name: str, many: int) -> None:
        """Until so many programs of this name run."""
        async with asyncio.timeout(PATIENCE):
            while (await self.programs()).count(name) != many:  # noqa: ASYNC110 - Windows does not tell
                await asyncio.sleep(0.1)


def written(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def until_written(file: Path, words: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while words not in await asyncio.to_thread(written, file):  # noqa: ASYNC110 - a file, which tells nobody
            await asyncio.sleep(0.1)


async def next_line(running: Running) -> bytes:
    """What the program says next; its greeting, logged already, may still be on its way."""
    line = await running.stdout.readline()
    return await running.stdout.readline() if line == b"listening\n" else line


async def until_joined(typing: Running, watching: Running) -> None:
    """Until one sees what the other has typed."""
    seeing = asyncio.create_task(watching.stdout.readuntil(b"heard are you there\n"))
    async with asyncio.timeout(PATIENCE):
        while not seeing.done():
            typing.stdin.write(b"are you there\n")
            await asyncio.wait((seeing,), timeout=0.5)
        await seeing


def _asked(flags: Sequence[str]) -> dict[str, bool]:
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
async def test_exec_joins_the_streams_of_a_windows_program(
    pod: tuple[Pod, str], transport: str
) -> None:
    """Its input, output and errors apart, its exit code, and its end where there is no input."""
    one, image = pod
    await one.run(image, [LAUNCHED, "sleep"])
    flags = ("-stdin", "-stdout", "-stderr", "-transport", transport)
    async with one.exec([TALK], *flags) as running:
        running.stdin.write(b"hello\ncry oh no\n")
        assert await running.stdout.readuntil(b"hello\n") == b"listening\nheard hello\n"
        assert await running.stderr.readline() == b"oh no\n"
        running.stdin.close()
        assert await running.stdout.read() == b"no more input\n"
        assert (await running.outcome()).error == ""
    async with one.exec([TALK], "-stdout", "-transport", transport) as running:
        assert await running.stdout.read() == b"listening\nno more input\n"
    for code, said in ((3, "exit code 3"), (1060, '"1060"'), (0xC0000005, '"3221225477"')):
        async with one.exec([TALK], *flags) as running:
            running.stdin.write(f"exit {code}\n".encode())
            assert said in (await running.outcome()).error
    async with one.exec(["gone.exe"], "-stdout", "-transport", transport) as running:
        assert "The system cannot find the file specified." in (await running.outcome()).error


async def test_a_further_program_that_the_base_cannot_run_is_refused_with_the_reason(
    pod: tuple[Pod, str],
) -> None:
    one, image = pod
    await one.run(image, [LAUNCHED, "sleep"])
    why = (
        "narrow.exe is a 32-bit program, and the Wine base has only 64-bit Windows. "
        "Build a base with both: winpod base build --with-32bit"
    )
    request = api.ExecSyncRequest(container_id=one.container, cmd=["narrow"], timeout=300)
    with pytest.raises(RemoteError) as caught:
        await one.client.call("ExecSync", request)
    assert str(caught.value) == why
    async with one.exec(["C:\\NARROW.exe"], "-stdout") as running:
        assert why.partition(" ")[2] in (await running.outcome()).error


async def test_a_further_program_has_what_the_containers_own_has(pod: tuple[Pod, str]) -> None:
    one, image = pod
    security = api.WindowsContainerSecurityContext(run_as_username="ContainerUser")
    await one.run(
        image,
        [LAUNCHED, "sleep"],
        working_dir="C:\\Windows",
        envs=[api.KeyValue(key="Who", value=b"winpod")],
        windows=api.WindowsContainerConfig(security_context=security),
    )
    command = ["cmd", "/c", "echo %WHO%&cd&echo %USERNAME%&echo x>C:\\talker.exe"]
    request = api.ExecSyncRequest(container_id=one.container, cmd=command, timeout=300)
    answer = await one.client.call("ExecSync", request)
    said = ["winpod", "c:\\windows", "containeruser"]
    assert [line.lower() for line in answer.stdout.decode().splitlines()] == said
    assert b"Access denied" in answer.stderr
    async with one.exec(command, "-stdout") as running:
        found = (await running.stdout.read()).decode()
    assert [line.lower() for line in found.splitlines()] == said


@TRANSPORTS
async def test_a_terminal_has_the_sizes_of_its_client(pod: tuple[Pod, str], transport: str) -> None:
    one, image = pod
    await one.run(image, [LAUNCHED, "sleep"])
    flags = ("-stdin", "-stdout", "-tty", "-transport", transport)
    async with one.exec([LAUNCHED, "size"], *flags) as running, asyncio.timeout(PATIENCE):
        await running.stdout.readuntil(b"console 1 1")
        await see_sizes(running)
        outcome = await running.outcome()
    assert outcome.code == 42


async def see_sizes(running: Running) -> None:
    """The program says the size that its terminal has now, and ends at the last of these."""
    for width, height in ((100, 30), (132, 43)):
        running.resize(width, height)
        await running.stdout.readuntil(f"size {width} {height}".encode())
    await running.stdout.read()


async def test_a_program_whose_client_is_gone_hears_of_it_and_is_ended(
    pod: tuple[Pod, str], tmp_path: Path
) -> None:
    one, image = pod
    (tmp_path / "heard").mkdir()
    mount = api.Mount(host_path=str(tmp_path / "heard"), container_path="C:\\heard")
    await one.talk(image, mounts=[mount])
    line = f"echo up&{LAUNCHED} stubborn >C:\\heard\\what.txt"
    async with one.exec(["cmd", "/c", line], "-stdout") as running:
        assert await running.stdout.readline() == b"up\r\n"
        await until_written(tmp_path / "heard/what.txt", "waiting")
        running.process.kill()
    await one.until("launched.exe", 0)
    assert "event 2" in (tmp_path / "heard/what.txt").read_text()
    assert (await status(one.client, one.container)).state == api.CONTAINER_RUNNING


async def test_an_exec_that_takes_too_long_is_ended_with_all_that_it_started(
    pod: tuple[Pod, str],
) -> None:
    one, image = pod
    await one.talk(image)
    for seconds in (3, 15, 60, 240):  # the family is there in time, on a slow machine too
        request = api.ExecSyncRequest(
            container_id=one.container, cmd=[LAUNCHED, "family", "3"], timeout=seconds
        )
        calling, most = asyncio.create_task(one.client.call("ExecSync", request)), 0
        while not calling.done():
            most = max(most, (await one.programs()).count("launched.exe"))
            await asyncio.wait((calling,), timeout=0.1)
        with pytest.raises(RemoteError) as caught:
            await calling
        assert caught.value.status.name == "DEADLINE_EXCEEDED"
        await one.until("launched.exe", 0)
        if most == 3:
            break
    assert most == 3


@TRANSPORTS
async def test_attach_joins_the_containers_own_program(
    pod: tuple[Pod, str], transport: str
) -> None:
    """One after the other, and two at a time; what one types, both see; the end ends both."""
    one, image = pod
    await one.talk(image)
    flags = ("-stdin", "-stdout", "-stderr", "-transport", transport)
    async with one.attach(*flags) as running:
        running.stdin.write(b"first\n")
        assert await next_line(running) == b"heard first\n"
        running.stdin.close()
        await asyncio.sleep(0.5)
    assert (await status(one.client, one.container)).state == api.CONTAINER_RUNNING
    async with (
        one.attach(*flags) as typing,
        one.attach("-stdout", "-transport", transport) as watching,
    ):
        await until_joined(typing, watching)
        typing.stdin.write(b"second\ncry oh no\n")
        for each in (typing, watching):
            await each.stdout.readuntil(b"heard second\n")
        assert await typing.stderr.readline() == b"oh no\n"
        typing.stdin.write(b"exit 1060\n")
        for each in (typing, watching):
            assert (await each.outcome()).error == ""
    assert (await ended(one.client, one.container)).exit_code == 1060
    await one.until_logged("stdout F heard first")


async def test_streams_are_joined_again_after_a_restart(node: Node, pod: tuple[Pod, str]) -> None:
    one, image = pod
    await one.talk(image, envs=[api.KeyValue(key="WHO", value=b"winpod")])
    await node.__aexit__()
    one.client = await node.__aenter__()
    async with one.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"again\n")
        assert await next_line(running) == b"heard again\n"
    async with one.exec(["cmd", "/c", "echo %WHO%"], "-stdout") as running:
        assert await running.stdout.read() == b"winpod\r\n"


async def test_input_that_is_for_one_client_ends_with_it(pod: tuple[Pod, str]) -> None:
    one, image = pod
    await one.talk(image, stdin_once=True)
    async with one.attach("-stdout"):
        await asyncio.sleep(0.5)
    async with one.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"hello\n")
        running.stdin.close()
        assert await next_line(running) == b"heard hello\n"
        assert await running.stdout.read() == b"no more input\n"
        assert (await running.outcome()).error == ""
    assert (await ended(one.client, one.container)).exit_code == 0


@TRANSPORTS
async def test_attach_joins_the_terminal_of_a_container(
    pod: tuple[Pod, str], transport: str
) -> None:
    one, image = pod
    await one.run(image, [LAUNCHED, "size"], stdin=True, tty=True)
    flags = ("-stdin", "-stdout", "-tty", "-transport", transport)
    async with one.attach(*flags) as running, asyncio.timeout(PATIENCE):
        await see_sizes(running)
        assert (await running.outcome()).error == ""
    assert (await ended(one.client, one.container)).exit_code == 42


async def test_an_attached_client_gets_every_byte_at_its_own_pace(
    pod: tuple[Pod, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as nobody's patience ends, which is another test's."""
    monkeypatch.setattr(streams_of_cri, "ATTACH_PATIENCE", PATIENCE)
    one, image = pod
    await one.talk(image)
    async with one.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"hello\n")
        assert await next_line(running) == b"heard hello\n"
        running.stdin.write(b"flood 24\nexit 0\n")
        await asyncio.sleep(4)
        count = 0
        while block := await running.stdout.read(MIB):
            count += len(block)
        assert (await running.outcome()).error == ""
    assert count == 24 * MIB


async def test_a_client_that_takes_nothing_does_not_stop_the_container(
    pod: tuple[Pod, str],
) -> None:
    one, image = pod
    await one.talk(image)
    async with one.attach("-stdin", "-stdout") as running:
        running.stdin.write(b"flood 24\nexit 0\n")
        async with asyncio.timeout(PATIENCE):
            assert (await ended(one.client, one.container)).exit_code == 0
        while await running.stdout.read(MIB):
            pass
        assert "the client did not read" in (await running.outcome()).error


@TRANSPORTS
async def test_a_port_of_a_windows_server_is_forwarded(
    pod: tuple[Pod, str], transport: str
) -> None:
    one, image = pod
    await one.run(image, [TALK, "127.0.0.1:8080"])
    async with one.forward(8080, transport) as running, asyncio.timeout(PATIENCE):
        await one.until_logged("serving")
        for path in ("/a", "/b"):
            answer = await _get(running.local_ports[0], path)
            assert answer.endswith(f"{path} from Windows".encode())
    async with one.forward(9, transport) as running:
        assert await _get(running.local_ports[0], "/") == b""
        assert b"failed to connect to localhost:9" in await running.stderr.read()


async def _get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()

"""Named pipes in real Wine that connect to Unix sockets of the host."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.conmon_supervision import until
from tests.support.cri_node import run_sandbox, start
from tests.support.e2e import windows_programs
from tests.support.e2e.runtime_node import Node, create_with, node, pulled
from tests.support.e2e.windows_container import unpack_content
from tests.support.e2e.windows_silo import Shell, windows_shell
from tests.support.registries import home, registry

from winpod.compute.agent.client import Program, ProgramResult
from winpod.compute.errors import NamedPipeFailed
from winpod.compute.wine.backend import NamedPipe, start_pipe_relay, write_named_pipes
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.images.base.builder import Base

__all__ = ["home", "node", "registry"]

MIB = 1 << 20
TIMEOUT = 300.0
CLIENT = r"""
const net = require('net'), http = require('http'), crypto = require('crypto');
const [what, name, amount] = process.argv.slice(2);
const path = '\\\\.\\pipe\\' + name;
const say = (...words) => console.log(...words);
if (what === 'get')
  http.get({socketPath: path, path: '/there'}, answer => {
    answer.setEncoding('utf8').on('data', text => say(answer.statusCode, text));
  }).on('error', error => say(error.code));
if (what === 'echo')
  for (let turn = 0; turn < Number(amount); turn++) {
    const pipe = net.connect(path, () => pipe.write(`turn ${turn}\n`));
    pipe.on('data', text => { say(String(text).trim()); pipe.destroy(); });
    pipe.on('error', error => say(error.code));
  }
if (what === 'pump') {
  const size = Number(amount), sent = crypto.randomBytes(1 << 20);
  const there = crypto.createHash('sha256'), back = crypto.createHash('sha256');
  let got = 0, left = size;
  const pipe = net.connect(path, function more() {
    while (left) {
      left -= sent.length;
      there.update(sent);
      if (!pipe.write(sent)) return pipe.once('drain', more);
    }
  });
  pipe.on('data', data => {
    got += data.length;
    back.update(data);
    if (got === size) {
      say(there.digest('hex') === back.digest('hex') ? 'the same' : 'another');
      pipe.destroy();
    }
  });
  pipe.on('error', error => say(error.code));
}
if (what === 'read')
  net.connect(path).on('data', text => say(String(text))).on('close', () => say('closed'))
    .on('error', error => say(error.code));
"""


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sockets") / ("long" * 30)
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def shell(base: Base, sockets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Run a silo with a relay that all tests share."""
    content: dict[str, Path | str] = {
        "app/node.exe": windows_programs.node(),
        "app/client.js": CLIENT,
    }
    layer = unpack_content(base, content, tmp_path_factory.mktemp("layer"))
    with windows_shell(base, layer, tmp_path_factory.mktemp("shells") / "pipes") as running:
        pipes = [NamedPipe("web", sockets / "web.sock"), NamedPipe("Écho", sockets / "echo")]
        write_named_pipes(running.folder, pipes)
        asyncio.run(start_relay_when_ready(running))
        yield running


async def start_relay_when_ready(shell: Shell) -> None:
    await asyncio.wait_for(shell.agent.ping(), TIMEOUT)
    await start_pipe_relay(shell.folder)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@contextlib.asynccontextmanager
async def serving(path: Path, serve: Serve) -> AsyncIterator[None]:
    """Serve a socket whose path is too long for a socket address."""
    with contextlib.chdir(path.parent):
        server = await asyncio.start_unix_server(serve, path.name)
    try:
        async with server:
            yield
    finally:
        os.unlink(path)  # noqa: PTH108


async def run(shell: Shell, *arguments: object) -> ProgramResult:
    line = " ".join(map(str, ("C:\\app\\node.exe", "C:\\app\\client.js", *arguments)))
    return await asyncio.wait_for(shell.agent.run(Program(line)), TIMEOUT)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def relays(folder: Path) -> list[int]:
    """Return the relays that have files in a directory open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            targets = [target.readlink() for target in (process / "fd").iterdir()]
            is_relay = (process / "comm").read_text() == "wproxy-relay\n"
            if is_relay and any(target.is_relative_to(folder) for target in targets):
                found.append(int(process.name))
    return found


def peak_memory(process: int) -> int:
    """Return the peak resident memory in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().split()[3])


async def test_http_over_named_pipe(shell: Shell, sockets: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"you asked for {request.path}")

    server = web.AppRunner(web.Application())
    server.app.router.add_get("/{all}", answer)
    await server.setup()
    with contextlib.chdir(sockets):
        await web.UnixSite(server, "web.sock").start()
    assert (await run(shell, "get", "web")).output == b"200 you asked for /there\n"
    assert (await run(shell, "get", "WEB")).output == b"200 you asked for /there\n"
    await server.cleanup()


async def test_concurrent_connections_are_independent(shell: Shell, sockets: Path) -> None:
    async with serving(sockets / "echo", echo):
        result = await run(shell, "echo", "Écho", 100)
    assert sorted(result.output.decode().split("\n")[:-1]) == sorted(
        f"turn {n}" for n in range(100)
    )


async def test_bulk_data_is_unchanged_in_both_directions(shell: Shell, sockets: Path) -> None:
    async with serving(sockets / "echo", echo):
        results = await asyncio.gather(*(run(shell, "pump", "Écho", 32 * MIB) for _ in range(3)))
    assert [item.output for item in results] == [b"the same\n"] * 3


async def test_close_is_propagated_after_all_data(shell: Shell, sockets: Path) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read_to_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        received.set_result(await reader.read())
        writer.close()

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(b"bye")
        writer.close()

    async with serving(sockets / "echo", close):
        assert (await run(shell, "read", "Écho")).output == b"bye\nclosed\n"
    async with serving(sockets / "echo", read_to_end):
        line = "C:\\app\\node.exe C:\\app\\client.js read Écho"
        async with await shell.agent.start(Program(line)) as running:
            assert (await anext(running.output()))[1] == b"all of it\n"
        assert await asyncio.wait_for(received, TIMEOUT) == b""


async def test_missing_server_closes_pipe_and_may_appear_later(shell: Shell, sockets: Path) -> None:
    assert (await run(shell, "read", "Écho")).output.endswith(b"closed\n")
    async with serving(sockets / "echo", echo):
        assert (await run(shell, "echo", "Écho", 1)).output == b"turn 0\n"


async def test_stalled_reader_uses_bounded_memory_and_blocks_no_one(
    shell: Shell, sockets: Path
) -> None:
    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader, writer
        await asyncio.sleep(TIMEOUT)

    async with serving(sockets / "web.sock", never_read), serving(sockets / "echo", echo):
        line = f"C:\\app\\node.exe C:\\app\\client.js pump web {64 * MIB}"
        async with await shell.agent.start(Program(line)):
            await asyncio.sleep(1)
            assert (await run(shell, "pump", "Écho", 8 * MIB)).output == b"the same\n"
        [process] = relays(shell.folder)
        assert peak_memory(process) < 16 * MIB


async def test_relay_is_daemonized_and_exits_with_its_silo(base: Base, tmp_path: Path) -> None:
    layer = unpack_content(base, {"app/x.txt": "x"}, tmp_path)
    with windows_shell(base, layer, tmp_path / "short") as short:
        write_named_pipes(short.folder, [NamedPipe("one", tmp_path / "none")])
        await start_relay_when_ready(short)
        [process] = relays(short.folder)
        assert parent(process) == 1
        short.runc("kill", short.name, "KILL")
        until(lambda: not relays(short.folder))


async def test_pipes_require_running_silo(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_named_pipes(tmp_path, [NamedPipe("one", tmp_path / "none")])
    with pytest.raises(NamedPipeFailed, match="does not answer"):
        await start_pipe_relay(tmp_path)
    write_named_pipes(tmp_path, [])
    await start_pipe_relay(tmp_path)


async def test_pipes_work_while_runtime_is_stopped(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    last = {"1": 0, "2": 0}

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pipe, _, turn = (await reader.read()).decode().strip().partition(".")
        last[pipe] = int(turn)
        writer.close()

    async def wait_for_turn_after(turn: int) -> None:
        async with asyncio.timeout(TIMEOUT):
            while min(last.values()) <= turn:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async with contextlib.AsyncExitStack() as servers:
        async with node as client:
            for path in (tmp_path / "host.sock", tmp_path / "pipes/shared"):
                await servers.enter_async_context(serving(path, record))
            image = await pulled(client, home, registry)
            sandbox = await run_sandbox(client)
            mounts = [
                api.Mount(host_path=str(tmp_path / "host.sock"), container_path="\\\\.\\pipe\\one"),
                api.Mount(host_path="\\\\.\\pipe\\shared", container_path="\\\\.\\pipe\\two"),
            ]
            write = " & ".join(
                f"(echo {n}.%i>\\\\.\\pipe\\{name})" for n, name in ((1, "one"), (2, "two"))
            )
            line = f"for /l %i in (1,1,6000) do @({write} & ping -n 2 127.0.0.1 >nul)"
            command = ("cmd", "/c", line)
            app = await create_with(client, sandbox, image, command, "app", {"mounts": mounts})
            await start(client, app)
            await wait_for_turn_after(0)
        await wait_for_turn_after(max(last.values()) + 1)
        async with node as client:
            await client.call(
                "RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
            )
    until(lambda: not relays(tmp_path))


async def test_socket_mounted_on_path_is_rejected(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    async with node as client, serving(tmp_path / "host.sock", echo):
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        mounts = [api.Mount(host_path=str(tmp_path / "host.sock"), container_path="C:\\s.sock")]
        with pytest.raises(RemoteError, match=r"Mount it on .*pipe.NAME and open that"):
            await create_with(client, sandbox, image, ("cmd",), "app", {"mounts": mounts})

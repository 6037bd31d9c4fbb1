"""Two hundred instances configured in parallel over SSH, compared with one after the other.

The instances are stand-ins in a separate process: real SSH servers with real files, and a Windows
that responds from memory, to each script after a fifth of a second, which PowerShell alone takes.
So the client side is measured: connections, transfers, decisions. The references are the same work
one instance after the other, and OpenSSH's ssh, started for one script on each instance without
evaluating its output.

`python -m benchmarks.instances [INSTANCES] [AT_ONCE]`
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh
from tests.support.scripted_windows import ScriptedWindows
from tests.support.ssh_server import USER, ssh_server

from benchmarks.scale import memory_of
from winpod.instances.planner.desired import DesiredFile, DesiredService, DesiredState
from winpod.instances.ssh.converge import converge, plan
from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.login import MemoryHostKeys, SshLogin, read_key
from winpod.instances.standalone.parallel import DEFAULT_PARALLELISM, run_parallel

INSTANCES = 200
ONE_BY_ONE = 5
SCRIPT_SECONDS = 0.2
FILES, FILE_BYTES = 12, 1 << 17
PLAIN_SCRIPT = r"C:\Windows\Temp\plain.cmd"


@dataclass(frozen=True)
class Fleet:
    pid: int
    logins: Sequence[SshLogin]
    key: Path


def desired_state(folder: Path) -> DesiredState:
    files = []
    for number in range(FILES):
        source = folder / f"program-{number}.exe"
        source.write_bytes(os.urandom(FILE_BYTES))
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        files.append(DesiredFile(rf"C:\k\bin\program-{number}.exe", digest, source))
    services = [
        DesiredService(name, rf"C:\k\bin\{name}.exe --service")
        for name in ("containerd", "kubelet", "kube-proxy", "windows_exporter")
    ]
    return DesiredState(
        version="1.0.0",
        features=("Containers",),
        directories=(r"C:\k", r"C:\k\bin"),
        files=tuple(files),
        services=tuple(services),
    )


async def run_stand_ins(folder: Path, count: int) -> None:
    """Run this many Windows Servers in the other process, until its standard input is closed."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    (folder / "key").write_bytes(key.export_private_key())
    async with AsyncExitStack() as stack:
        ports = []
        for number in range(count):
            place = folder / str(number)
            machine = ScriptedWindows(place, features={"Containers": "Enabled"})

            async def reply(
                script: str, machine: ScriptedWindows = machine
            ) -> tuple[bytes, bytes, int]:
                await asyncio.sleep(SCRIPT_SECONDS)
                return await machine.reply(script)

            server = await stack.enter_async_context(ssh_server(place, reply))
            server.key = key
            server.local(PLAIN_SCRIPT).write_text("@echo off\nchcp.com 65001\n")
            ports.append(server.port)
        print(json.dumps(ports), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def stand_ins(folder: Path, count: int) -> Iterator[Fleet]:
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.instances", "--stand-ins", str(folder), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        ports = json.loads(process.stdout.readline())
        logins = [SshLogin(f"win-{port}", "127.0.0.1", USER, port) for port in ports]
        yield Fleet(process.pid, logins, folder / "key")
    finally:
        process.stdin.close()
        process.wait(30)


async def configure(
    fleet: Fleet, logins: Sequence[SshLogin], desired: DesiredState, at_once: int
) -> float:
    key, known = read_key(fleet.key.read_bytes()), MemoryHostKeys()

    async def one(login: SshLogin) -> None:
        async with SshHost(login, key, known) as host:
            await converge(host, desired, lambda _: None)
            assert await plan(host, desired) == ()

    began = time.perf_counter()
    outcomes = await run_parallel(logins, lambda login: login.name, one, at_once)
    if failed := [outcome for outcome in outcomes if outcome.failure]:
        sys.exit(f"{len(failed)} failed, the first: {failed[0].failure}")
    return time.perf_counter() - began


async def read_all(fleet: Fleet, desired: DesiredState, at_once: int) -> float:
    key, known = read_key(fleet.key.read_bytes()), MemoryHostKeys()

    async def one(login: SshLogin) -> None:
        async with SshHost(login, key, known) as host:
            await plan(host, desired)

    began = time.perf_counter()
    await run_parallel(fleet.logins, lambda login: login.name, one, at_once)
    return time.perf_counter() - began


def plain_ssh(fleet: Fleet, at_once: int) -> float:
    """Run one ssh for each instance, this many in parallel, with xargs."""
    options = (
        "-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    ssh = ["ssh", *options.split(), "-i", str(fleet.key), "-p", "{}", f"{USER}@127.0.0.1"]
    ports = "\n".join(str(login.port) for login in fleet.logins)
    command = ["xargs", "-P", str(at_once), "-I", "{}", *ssh, f"cmd.exe /d /c {PLAIN_SCRIPT}"]
    fleet.key.chmod(0o600)
    began = time.perf_counter()
    subprocess.run(command, input=ports, text=True, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main(count: int = INSTANCES, at_once: int = DEFAULT_PARALLELISM) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        desired = desired_state(folder)
        with stand_ins(folder / "hosts", count) as fleet:
            before = memory_of(os.getpid())
            few = fleet.logins[:ONE_BY_ONE]
            one_by_one = asyncio.run(configure(fleet, few, desired, 1)) * count / len(few)
            rest = fleet.logins[ONE_BY_ONE:]
            taken = asyncio.run(configure(fleet, rest, desired, at_once))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            reading = asyncio.run(read_all(fleet, desired, at_once))
            plain = plain_ssh(fleet, at_once)
    megabytes = len(rest) * FILES * FILE_BYTES / 1e6
    print(f"{len(rest)} instances, {at_once} in parallel, {FILES} files and 4 services each")
    print(f"configured and verified: {taken:.0f} s, {megabytes / taken:.0f} MB/s")
    print(f"one after the other, extrapolated from {len(few)}: {one_by_one:.0f} s")
    print(f"ratio: {taken / one_by_one:.3f}")
    print(f"memory: {before:.0f} MB before the run, {peak:.0f} MB peak")
    print(f"{count} configured instances read: {reading:.1f} s")
    print(f"one script on each with ssh: {plain:.1f} s; ratio {reading / plain:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stand-ins"]:
        asyncio.run(run_stand_ins(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        main(*map(int, sys.argv[1:]))

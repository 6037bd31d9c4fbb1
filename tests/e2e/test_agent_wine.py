"""Tests of wagent.exe in the real Wine base, in runc with limits."""

import asyncio
import contextlib
import json
import os
import random
import signal
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.conmon_supervision import Conmon, until
from tests.support.e2e import windows_programs
from tests.support.e2e.windows_container import unpack_content
from tests.support.e2e.windows_silo import Shell, windows_shell
from tests.support.silos import change_registry

from winpod.compute.agent.client import (
    Program,
    ProgramResult,
    RegistryChange,
    RunningProgram,
    Stream,
    TerminalSize,
    pipe_request,
)
from winpod.compute.agent.protocol import Signal
from winpod.compute.errors import AgentUnavailable, WindowsError
from winpod.compute.wine.backend import reopen_log
from winpod.images.base.builder import Base

MIB = 1 << 20
TIMEOUT = 300.0
ACCESS_VIOLATION = 0xC0000005
INTERRUPTED = 0xC000013A
NODE_SIGNALS = """
for (const name of ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGBREAK'])
  process.on(name, () => {
    console.log('heard', name);
    setTimeout(() => { console.log('bye'); process.exit(9); }, 200);
  });
setInterval(() => {}, 1000);
console.log('waiting');
"""


@pytest.fixture(scope="module")
def layer(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    content: dict[str, Path | str] = {
        "app/node.exe": windows_programs.node(),
        "app/signals.exe": windows_programs.go_program(name="signals"),
        "app/launched.exe": windows_programs.c_program("launched"),
        "app/signals.js": NODE_SIGNALS,
        "app/not a program.exe": "text",
    }
    return unpack_content(base, content, tmp_path_factory.mktemp("layer"))


@pytest.fixture(scope="module")
def shell(base: Base, layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with windows_shell(base, layer, tmp_path_factory.mktemp("shells") / "one") as running:
        yield running


@pytest.fixture(autouse=True)
async def no_leftover_programs(shell: Shell) -> AsyncIterator[None]:
    """Check that a test leaves no program of the layer running."""
    await asyncio.wait_for(shell.agent.ping(), TIMEOUT)
    yield
    if shell.process.poll() is None:
        assert await wait_exited(shell, "launched.exe", "node.exe", "signals.exe", "conhost.exe")


async def wait_exited(shell: Shell, *names: str, seconds: float = TIMEOUT) -> bool:
    """Wait until no program with these names runs; return whether that happened in time."""
    end = time.monotonic() + seconds
    while any(process.name.lower() in names for process in await shell.agent.processes()):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


async def run(
    shell: Shell, line: str, *, stdin: bytes | None = None, **more: object
) -> ProgramResult:
    program = Program(line, stdin=stdin is not None, **more)  # type: ignore[arg-type]
    return await asyncio.wait_for(shell.agent.run(program, stdin=stdin), TIMEOUT)


async def start(
    shell: Shell, line: str, *, kill_descendants: bool = True
) -> tuple[RunningProgram, "OutputReader"]:
    """Start a program and wait for its first line of output."""
    running = await shell.agent.start(Program(line, kill_descendants=kill_descendants))
    output = OutputReader(running)
    await output.wait_for(b"\n")
    return running, output


class OutputReader:
    """Collects the output of a running program."""

    def __init__(self, running: RunningProgram) -> None:
        self.data = b""
        self._output = running.output()

    async def wait_for(self, text: bytes) -> None:
        async with asyncio.timeout(TIMEOUT):
            while text not in self.data:
                self.data += (await anext(self._output))[1]

    async def remaining_lines(self) -> list[str]:
        async with asyncio.timeout(TIMEOUT):
            async for _, data in self._output:
                self.data += data
        return self.data.decode().split("\n")[:-1]


async def test_stdout_stderr_and_exit_code_are_returned_separately(shell: Shell) -> None:
    finished = await run(shell, "cmd /c echo out& echo err 1>&2& exit 1060")
    assert finished == ProgramResult(1060, b"out\r\n", b"err \r\n")


async def test_crash_returns_windows_exit_code(shell: Shell) -> None:
    assert (await run(shell, "C:\\app\\launched.exe crash")).code == ACCESS_VIOLATION


async def test_node_writes_to_pipes_and_reports_its_build(shell: Shell) -> None:
    script = "console.error('e'); console.log(os.release()); process.exitCode = 3"
    finished = await run(shell, f'C:\\APP\\NODE.EXE -e "{script}"')
    assert finished == ProgramResult(3, b"10.0.20348\n", b"e\n")


@pytest.mark.parametrize(
    "line",
    [
        'C:\\app\\launched.exe line "a b" c\\"d "" \\\\host\\share\\',
        '"C:\\app\\launched.exe"   line   spaces  stay ',
        "C:\\app\\launched.exe line %PATH% ^ & | > * ?",
    ],
)
async def test_command_line_is_passed_unchanged(shell: Shell, line: str) -> None:
    assert (await run(shell, line)).output == f"{line}\r\n".encode()


async def test_quotes_reach_builtin_program(shell: Shell) -> None:
    key = "HKLM\\Software\\Microsoft\\Windows NT\\CurrentVersion"
    finished = await run(shell, f'reg query "{key}" /v CurrentBuild')
    assert (finished.code, b"20348" in finished.output) == (0, True)


async def test_environment_overrides_windows_defaults(shell: Shell) -> None:
    given = {"windir": "C:\\other", "Given": "1 2", "NUMBER_OF_PROCESSORS": "3", "Ünïcode": "ß"}
    finished = await run(
        shell, 'C:\\app\\node.exe -p "JSON.stringify(process.env)"', environment=given
    )
    found = {name.upper(): value for name, value in json.loads(finished.output).items()}
    assert {name: found[name.upper()] for name in given} == given
    assert found["SYSTEMROOT"].lower() == "c:\\windows"
    assert found["COMSPEC"].lower() == "c:\\windows\\system32\\cmd.exe"
    assert "LANG" not in found


async def test_program_is_found_in_its_path_and_directory(shell: Shell) -> None:
    by_path = await run(
        shell, "launched line", environment={"Path": "C:\\app;C:\\windows\\system32"}
    )
    assert by_path.output == b"launched line\r\n"
    assert (await run(shell, "launched line", directory="C:\\app")).code == 0
    where = await run(shell, "cmd /c cd", directory="C:\\app")
    assert where.output == b"C:\\app\r\n"


@pytest.mark.parametrize(
    ("line", "directory", "number", "message"),
    [
        ("nothing.exe", "C:\\", 2, "The system cannot find the file specified."),
        ("C:\\nowhere\\x.exe", "C:\\", 2, "The system cannot find the file specified."),
        ("cmd", "C:\\nowhere", 267, "The directory name is invalid."),
        ('"C:\\app\\not a program.exe"', "C:\\", 193, "%1 is not a valid Win32 application."),
    ],
)
async def test_start_failure_has_windows_error(
    shell: Shell, line: str, directory: str, number: int, message: str
) -> None:
    with pytest.raises(WindowsError) as raised:
        await shell.agent.start(Program(line, directory))
    assert (raised.value.number, raised.value.message) == (number, message)


async def test_stdin_is_delivered_and_closed(shell: Shell) -> None:
    finished = await run(shell, "sort", stdin=b"b\r\na\r\n")
    assert finished.output == b"a\r\nb\r\n"
    count = "let n=0; process.stdin.on('data', d => n += d.length).on('end', () => console.log(n))"
    finished = await run(shell, f'C:\\app\\node.exe -e "{count}"', stdin=b"x" * MIB)
    assert finished.output == f"{MIB}\n".encode()


async def test_program_without_stdin_reads_eof(shell: Shell) -> None:
    assert (await run(shell, "sort")).code == 0


@pytest.mark.parametrize(
    ("line", "code", "lines"),
    [
        ("C:\\app\\signals.exe", 7, ["waiting", "heard terminated", "bye"]),
        ("C:\\app\\node.exe C:\\app\\signals.js", 9, ["waiting", "heard SIGHUP", "bye"]),
        ("cmd /c C:\\app\\signals.exe", 7, ["waiting", "heard terminated", "bye"]),
        ("cmd /s /c node C:\\app\\signals.js", 9, ["waiting", "heard SIGHUP", "bye"]),
    ],
    ids=["go", "node", "go in cmd", "node in cmd"],
)
async def test_shutdown_event_is_delivered_and_handled(
    shell: Shell, line: str, code: int, lines: list[str]
) -> None:
    program = Program(
        line, environment={"PATH": "C:\\app;C:\\windows\\system32"}, kill_descendants=True
    )
    async with await shell.agent.start(program) as running:
        output = OutputReader(running)
        await output.wait_for(b"waiting")
        await running.signal(Signal.SHUTDOWN)
        assert await output.remaining_lines() == lines
        assert await running.wait() == code


@pytest.mark.parametrize(
    ("line", "sent", "expected"),
    [
        ("C:\\app\\signals.exe", Signal.INTERRUPT, "heard interrupt"),
        ("C:\\app\\signals.exe", Signal.BREAK, "heard interrupt"),
        ("C:\\app\\node.exe C:\\app\\signals.js", Signal.INTERRUPT, "heard SIGINT"),
        ("C:\\app\\node.exe C:\\app\\signals.js", Signal.BREAK, "heard SIGBREAK"),
    ],
)
async def test_ctrl_c_and_ctrl_break_are_delivered(
    shell: Shell, line: str, sent: Signal, expected: str
) -> None:
    running, output = await start(shell, line)
    async with running:
        await running.signal(sent)
        assert (await output.remaining_lines())[1:] == [expected, "bye"]


@pytest.mark.parametrize("sent", [item for item in Signal if item is not Signal.KILL])
async def test_program_without_handler_is_terminated(shell: Shell, sent: Signal) -> None:
    running, output = await start(shell, "C:\\app\\launched.exe sleep")
    async with running:
        await running.signal(sent)
        assert await output.remaining_lines() == ["waiting\r"]
        assert await running.wait() == INTERRUPTED


async def test_program_is_terminated_after_handler_returns(shell: Shell) -> None:
    running, output = await start(shell, "C:\\app\\launched.exe stubborn")
    async with running:
        await running.signal(Signal.SHUTDOWN)
        assert await output.remaining_lines() == ["waiting\r", "event 6\r"]
        assert await running.wait() == INTERRUPTED


async def test_shutdown_event_reaches_32bit_program(base_32bit: Base, tmp_path: Path) -> None:
    program = windows_programs.c_program("launched", architecture="x86")
    layer = unpack_content(base_32bit, {"app/launched.exe": program}, tmp_path)
    with windows_shell(base_32bit, layer, tmp_path / "narrow") as shell_32bit:
        await asyncio.wait_for(shell_32bit.agent.ping(), TIMEOUT)
        for mode, events in (("sleep", []), ("stubborn", ["event 6\r"])):
            running, output = await start(shell_32bit, f"C:\\app\\launched.exe {mode}")
            async with running:
                await running.signal(Signal.SHUTDOWN)
                assert await output.remaining_lines() == ["waiting\r", *events]
                assert await running.wait() == INTERRUPTED


async def test_kill_terminates_process_tree(shell: Shell) -> None:
    running, output = await start(shell, "C:\\app\\launched.exe family 3", kill_descendants=False)
    async with running:
        await output.wait_for(b"generation 1")
        assert not await wait_exited(shell, "launched.exe", seconds=0)
        await running.signal(Signal.KILL)
        await output.remaining_lines()
        assert await running.wait() == INTERRUPTED
        assert await wait_exited(shell, "launched.exe")


async def test_descendants_end_with_container_but_survive_exec(shell: Shell) -> None:
    line = "cmd /c start /b C:\\app\\launched.exe sleep"
    async with await shell.agent.start(Program(line, kill_descendants=True)) as running:
        assert await asyncio.wait_for(running.wait(), TIMEOUT) == 0
        assert await wait_exited(shell, "launched.exe")
    async with await shell.agent.start(Program(line)) as running:
        assert await asyncio.wait_for(running.wait(), TIMEOUT) == 0
    [leftover] = [
        process for process in await shell.agent.processes() if process.name == "launched.exe"
    ]
    assert (await run(shell, f"taskkill /f /pid {leftover.pid}")).code == 0


async def test_programs_are_killed_on_client_disconnect(shell: Shell) -> None:
    running, output = await start(shell, "C:\\app\\launched.exe family 3")
    async with running:
        await output.wait_for(b"generation 1")
    assert await wait_exited(shell, "launched.exe")
    async with await shell.agent.start(Program("C:\\app\\launched.exe flood 1000")):
        await asyncio.sleep(0.3)
    assert await wait_exited(shell, "launched.exe")


async def test_terminal_is_resizable_console(shell: Shell) -> None:
    program = Program("C:\\app\\launched.exe size", terminal=TerminalSize(90, 30), stdin=True)
    async with await shell.agent.start(program) as running:
        output = OutputReader(running)
        await output.wait_for(b"console 1 1")
        await output.wait_for(b"size 90 30")
        await running.resize(TerminalSize(70, 20))
        await output.wait_for(b"size 70 20")
        await running.resize(TerminalSize(132, 43))
        await output.wait_for(b"size 132 43")
        await output.remaining_lines()
        assert await running.wait() == 42


async def test_terminal_accepts_input(shell: Shell) -> None:
    program = Program("cmd", terminal=TerminalSize(80, 25), stdin=True, kill_descendants=True)
    async with await shell.agent.start(program) as running:
        output = OutputReader(running)
        await output.wait_for(b"C:\\>")
        await running.write(b"echo ty^ped\r")
        await output.wait_for(b"typed")
        await running.write(b"exit 77\r")
        await output.remaining_lines()
        assert await running.wait() == 77


async def test_ctrl_c_in_terminal_interrupts_program(shell: Shell) -> None:
    program = Program("C:\\app\\signals.exe", terminal=TerminalSize(80, 25), stdin=True)
    async with await shell.agent.start(program) as running:
        output = OutputReader(running)
        await output.wait_for(b"waiting")
        await running.write(b"\x03")
        await output.wait_for(b"heard interrupt")
        await output.remaining_lines()
        assert await running.wait() == 7


async def test_twenty_programs_run_concurrently(shell: Shell) -> None:
    results = await asyncio.gather(*(run(shell, f"cmd /c echo {number}") for number in range(20)))
    assert [result.output for result in results] == [
        f"{number}\r\n".encode() for number in range(20)
    ]


async def test_slow_reader_of_200_mib_uses_bounded_memory(shell: Shell) -> None:
    async with await shell.agent.start(Program("C:\\app\\launched.exe flood 200")) as running:
        output, total, pieces = running.output(), 0, 0
        async for stream, data in output:
            total, pieces = total + len(data), pieces + 1
            if stream is Stream.ERRORS:
                assert data == b"flooded\r\n"
            if pieces == 100:
                await asyncio.sleep(1)
                meanwhile = await run(shell, "cmd /c echo meanwhile")
                assert meanwhile.output == b"meanwhile\r\n"
            elif pieces % 50 == 0:
                await asyncio.sleep(0.005)
        assert total == 200 * MIB + len(b"flooded\r\n")
    assert peak_memory(shell, "winit") < 4 * MIB
    assert peak_memory(shell, "wagent.exe") < 40 * MIB


def peak_memory(shell: Shell, name: str) -> int:
    """Return the peak resident memory of a process."""
    for pid in shell.pids():
        with contextlib.suppress(OSError):  # the process has just exited
            status = Path(f"/proc/{pid}/status").read_text()
            if status.startswith(f"Name:\t{name}\n"):
                return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    raise AssertionError(f"{name} is not running")


async def test_registry_changes_apply_to_new_programs(shell: Shell) -> None:
    key = "Software\\Microsoft\\Windows NT\\CurrentVersion"
    build = "17763\0".encode("utf-16-le")
    old = "20348\0".encode("utf-16-le")
    await change_registry(shell.agent, [RegistryChange(key, "CurrentBuildNumber", build)])
    version = (await run(shell, "cmd /c ver")).output
    await change_registry(shell.agent, [RegistryChange(key, "CurrentBuildNumber", old)])
    assert b"10.0.17763" in version
    own = "Software\\winpod test"
    await change_registry(
        shell.agent,
        [
            RegistryChange(own, "value", b"\1\0\0\0", type=4),
            RegistryChange(own, "other", b"", type=3),
            RegistryChange(own, "other"),
            RegistryChange(own, "never was"),
        ],
    )
    listed = (await run(shell, f'reg query "HKLM\\{own}"')).output
    assert b"REG_DWORD" in listed
    assert b"other" not in listed
    await change_registry(shell.agent, [RegistryChange(own), RegistryChange("Software\\never was")])
    assert (await run(shell, f'reg query "HKLM\\{own}"')).code == 1


async def test_process_list_has_resource_usage(shell: Shell) -> None:
    running, _ = await start(shell, "C:\\app\\launched.exe sleep")
    async with running:
        found = {process.pid: process for process in await shell.agent.processes()}
        assert found[running.pid].name == "launched.exe"
        assert found[running.pid].working_set > MIB
        assert any(process.name == "wagent.exe" for process in found.values())
        assert sum(process.user_seconds + process.kernel_seconds for process in found.values()) > 0


def has_read_fonts(shell: Shell) -> bool:
    """Fontconfig writes a cache when it reads fonts."""
    return Path(f"/proc/{shell.pids()[0]}/root/root/.cache/fontconfig").exists()


async def test_boot_starts_one_winedevice_and_reads_no_fonts(shell: Shell) -> None:
    names = [process.name for process in await shell.agent.processes()]
    assert names.count("winedevice.exe") == 1
    assert not has_read_fonts(shell)


async def test_agent_survives_malformed_frames(shell: Shell) -> None:
    rng = random.Random(4)
    requests = {
        1: Program("cmd /c exit", environment={"A": "b"}).encode(),
        7: RegistryChange("Software\\broken", "value", b"1\0").encode(),
        9: pipe_request("broken"),
    }
    for number in range(400):
        if number % 100 == 0:  # keep the listen backlog from overflowing
            await asyncio.wait_for(shell.agent.ping(), TIMEOUT)
        kind = rng.randrange(1, 32)
        payload = bytearray(requests.get(kind, rng.randbytes(rng.randrange(12))))
        for _ in range(rng.randrange(3)):
            if payload:
                payload[rng.randrange(len(payload))] = rng.choice((0, 1, 127, 255))
        truncated = bytes(payload[: rng.randrange(len(payload) + 1)])
        _, writer = await asyncio.open_unix_connection(shell.agent.path)
        if rng.random() < 0.3:
            pipe = pipe_request("waits")
            writer.write(struct.pack("<IB", len(pipe), 9) + pipe)
        writer.write(struct.pack("<IB", len(truncated), kind) + truncated)
        await writer.drain()
        writer.close()
    await asyncio.wait_for(shell.agent.ping(), TIMEOUT)
    assert (await run(shell, "cmd /c echo well")).output == b"well\r\n"


async def test_exceeding_send_window_is_an_error(shell: Shell) -> None:
    async with await shell.agent.start(
        Program("C:\\app\\launched.exe sleep", stdin=True)
    ) as running:
        running._window = 1 << 30
        with pytest.raises(WindowsError, match="parameter"):
            await asyncio.gather(running.write(b"x" * (1 << 20)), running.wait())


async def test_agent_socket_is_unreachable_from_container(shell: Shell) -> None:
    assert str(shell.folder / "run") not in shell.mounts()
    script = "echo /run/winpod/*; : </proc/1/fd/3"
    listing = shell.runc("exec", shell.name, "/bin/sh", "-c", script)
    assert listing.stdout == "/run/winpod/wagent.exe /run/winpod/winit\n"
    assert "Permission denied" in listing.stderr


async def test_program_in_warm_silo_starts_faster_than_cold(
    base: Base, layer: Path, tmp_path: Path
) -> None:
    started_at = time.monotonic()
    with windows_shell(base, layer, tmp_path / "cold") as fresh:
        await asyncio.wait_for(fresh.agent.ping(), TIMEOUT)
        ready = time.monotonic() - started_at
        assert (await run(fresh, "cmd /c echo 1")).output == b"1\r\n"
        cold = time.monotonic() - started_at
        warm = []
        for _ in range(5):
            started_at = time.monotonic()
            await run(fresh, "C:\\app\\launched.exe line")
            warm.append(time.monotonic() - started_at)
    print(f"ready {ready:.3f} s, first program {cold:.3f} s, next {min(warm):.3f} s")
    assert min(warm) < cold / 2


async def test_conmon_supervises_windows_program(shell: Shell) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program("C:\\app\\signals.exe", kill_descendants=True))
    until(lambda: conmon.log.exists() and "waiting" in conmon.log.read_text())
    conmon.log.rename(conmon.log.with_suffix(".old"))
    await reopen_log(str(conmon.log), int(str(conmon.answer["data"])))
    os.kill(int(str(conmon.answer["data"])), signal.SIGTERM)
    until(conmon.exit_file.exists)
    assert conmon.lines() == [("stdout", "F", "heard terminated"), ("stdout", "F", "bye")]
    assert (shell.folder / "exit32").read_text() == "7\n"


async def test_conmon_reports_start_failure(shell: Shell) -> None:
    conmon = Conmon(shell.folder, "none")
    conmon.start(Program("nothing.exe", kill_descendants=True))
    message = "The system cannot find the file specified.\n"
    assert conmon.answer == {"data": -1, "message": message}


async def test_program_is_killed_with_wproxy(shell: Shell) -> None:
    conmon = Conmon(shell.folder, "killed")
    (shell.folder / "exit32").unlink(missing_ok=True)
    conmon.start(Program("C:\\app\\launched.exe sleep", kill_descendants=True))
    os.kill(int(str(conmon.answer["data"])), signal.SIGKILL)
    until(conmon.exit_file.exists)
    assert conmon.exit_file.read_text() == "137"
    assert await wait_exited(shell, "launched.exe")


async def test_dead_silo_is_reported(base: Base, layer: Path, tmp_path: Path) -> None:
    with windows_shell(base, layer, tmp_path / "dying") as dying:
        conmon = Conmon(dying.folder)
        await asyncio.wait_for(dying.agent.ping(), TIMEOUT)
        conmon.start(Program("C:\\app\\launched.exe sleep", kill_descendants=True))
        running = await dying.agent.start(Program("C:\\app\\launched.exe sleep"))
        dying.runc("kill", dying.name, "KILL")
        with pytest.raises(AgentUnavailable):
            await asyncio.wait_for(running.wait(), TIMEOUT)
        until(conmon.exit_file.exists)
        assert conmon.exit_file.read_text() == "137"
        assert not (dying.folder / "exit32").exists()

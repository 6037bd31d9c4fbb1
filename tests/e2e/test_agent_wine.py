"""wagent.exe in the real Wine base, in runc with limits: what programs get, and how they end."""

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
PATIENCE = 300.0
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
async def nothing_is_left(shell: Shell) -> AsyncIterator[None]:
    """Programs of the layer that run after a test are ones that it lost."""
    await asyncio.wait_for(shell.agent.ping(), PATIENCE)
    yield
    if shell.process.poll() is None:
        assert await ended(shell, "launched.exe", "node.exe", "signals.exe", "conhost.exe")


async def ended(shell: Shell, *names: str, seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while any(one.name.lower() in names for one in await shell.agent.processes()):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


async def run(
    shell: Shell, line: str, *, stdin: bytes | None = None, **more: object
) -> ProgramResult:
    program = Program(line, stdin=stdin is not None, **more)  # type: ignore[arg-type]
    return await asyncio.wait_for(shell.agent.run(program, stdin=stdin), PATIENCE)


async def start(shell: Shell, line: str, *, whole: bool = True) -> tuple[RunningProgram, "Heard"]:
    """A program that has said its first word."""
    running = await shell.agent.start(Program(line, kill_descendants=whole))
    heard = Heard(running)
    await heard.until(b"\n")
    return running, heard


class Heard:
    """What a program writes, while it is being told things."""

    def __init__(self, running: RunningProgram) -> None:
        self.data = b""
        self._output = running.output()

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.data:
                self.data += (await anext(self._output))[1]

    async def rest(self) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            async for _, data in self._output:
                self.data += data
        return self.data.decode().split("\n")[:-1]


async def test_output_errors_and_exit_code_come_apart_and_whole(shell: Shell) -> None:
    finished = await run(shell, "cmd /c echo out& echo err 1>&2& exit 1060")
    assert finished == ProgramResult(1060, b"out\r\n", b"err \r\n")


async def test_a_crash_has_windows_exit_code(shell: Shell) -> None:
    assert (await run(shell, "C:\\app\\launched.exe crash")).code == ACCESS_VIOLATION


async def test_node_prints_to_pipes_and_knows_its_build(shell: Shell) -> None:
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
async def test_the_command_line_is_handed_over_raw(shell: Shell, line: str) -> None:
    assert (await run(shell, line)).output == f"{line}\r\n".encode()


async def test_quotes_reach_a_program_of_windows(shell: Shell) -> None:
    key = "HKLM\\Software\\Microsoft\\Windows NT\\CurrentVersion"
    finished = await run(shell, f'reg query "{key}" /v CurrentBuild')
    assert (finished.code, b"20348" in finished.output) == (0, True)


async def test_the_environment_is_windows_own_and_what_was_given_over_it(shell: Shell) -> None:
    given = {"windir": "C:\\other", "Given": "1 2", "NUMBER_OF_PROCESSORS": "3", "Ünïcode": "ß"}
    finished = await run(
        shell, 'C:\\app\\node.exe -p "JSON.stringify(process.env)"', environment=given
    )
    found = {name.upper(): value for name, value in json.loads(finished.output).items()}
    assert {name: found[name.upper()] for name in given} == given
    assert found["SYSTEMROOT"].lower() == "c:\\windows"
    assert found["COMSPEC"].lower() == "c:\\windows\\system32\\cmd.exe"
    assert "LANG" not in found


async def test_a_program_is_found_by_its_own_path_and_directory(shell: Shell) -> None:
    by_path = await run(
        shell, "launched line", environment={"Path": "C:\\app;C:\\windows\\system32"}
    )
    assert by_path.output == b"launched line\r\n"
    assert (await run(shell, "launched line", directory="C:\\app")).code == 0
    where = await run(shell, "cmd /c cd", directory="C:\\app")
    assert where.output == b"C:\\app\r\n"


@pytest.mark.parametrize(
    ("line", "directory", "number", "sentence"),
    [
        ("nothing.exe", "C:\\", 2, "The system cannot find the file specified."),
        ("C:\\nowhere\\x.exe", "C:\\", 2, "The system cannot find the file specified."),
        ("cmd", "C:\\nowhere", 267, "The directory name is invalid."),
        ('"C:\\app\\not a program.exe"', "C:\\", 193, "%1 is not a valid Win32 application."),
    ],
)
async def test_what_cannot_start_is_told_in_windows_words(
    shell: Shell, line: str, directory: str, number: int, sentence: str
) -> None:
    with pytest.raises(WindowsError) as raised:
        await shell.agent.start(Program(line, directory))
    assert (raised.value.number, raised.value.message) == (number, sentence)


async def test_input_arrives_and_ends(shell: Shell) -> None:
    finished = await run(shell, "sort", stdin=b"b\r\na\r\n")
    assert finished.output == b"a\r\nb\r\n"
    count = "let n=0; process.stdin.on('data', d => n += d.length).on('end', () => console.log(n))"
    finished = await run(shell, f'C:\\app\\node.exe -e "{count}"', stdin=b"x" * MIB)
    assert finished.output == f"{MIB}\n".encode()


async def test_without_input_a_program_reads_its_end(shell: Shell) -> None:
    assert (await run(shell, "sort")).code == 0


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("C:\\app\\signals.exe", 7, ["waiting", "heard terminated", "bye"]),
        ("C:\\app\\node.exe C:\\app\\signals.js", 9, ["waiting", "heard SIGHUP", "bye"]),
        ("cmd /c C:\\app\\signals.exe", 7, ["waiting", "heard terminated", "bye"]),
        ("cmd /s /c node C:\\app\\signals.js", 9, ["waiting", "heard SIGHUP", "bye"]),
    ],
    ids=["go", "node", "go in cmd", "node in cmd"],
)
async def test_a_stop_is_heard_and_may_be_answered(
    shell: Shell, line: str, code: int, words: list[str]
) -> None:
    program = Program(
        line, environment={"PATH": "C:\\app;C:\\windows\\system32"}, kill_descendants=True
    )
    async with await shell.agent.start(program) as running:
        heard = Heard(running)
        await heard.until(b"waiting")
        await running.signal(Signal.SHUTDOWN)
        assert await heard.rest() == words
        assert await running.wait() == code


@pytest.mark.parametrize(
    ("line", "sent", "word"),
    [
        ("C:\\app\\signals.exe", Signal.INTERRUPT, "heard interrupt"),
        ("C:\\app\\signals.exe", Signal.BREAK, "heard interrupt"),
        ("C:\\app\\node.exe C:\\app\\signals.js", Signal.INTERRUPT, "heard SIGINT"),
        ("C:\\app\\node.exe C:\\app\\signals.js", Signal.BREAK, "heard SIGBREAK"),
    ],
)
async def test_ctrl_c_and_ctrl_break_are_heard(
    shell: Shell, line: str, sent: Signal, word: str
) -> None:
    running, heard = await start(shell, line)
    async with running:
        await running.signal(sent)
        assert (await heard.rest())[1:] == [word, "bye"]


@pytest.mark.parametrize("sent", [one for one in Signal if one is not Signal.KILL])
async def test_a_program_that_hears_nothing_ends_as_windows_ends_it(
    shell: Shell, sent: Signal
) -> None:
    running, heard = await start(shell, "C:\\app\\launched.exe sleep")
    async with running:
        await running.signal(sent)
        assert await heard.rest() == ["waiting\r"]
        assert await running.wait() == INTERRUPTED


async def test_a_program_whose_handler_returned_is_ended_as_windows_does(shell: Shell) -> None:
    running, heard = await start(shell, "C:\\app\\launched.exe stubborn")
    async with running:
        await running.signal(Signal.SHUTDOWN)
        assert await heard.rest() == ["waiting\r", "event 6\r"]
        assert await running.wait() == INTERRUPTED


async def test_a_stop_is_the_same_for_a_32bit_program(base_32bit: Base, tmp_path: Path) -> None:
    program = windows_programs.c_program("launched", architecture="x86")
    layer = unpack_content(base_32bit, {"app/launched.exe": program}, tmp_path)
    with windows_shell(base_32bit, layer, tmp_path / "narrow") as narrow:
        await asyncio.wait_for(narrow.agent.ping(), PATIENCE)
        for word, said in (("sleep", []), ("stubborn", ["event 6\r"])):
            running, heard = await start(narrow, f"C:\\app\\launched.exe {word}")
            async with running:
                await running.signal(Signal.SHUTDOWN)
                assert await heard.rest() == ["waiting\r", *said]
                assert await running.wait() == INTERRUPTED


async def test_a_kill_ends_the_whole_tree(shell: Shell) -> None:
    running, heard = await start(shell, "C:\\app\\launched.exe family 3", whole=False)
    async with running:
        await heard.until(b"generation 1")
        assert not await ended(shell, "launched.exe", seconds=0)
        await running.signal(Signal.KILL)
        await heard.rest()
        assert await running.wait() == INTERRUPTED
        assert await ended(shell, "launched.exe")


async def test_what_a_container_started_ends_with_it_and_an_exec_leaves_it(shell: Shell) -> None:
    line = "cmd /c start /b C:\\app\\launched.exe sleep"
    async with await shell.agent.start(Program(line, kill_descendants=True)) as running:
        assert await asyncio.wait_for(running.wait(), PATIENCE) == 0
        assert await ended(shell, "launched.exe")
    async with await shell.agent.start(Program(line)) as running:
        assert await asyncio.wait_for(running.wait(), PATIENCE) == 0
    [left] = [one for one in await shell.agent.processes() if one.name == "launched.exe"]
    assert (await run(shell, f"taskkill /f /pid {left.pid}")).code == 0


async def test_a_client_that_vanishes_takes_its_programs_along(shell: Shell) -> None:
    running, heard = await start(shell, "C:\\app\\launched.exe family 3")
    async with running:
        await heard.until(b"generation 1")
    assert await ended(shell, "launched.exe")
    async with await shell.agent.start(Program("C:\\app\\launched.exe flood 1000")):
        await asyncio.sleep(0.3)
    assert await ended(shell, "launched.exe")


async def test_a_terminal_is_a_console_that_can_be_resized(shell: Shell) -> None:
    program = Program("C:\\app\\launched.exe size", terminal=TerminalSize(90, 30), stdin=True)
    async with await shell.agent.start(program) as running:
        heard = Heard(running)
        await heard.until(b"console 1 1")
        await heard.until(b"size 90 30")
        await running.resize(TerminalSize(70, 20))
        await heard.until(b"size 70 20")
        await running.resize(TerminalSize(132, 43))
        await heard.until(b"size 132 43")
        await heard.rest()
        assert await running.wait() == 42


async def test_a_terminal_takes_what_is_typed(shell: Shell) -> None:
    program = Program("cmd", terminal=TerminalSize(80, 25), stdin=True, kill_descendants=True)
    async with await shell.agent.start(program) as running:
        heard = Heard(running)
        await heard.until(b"C:\\>")
        await running.write(b"echo ty^ped\r")
        await heard.until(b"typed")
        await running.write(b"exit 77\r")
        await heard.rest()
        assert await running.wait() == 77


async def test_ctrl_c_is_typed_into_a_terminal(shell: Shell) -> None:
    program = Program("C:\\app\\signals.exe", terminal=TerminalSize(80, 25), stdin=True)
    async with await shell.agent.start(program) as running:
        heard = Heard(running)
        await heard.until(b"waiting")
        await running.write(b"\x03")
        await heard.until(b"heard interrupt")
        await heard.rest()
        assert await running.wait() == 7


async def test_twenty_programs_run_at_once(shell: Shell) -> None:
    done = await asyncio.gather(*(run(shell, f"cmd /c echo {turn}") for turn in range(20)))
    assert [one.output for one in done] == [f"{turn}\r\n".encode() for turn in range(20)]


async def test_200_megabytes_pass_a_slow_reader_in_bounded_memory(shell: Shell) -> None:
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
    assert memory(shell, "winit") < 4 * MIB
    assert memory(shell, "wagent.exe") < 40 * MIB


def memory(shell: Shell, name: str) -> int:
    """The most that a process has held."""
    for pid in shell.pids():
        with contextlib.suppress(OSError):  # one that has just ended
            status = Path(f"/proc/{pid}/status").read_text()
            if status.startswith(f"Name:\t{name}\n"):
                return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    raise AssertionError(f"{name} does not run")


async def test_the_registry_changes_for_programs_started_afterwards(shell: Shell) -> None:
    key = "Software\\Microsoft\\Windows NT\\CurrentVersion"
    build = "17763\0".encode("utf-16-le")
    old = "20348\0".encode("utf-16-le")
    await change_registry(shell.agent, [RegistryChange(key, "CurrentBuildNumber", build)])
    told = (await run(shell, "cmd /c ver")).output
    await change_registry(shell.agent, [RegistryChange(key, "CurrentBuildNumber", old)])
    assert b"10.0.17763" in told
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


async def test_processes_are_listed_with_their_use(shell: Shell) -> None:
    running, _ = await start(shell, "C:\\app\\launched.exe sleep")
    async with running:
        found = {one.pid: one for one in await shell.agent.processes()}
        assert found[running.pid].name == "launched.exe"
        assert found[running.pid].working_set > MIB
        assert any(one.name == "wagent.exe" for one in found.values())
        assert sum(one.user_seconds + one.kernel_seconds for one in found.values()) > 0


def has_read_fonts(shell: Shell) -> bool:
    """What it has learned from reading them, it keeps."""
    return Path(f"/proc/{shell.pids()[0]}/root/root/.cache/fontconfig").exists()


async def test_a_boot_serves_no_devices_and_reads_no_fonts(shell: Shell) -> None:
    names = [one.name for one in await shell.agent.processes()]
    assert names.count("winedevice.exe") == 1
    assert not has_read_fonts(shell)


async def test_no_frame_however_broken_ends_the_agent(shell: Shell) -> None:
    chance = random.Random(4)
    whole = {
        1: Program("cmd /c exit", environment={"A": "b"}).encode(),
        7: RegistryChange("Software\\broken", "value", b"1\0").encode(),
        9: pipe_request("broken"),
    }
    for turn in range(400):
        if turn % 100 == 0:  # so that never more wait to be let in than may
            await asyncio.wait_for(shell.agent.ping(), PATIENCE)
        kind = chance.randrange(1, 32)
        payload = bytearray(whole.get(kind, chance.randbytes(chance.randrange(12))))
        for _ in range(chance.randrange(3)):
            if payload:
                payload[chance.randrange(len(payload))] = chance.choice((0, 1, 127, 255))
        cut = bytes(payload[: chance.randrange(len(payload) + 1)])
        _, writer = await asyncio.open_unix_connection(shell.agent.path)
        if chance.random() < 0.3:
            pipe = pipe_request("waits")
            writer.write(struct.pack("<IB", len(pipe), 9) + pipe)
        writer.write(struct.pack("<IB", len(cut), kind) + cut)
        await writer.drain()
        writer.close()
    await asyncio.wait_for(shell.agent.ping(), PATIENCE)
    assert (await run(shell, "cmd /c echo well")).output == b"well\r\n"


async def test_a_client_that_sends_more_than_it_may_is_told(shell: Shell) -> None:
    async with await shell.agent.start(
        Program("C:\\app\\launched.exe sleep", stdin=True)
    ) as running:
        running._window = 1 << 30
        with pytest.raises(WindowsError, match="parameter"):
            await asyncio.gather(running.write(b"x" * (1 << 20)), running.wait())


async def test_nothing_in_the_container_leads_to_the_socket(shell: Shell) -> None:
    assert str(shell.folder / "run") not in shell.mounts()
    script = "echo /run/winpod/*; : </proc/1/fd/3"
    looked = shell.runc("exec", shell.name, "/bin/sh", "-c", script)
    assert looked.stdout == "/run/winpod/wagent.exe /run/winpod/winit\n"
    assert "Permission denied" in looked.stderr


async def test_a_second_program_starts_faster_than_a_shell(
    base: Base, layer: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    with windows_shell(base, layer, tmp_path / "cold") as fresh:
        await asyncio.wait_for(fresh.agent.ping(), PATIENCE)
        ready = time.monotonic() - began
        assert (await run(fresh, "cmd /c echo 1")).output == b"1\r\n"
        cold = time.monotonic() - began
        warm = []
        for _ in range(5):
            began = time.monotonic()
            await run(fresh, "C:\\app\\launched.exe line")
            warm.append(time.monotonic() - began)
    print(f"ready {ready:.3f} s, first program {cold:.3f} s, next {min(warm):.3f} s")
    assert min(warm) < cold / 2


async def test_conmon_supervises_a_windows_program(shell: Shell) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program("C:\\app\\signals.exe", kill_descendants=True))
    until(lambda: conmon.log.exists() and "waiting" in conmon.log.read_text())
    conmon.log.rename(conmon.log.with_suffix(".old"))
    await reopen_log(str(conmon.log), int(str(conmon.answer["data"])))
    os.kill(int(str(conmon.answer["data"])), signal.SIGTERM)
    until(conmon.exit_file.exists)
    assert conmon.lines() == [("stdout", "F", "heard terminated"), ("stdout", "F", "bye")]
    assert (shell.folder / "exit32").read_text() == "7\n"


async def test_conmon_tells_why_windows_started_nothing(shell: Shell) -> None:
    conmon = Conmon(shell.folder, "none")
    conmon.start(Program("nothing.exe", kill_descendants=True))
    sentence = "The system cannot find the file specified.\n"
    assert conmon.answer == {"data": -1, "message": sentence}


async def test_a_killed_proxy_takes_the_program_along(shell: Shell) -> None:
    conmon = Conmon(shell.folder, "killed")
    (shell.folder / "exit32").unlink(missing_ok=True)
    conmon.start(Program("C:\\app\\launched.exe sleep", kill_descendants=True))
    os.kill(int(str(conmon.answer["data"])), signal.SIGKILL)
    until(conmon.exit_file.exists)
    assert conmon.exit_file.read_text() == "137"
    assert await ended(shell, "launched.exe")


async def test_a_shell_that_dies_is_told(base: Base, layer: Path, tmp_path: Path) -> None:
    with windows_shell(base, layer, tmp_path / "dying") as dying:
        conmon = Conmon(dying.folder)
        await asyncio.wait_for(dying.agent.ping(), PATIENCE)
        conmon.start(Program("C:\\app\\launched.exe sleep", kill_descendants=True))
        running = await dying.agent.start(Program("C:\\app\\launched.exe sleep"))
        dying.runc("kill", dying.name, "KILL")
        with pytest.raises(AgentUnavailable):
            await asyncio.wait_for(running.wait(), PATIENCE)
        until(conmon.exit_file.exists)
        assert conmon.exit_file.read_text() == "137"
        assert not (dying.folder / "exit32").exists()

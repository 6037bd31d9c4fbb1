"""wproxy as conmon calls it, and under the real conmon, with a stand-in agent."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.conmon_supervision import Conmon, create, until
from tests.support.silos import StandinSilo, standin_silo
from winpod.compute.agent.client import (
    Program,
    RegistryChange,
    TerminalSize,
    registry_frames,
)
from winpod.compute.agent.protocol import RegistryRoot
from winpod.compute.native import WPROXY, native_program

MIB = 1 << 20


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinSilo]:
    with standin_silo(tmp_path / "bundle") as running:
        yield running


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_create_returns_after_the_start_and_the_full_exit_code_is_recorded(
    shell: StandinSilo,
) -> None:
    process = create(shell.folder, Program("exit 1060"))
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, b"", b"")
    assert int((shell.folder / "pid").read_text()) > 0
    until(lambda: (shell.folder / "exit32").exists())
    assert (shell.folder / "exit32").read_text() == "1060\n"


def test_registry_is_written_before_the_program_starts(shell: StandinSilo) -> None:
    many = [RegistryChange("Software\\A", str(number), b"x" * 60_000) for number in range(20)]
    (shell.folder / "registry").write_bytes(registry_frames(many))
    assert create(shell.folder, Program("registry")).wait(120) == 0
    until(lambda: (shell.folder / "exit32").exists())
    assert (shell.folder / "exit32").read_text() == "3\n"


def test_failed_registry_change_prevents_the_start(shell: StandinSilo) -> None:
    frames = registry_frames([RegistryChange("Software\\A", root=RegistryRoot.USERS)])
    for broken, message in ((frames, b"Access is denied.\n"), (frames[:-1], b"truncated")):
        (shell.folder / "registry").write_bytes(broken)
        process = create(shell.folder, Program("exit 0"))
        assert message in process.communicate(timeout=120)[1]
        assert process.returncode == 1


def test_stdin_stdout_and_stderr_are_relayed_separately(shell: StandinSilo) -> None:
    data = os.urandom(3 * MIB)
    process = create(shell.folder, Program("copy", stdin=True))
    output, errors = process.communicate(data, timeout=120)
    assert (output == data, errors) == (True, b"")
    assert create(shell.folder, Program("cry loud")).communicate(timeout=120) == (b"", b"loud")


def test_refused_start_is_reported_and_leaves_no_process(shell: StandinSilo) -> None:
    process = create(shell.folder, Program("fail 2"))
    assert process.communicate(timeout=120) == (b"", b"A sentence.\n")
    assert process.returncode == 1
    assert not (shell.folder / "pid").exists()


def test_missing_silo_is_reported(shell: StandinSilo) -> None:
    shell.process.kill()
    shell.process.wait()
    process = create(shell.folder, Program("say x"))
    assert process.communicate(timeout=120)[1].startswith(b"The container's silo ")
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("sent", "kind"),
    [(signal.SIGTERM, 1), (signal.SIGHUP, 2), (signal.SIGINT, 3), (signal.SIGQUIT, 4)],
)
def test_signals_become_windows_events(shell: StandinSilo, sent: signal.Signals, kind: int) -> None:
    process = create(shell.folder, Program("wait"))
    process.wait(120)
    os.kill(int((shell.folder / "pid").read_text()), sent)
    assert process.communicate(timeout=120)[0] == f"signal {kind}\n".encode()
    assert (shell.folder / "exit32").read_text() == f"{kind}\n"


def test_signals_are_delivered_while_output_is_not_read(shell: StandinSilo) -> None:
    process = create(shell.folder, Program(f"flood {64 * MIB}"))
    process.wait(120)
    pid = int((shell.folder / "pid").read_text())
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    assert len(process.communicate(timeout=120)[0]) == 64 * MIB


def test_program_continues_after_the_reader_of_its_output_is_gone(shell: StandinSilo) -> None:
    process = create(shell.folder, Program(f"flood {8 * MIB}"))
    assert process.stdout
    process.stdout.close()
    until(lambda: (shell.folder / "exit32").exists())


def test_dead_silo_is_exit_code_137_without_exit32(shell: StandinSilo) -> None:
    process = create(shell.folder, Program("wait"))
    process.wait(120)
    pid = int((shell.folder / "pid").read_text())
    shell.process.kill()
    until(lambda: not alive(pid))
    assert not (shell.folder / "exit32").exists()


@pytest.mark.parametrize("arguments", [[], ["delete", "x"], ["create"], ["create", "--bundle"]])
def test_unknown_command_is_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [str(native_program(WPROXY)), *arguments], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"usage: wproxy create" in done.stderr


def test_conmon_supervises_and_outlives_its_starter(shell: StandinSilo) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program("wait", kill_descendants=True))
    pid = int(str(conmon.answer["data"]))
    assert pid == int((shell.folder / "pid").read_text())
    supervisor = int((shell.folder / "conmon.pid").read_text())
    assert Path(f"/proc/{supervisor}/stat").read_text().split()[3] == "1"
    os.kill(pid, signal.SIGTERM)
    until(conmon.exit_file.exists)
    assert conmon.lines() == [("stdout", "F", "signal 1")]
    assert (shell.folder / "exit32").read_text() == "1\n"
    assert conmon.exit_file.read_text() == "1"


def test_conmon_records_8_bits_and_exit32_all_32_bits(shell: StandinSilo) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program(f"exit {0xC0000005}"))
    until(conmon.exit_file.exists)
    assert conmon.exit_file.read_text() == "5"
    assert (shell.folder / "exit32").read_text() == f"{0xC0000005}\n"


def test_conmon_forwards_the_start_error(shell: StandinSilo) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program("fail 2"))
    assert conmon.answer == {"data": -1, "message": "A sentence.\n"}


def test_terminal_resize_through_conmon_reaches_the_program(shell: StandinSilo) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program("wait", terminal=TerminalSize()), "-t", "-i")
    conmon.control("1 40 100\n")
    until(lambda: "100 40" in conmon.log.read_text())
    os.kill(int(str(conmon.answer["data"])), signal.SIGTERM)
    until(conmon.exit_file.exists)


def test_a_client_attaches_through_conmon(shell: StandinSilo) -> None:
    conmon = Conmon(shell.folder)
    conmon.start(Program("copy", stdin=True), "-i")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(shell.folder / "sockets/one/attach"))
        client.send(b"typed\n")
        client.settimeout(120)
        assert client.recv(4096) == b"\x02typed\n"
    until(conmon.exit_file.exists)  # conmon ends the input with the client
    assert conmon.lines() == [("stdout", "F", "typed")]

"""The seccomp filter of silos in a microVM, for every architecture, on this kernel."""

import errno
import signal
import subprocess
from pathlib import Path

import pytest
from native.build import LINUX, SOURCE, compile_program

NEW_USER, NEW_MOUNTS = 0x10000000 | signal.SIGCHLD, 0x20000 | signal.SIGCHLD
ENDED = -signal.SIGSYS
SECCOMP = ("seccomp", "seccomp_x86", "seccomp_x86_64")


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("filter") / "filtered"
    parts = [SOURCE / f"wguest/{name}.c" for name in SECCOMP]
    options = (*LINUX, "-I", str(SOURCE / "wguest"))
    compile_program([Path(__file__).with_name("filtered.c"), *parts], program, options)
    return program


@pytest.mark.parametrize(
    ("what", "number", "argument", "answer"),
    [
        ("getpid", 39, 0, 0),
        ("mount", 165, 0, errno.EPERM),
        ("setns", 308, 0, errno.EPERM),
        ("clone with users of its own", 56, NEW_USER, errno.EPERM),
        ("clone with mounts of its own", 56, NEW_MOUNTS, errno.EPERM),
        ("clone", 56, int(signal.SIGCHLD), 0),
        ("clone3", 435, 0, errno.ENOSYS),
        ("getpid of x32", 0x40000027, 0, ENDED),
    ],
)
def test_syscalls_fail_as_with_process_isolation(
    filtered: Path, what: str, number: int, argument: int, answer: int
) -> None:
    for bits in ("64", "32"):
        assert _ended(filtered, bits, "64", number, argument) == answer, what


@pytest.mark.parametrize(
    ("what", "number", "argument", "answer"),
    [
        ("getpid", 20, 0, 0),
        ("mount", 21, 0, errno.EPERM),
        ("settimeofday", 79, 0, errno.EPERM),
        ("clone with users of its own", 120, NEW_USER, errno.EPERM),
        ("clone3", 435, 0, errno.ENOSYS),
    ],
)
def test_32_bit_syscalls_kill_the_process_unless_the_base_supports_them(
    filtered: Path, what: str, number: int, argument: int, answer: int
) -> None:
    assert _ended(filtered, "32", "32", number, argument) == answer, what
    assert _ended(filtered, "64", "32", number, argument) == ENDED, what


def _ended(program: Path, bits: str, interface: str, number: int, argument: int) -> int:
    command = [str(program), bits, interface, str(number), str(argument)]
    return subprocess.run(command, timeout=60).returncode

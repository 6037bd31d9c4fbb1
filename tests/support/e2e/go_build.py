"""Build Go programs of a module in this repository, once per pinned version.

The binaries are in a cache outside the repository, in a directory named by a hash of all inputs, so
that a changed pin never uses an old binary. A build writes to a temporary directory that is renamed
when complete: a directory that exists is complete.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


class BuildFailed(Exception):
    """A program could not be built; the message names the fix."""


@dataclass(frozen=True)
class Edit:
    """Replacement of a text in a file of another module, `example.org/package/file.go`."""

    file: str
    text: str
    instead: str


@dataclass(frozen=True)
class GoModule:
    """Programs to build: the source directory, and the files that determine the result.

    `edits` are applied to copies of the modules that contain the files.
    """

    name: str
    title: str
    source: Path
    files: Sequence[str]
    packages: Mapping[str, str]
    linker_flags: str = "-s -w"
    system: str = "linux"
    edits: Sequence[Edit] = ()


def binaries(module: GoModule, say: Say = print) -> Path:
    """Return the directory with every binary of the module, building them first if absent."""
    go = _go()
    directory = _cache() / f"{module.name}-{_fingerprint(go, module)}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            _build_whole(go, module, directory, say)
    return directory


def _build_whole(go: str, module: GoModule, directory: Path, say: Say) -> None:
    began = time.monotonic()
    say(f"building {module.title} into {directory} (some minutes)")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        with _edited(go, module) as options:
            for name, package in module.packages.items():
                _build_one(go, module, package, unfinished / name, options, say)
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    say(f"built all in {time.monotonic() - began:.0f} s")


def _build_one(
    go: str, module: GoModule, package: str, output: Path, options: Sequence[str], say: Say
) -> None:
    say(f"  {output.name} ...")
    began = time.monotonic()
    command = ["nice", "-n", "10", go, "build", "-p", "2", "-trimpath", "-buildvcs=false"]
    command += [*options, "-ldflags", module.linker_flags, "-o", str(output), package]
    environment = {
        **os.environ,
        **{"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOMAXPROCS": "2"},
        "GOOS": module.system,
    }
    done = subprocess.run(
        command, cwd=module.source, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BuildFailed(f"go build {package} failed:\n{done.stderr[-4000:]}")
    say(f"  {output.name}: {time.monotonic() - began:.0f} s")


@contextmanager
def _edited(go: str, module: GoModule) -> Iterator[list[str]]:
    """Return go options that build with edited copies of other modules."""
    if not module.edits:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        chosen = Path(folder, "go.mod")
        shutil.copy(module.source / "go.sum", chosen.with_suffix(".sum"))
        copies = [_copied(go, module, edit, folder) for edit in module.edits]
        chosen.write_text((module.source / "go.mod").read_text() + "".join(copies))
        yield [f"-modfile={chosen}"]


def _copied(go: str, module: GoModule, edit: Edit, folder: str) -> str:
    """Copy and edit a module; return the `replace` line of a go.mod for the copy."""
    package, _, name = edit.file.rpartition("/")
    found = subprocess.run(
        [go, "list", "-f", "{{.Module.Path}}\n{{.Module.Dir}}\n{{.Dir}}", package],
        cwd=module.source,
        env={**os.environ, "GOOS": module.system},
        check=True,
        capture_output=True,
        text=True,
    )
    path, original, place = found.stdout.splitlines()
    copy = Path(folder, path)
    shutil.copytree(original, copy, copy_function=shutil.copyfile)
    file = copy / Path(place).relative_to(original) / name
    source = file.read_text()
    if source.count(edit.text) != 1:
        raise BuildFailed(f"{edit.file} does not have this once, so it is not edited: {edit.text}")
    file.write_text(source.replace(edit.text, edit.instead))
    return f"replace {path} => {copy}\n"


def _fingerprint(go: str, module: GoModule) -> str:
    digest = hashlib.sha256()
    for name in module.files:
        digest.update((module.source / name).read_bytes())
    for edit in module.edits:
        digest.update(repr(edit).encode())
    version = subprocess.run([go, "version"], cwd=module.source, check=True, capture_output=True)
    digest.update(version.stdout)
    return digest.hexdigest()[:16]


def _cache() -> Path:
    chosen = os.environ.get("WINPOD_BUILD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "winpod-build"


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise BuildFailed(
            "Go is needed to build the programs of the tests and was not found: unpack a release of"
            " Go 1.26 or newer from https://go.dev/dl into /usr/local, or put go on PATH"
        )
    return go

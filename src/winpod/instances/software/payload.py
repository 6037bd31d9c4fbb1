"""The files that instances get: a directory with a `payload.toml` that says what is in it.

Nothing is downloaded and nothing is taken on trust: every program is listed with its SHA256, is a
program of Windows for the architecture that is written there, and has a name that is known here.
The names decide where a program goes; directories within a payload mean nothing.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from winpod.images.pe import Machine, machine_of
from winpod.instances.errors import BadPayload
from winpod.instances.rules.versions import Version
from winpod.instances.software.programs import PROGRAMS, REQUIRED, Program
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import At

LIST = "payload.toml"
_MACHINES = {"amd64": Machine.AMD64, "arm64": Machine.ARM64}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTAINERD = re.compile(
    rb"(?:mod|dep)\tgithub\.com/containerd/containerd(?:/v2)?\tv([0-9][^\t\n]*)"
)
_LOG_SIZE = b"log-file-size"
_ADVICE = "Make the payload anew with `winpod instance payload`, from files that you trust."


@dataclass(frozen=True, slots=True)
class PayloadFile:
    program: Program
    source: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Payload:
    """`containerd` is that program's version: its configuration depends on it.

    It rotates logs where its kube-log-runner.exe does.
    """

    version: str
    architecture: str
    containerd: Version
    files: Mapping[str, PayloadFile]
    rotates_logs: bool = False

    def has(self, name: str) -> bool:
        return name in self.files


def read_payload(directory: Path) -> Payload:
    """What is in a payload, once every file of it was read and found to be what is written."""
    document = _read_list(directory)
    try:
        document.allow("version", "architecture", "containerd", "files")
        version = document.get("version").required_text()
        Version.parse(version)
        architecture = document.get("architecture").one_of(*_MACHINES) or "amd64"
        containerd = Version.parse(document.get("containerd").required_text())
        listed = document.get("files").pairs()
    except InvalidInput as error:
        raise BadPayload(f"{directory / LIST}: {error}", _ADVICE) from None
    files: dict[str, PayloadFile] = {}
    for name, sha256 in listed:
        file = _read_file(directory, name, sha256, architecture)
        if file.program.name in files:
            raise BadPayload(f"{directory / LIST} lists {file.program.name} twice.", _ADVICE)
        files[file.program.name] = file
    if missing := [name for name in REQUIRED if name not in files]:
        raise BadPayload(
            f"the payload in {directory} has no {', '.join(missing)}.",
            "No node runs without them: add the files, and make the payload anew.",
        )
    rotates = _has(files["kube-log-runner.exe"].source, _LOG_SIZE)
    return Payload(version, architecture, containerd, files, rotates)


def make_payload(directory: Path, version: str, containerd: str = "") -> Payload:
    """List the programs beneath a directory, in it. What is no program of ours is not listed.

    The list appears whole: an operator may be reading it.
    """
    Version.parse(version)
    found = sorted(file for file in directory.rglob("*.exe") if file.name.lower() in PROGRAMS)
    daemon = next((file for file in found if file.name.lower() == "containerd.exe"), None)
    if daemon is None:
        raise BadPayload(
            f"there is no containerd.exe beneath {directory}.",
            "Put the programs there first; it needs " + ", ".join(REQUIRED) + ".",
        )
    machine = machine_of(daemon)
    architecture = next((name for name, one in _MACHINES.items() if one == machine), "amd64")
    containerd = containerd or _containerd_version(daemon)
    Version.parse(containerd)
    lines = [
        f'version = "{version}"',
        f'architecture = "{architecture}"',
        f'containerd = "{containerd}"',
        "",
        "[files]",
        *(f'"{file.relative_to(directory).as_posix()}" = "{_hash(file)}"' for file in found),
    ]
    new = directory / f".{LIST}.new"
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.replace(directory / LIST)
    return read_payload(directory)


def _read_list(directory: Path) -> At:
    path = directory / LIST
    try:
        with path.open("rb") as file:
            return At(tomllib.load(file))
    except FileNotFoundError:
        raise BadPayload(f"{directory} is no payload: it has no {LIST}.", _ADVICE) from None
    except OSError as error:
        raise BadPayload(
            f"{path} cannot be read: {error.strerror}.", "See whose the file is, and its disk."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPayload(f"{path} is not TOML: {error}.", _ADVICE) from None


def _read_file(directory: Path, name: str, sha256: str, architecture: str) -> PayloadFile:
    inner = PurePosixPath(name)
    program = PROGRAMS.get(inner.name.lower())
    if program is None:
        raise BadPayload(
            f"{directory / LIST} lists {name}, which is no program that goes to an instance.",
            "Those are " + ", ".join(PROGRAMS) + ".",
        )
    if inner.is_absolute() or ".." in inner.parts:
        raise BadPayload(f"{directory / LIST} lists {name}, which is outside of it.", _ADVICE)
    path = directory / inner
    if not _SHA256.fullmatch(sha256):
        raise BadPayload(f'{directory / LIST}: "{sha256}", of {name}, is no SHA256.', _ADVICE)
    if not path.is_file():
        raise BadPayload(f"the payload lists {name}, and {path} is not there.", _ADVICE)
    found = _hash(path)
    if found != sha256:
        raise BadPayload(
            f"{path} is not the file that the payload lists: its SHA256 is {found}, and {sha256} "
            "was expected.",
            _ADVICE,
        )
    machine = machine_of(path)
    if machine is None:
        raise BadPayload(f"{path} is no program of Windows.", _ADVICE)
    if machine != _MACHINES[architecture]:
        raise BadPayload(
            f"{path} is for {_machine_name(machine)}, and the payload for {architecture}.", _ADVICE
        )
    return PayloadFile(program, path, sha256, path.stat().st_size)


def _machine_name(machine: int) -> str:
    return next((one.name.lower() for one in Machine if one == machine), f"machine {machine:#x}")


def _containerd_version(program: Path) -> str:
    """What the Go linker wrote into it; a build from a working copy says no version."""
    for piece in _overlapping(program):
        if match := _CONTAINERD.search(piece):
            return match[1].decode().removesuffix("+incompatible")
    raise BadPayload(
        f"{program} does not say which version of containerd it is.",
        "Name it: its configuration depends on it.",
    )


def _has(program: Path, words: bytes) -> bool:
    return any(words in piece for piece in _overlapping(program))


def _overlapping(path: Path) -> Iterator[bytes]:
    tail = b""
    for piece in _pieces(path):
        yield tail + piece
        tail = piece[-512:]


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece

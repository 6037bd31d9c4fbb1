"""Payload: the programs to install on instances, a directory with a `payload.toml`.

Nothing is downloaded and nothing is trusted: every program is listed with its SHA256, is a Windows
program of the stated architecture and has a name of the `PROGRAMS` table. The name decides where it
is installed; subdirectories of a payload have no meaning.

A payload can also be pulled as an image that `winpod image pack` made of its directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from winpod.errors import InvalidInput
from winpod.field_reader import Field
from winpod.images.layers.tree import FILES
from winpod.images.pe import PeMachine, pe_machine
from winpod.images.pull.puller import pull
from winpod.images.registry.auth import CredentialSource
from winpod.images.store.store import Store
from winpod.instances.errors import InvalidPayload
from winpod.instances.planner.versions import Version
from winpod.instances.software.programs import PROGRAMS, REQUIRED, PayloadProgram
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.handlers import PROCESS_HANDLER

PAYLOAD_FILE = "payload.toml"
_MACHINES = {"amd64": PeMachine.AMD64, "arm64": PeMachine.ARM64}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTAINERD = re.compile(
    rb"(?:mod|dep)\tgithub\.com/containerd/containerd(?:/v2)?\tv([0-9][^\t\n]*)"
)
_LOG_SIZE = b"log-file-size"
_ADVICE = "Create the payload again with `winpod instance payload`, from trusted files."


@dataclass(frozen=True, slots=True)
class PayloadFile:
    program: PayloadProgram
    source: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Payload:
    """A verified payload.

    `containerd` is the version of that program, which its configuration depends on. `rotates_logs`
    is whether its kube-log-runner.exe supports log rotation.
    """

    version: str
    architecture: str
    containerd: Version
    files: Mapping[str, PayloadFile]
    rotates_logs: bool = False

    def has(self, name: str) -> bool:
        return name in self.files


def read_payload(directory: Path) -> Payload:
    """Read a payload and verify every file against the list."""
    document = _read_list(directory)
    try:
        document.reject_unknown_keys("version", "architecture", "containerd", "files")
        version = document.get("version").required_text()
        Version.parse(version)
        architecture = document.get("architecture").one_of(*_MACHINES) or "amd64"
        containerd = Version.parse(document.get("containerd").required_text())
        entries = document.get("files").text_map()
    except InvalidInput as error:
        raise InvalidPayload(f"{directory / PAYLOAD_FILE}: {error}", _ADVICE) from None
    files: dict[str, PayloadFile] = {}
    for name, sha256 in entries:
        file = _read_file(directory, name, sha256, architecture)
        if file.program.name in files:
            raise InvalidPayload(
                f"{directory / PAYLOAD_FILE} lists {file.program.name} twice.", _ADVICE
            )
        files[file.program.name] = file
    if missing := [name for name in REQUIRED if name not in files]:
        raise InvalidPayload(
            f"the payload in {directory} has no {', '.join(missing)}.",
            "Every node needs them: add the files, and create the payload again.",
        )
    rotates = _contains(files["kube-log-runner.exe"].source, _LOG_SIZE)
    return Payload(version, architecture, containerd, files, rotates)


def make_payload(directory: Path, version: str, containerd: str = "") -> Payload:
    """Write the list of the known programs below a directory; other files are ignored.

    The list is replaced atomically, since an operator may be reading it.
    """
    Version.parse(version)
    programs = sorted(file for file in directory.rglob("*.exe") if file.name.lower() in PROGRAMS)
    daemon = next((file for file in programs if file.name.lower() == "containerd.exe"), None)
    if daemon is None:
        raise InvalidPayload(
            f"no containerd.exe found below {directory}.",
            "Copy the programs there first; required are " + ", ".join(REQUIRED) + ".",
        )
    machine = pe_machine(daemon)
    architecture = next((name for name, value in _MACHINES.items() if value == machine), "amd64")
    containerd = containerd or _containerd_version(daemon)
    Version.parse(containerd)
    lines = [
        f'version = "{version}"',
        f'architecture = "{architecture}"',
        f'containerd = "{containerd}"',
        "",
        "[files]",
        *(f'"{file.relative_to(directory).as_posix()}" = "{_hash(file)}"' for file in programs),
    ]
    temporary = directory / f".{PAYLOAD_FILE}.new"
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(directory / PAYLOAD_FILE)
    return read_payload(directory)


def _read_list(directory: Path) -> Field:
    path = directory / PAYLOAD_FILE
    try:
        with path.open("rb") as file:
            return Field(tomllib.load(file))
    except FileNotFoundError:
        raise InvalidPayload(
            f"{directory} is not a payload: it has no {PAYLOAD_FILE}.", _ADVICE
        ) from None
    except OSError as error:
        raise InvalidPayload(
            f"{path} cannot be read: {error.strerror}.",
            "Check the file's permissions and its disk.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidPayload(f"{path} is not TOML: {error}.", _ADVICE) from None


def _read_file(directory: Path, name: str, sha256: str, architecture: str) -> PayloadFile:
    relative = PurePosixPath(name)
    program = PROGRAMS.get(relative.name.lower())
    if program is None:
        raise InvalidPayload(
            f"{directory / PAYLOAD_FILE} lists {name}, which is not a program of an instance.",
            "Known programs are " + ", ".join(PROGRAMS) + ".",
        )
    if relative.is_absolute() or ".." in relative.parts:
        raise InvalidPayload(
            f"{directory / PAYLOAD_FILE} lists {name}, which is outside the payload.", _ADVICE
        )
    path = directory / relative
    if not _SHA256.fullmatch(sha256):
        raise InvalidPayload(
            f'{directory / PAYLOAD_FILE}: "{sha256}", of {name}, is not a SHA256.', _ADVICE
        )
    if not path.is_file():
        raise InvalidPayload(f"the payload lists {name}, and {path} does not exist.", _ADVICE)
    actual = _hash(path)
    if actual != sha256:
        raise InvalidPayload(
            f"{path} differs from the payload's list: its SHA256 is {actual}, and {sha256} "
            "was expected.",
            _ADVICE,
        )
    machine = pe_machine(path)
    if machine is None:
        raise InvalidPayload(f"{path} is not a Windows program.", _ADVICE)
    if machine != _MACHINES[architecture]:
        raise InvalidPayload(
            f"{path} is for {_machine_name(machine)}, and the payload for {architecture}.", _ADVICE
        )
    return PayloadFile(program, path, sha256, path.stat().st_size)


def _machine_name(machine: int) -> str:
    return next(
        (value.name.lower() for value in PeMachine if value == machine), f"machine {machine:#x}"
    )


def _containerd_version(program: Path) -> str:
    """Return the version the Go linker recorded; builds from a working copy have none."""
    for chunk in _overlapping_chunks(program):
        if match := _CONTAINERD.search(chunk):
            return match[1].decode().removesuffix("+incompatible")
    raise InvalidPayload(
        f"{program} does not contain the version of containerd.",
        "Specify it: the configuration depends on it.",
    )


def _contains(program: Path, pattern: bytes) -> bool:
    return any(pattern in chunk for chunk in _overlapping_chunks(program))


def _overlapping_chunks(path: Path) -> Iterator[bytes]:
    tail = b""
    for chunk in _chunks(path):
        yield tail + chunk
        tail = chunk[-512:]


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


async def fetch_payload(
    image: str, directory: Path, root: Path, credentials: Sequence[CredentialSource] = ()
) -> Payload:
    """Pull a payload image into a new directory; `root` is that of the image store."""
    with Store(root) as store:
        pulled = await pull(store, image, PROCESS_HANDLER, DEFAULT_HOST, credentials=credentials)
        return await asyncio.to_thread(_copy, image, store.layers_of(pulled), directory)


def _copy(image: str, layers: Sequence[Path], directory: Path) -> Payload:
    """Copy the files, the list last: without it, an interrupted copy is not a payload."""
    layer = next(
        (candidate / FILES for candidate in layers if (candidate / FILES / PAYLOAD_FILE).is_file()),
        None,
    )
    if layer is None:
        raise InvalidPayload(
            f"the image {image} has no {PAYLOAD_FILE}.",
            "Create a payload with `winpod instance payload`; pack it with `winpod image pack`.",
        )
    if (directory / PAYLOAD_FILE).exists():
        raise InvalidInput(f"{directory} already has a payload.", "Use another directory.")
    for file in read_payload(layer).files.values():
        target = directory / file.source.relative_to(layer)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, target)
    shutil.copyfile(layer / PAYLOAD_FILE, directory / PAYLOAD_FILE)
    return read_payload(directory)

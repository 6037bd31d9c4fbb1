"""Pack a directory into a Windows image, as the content of its C: drive.

Each build gets a base layer of placeholders that is recognised by its entries like Microsoft's; the
layer above it has the content and is shared by all builds. Packing is reproducible: names are
sorted, and times, owners and modes are fixed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from winpod.clock import format_timestamp
from winpod.errors import InvalidInput
from winpod.images.layers.whiteouts import WHITEOUT_PREFIX
from winpod.images.manifests import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
    ImageBundle,
    compute_digest,
    platform_as_json,
)
from winpod.windows import command_line
from winpod.windows.builds import Build
from winpod.windows.paths import casefold_name, container_path, invalid_name_reason
from winpod.windows.platforms import Platform

ARCHITECTURES = ("amd64", "arm64")
_ATTRIBUTES = "MSWINDOWS.fileattr"
_DIRECTORY, _ARCHIVE, _REPARSE_POINT = 0x10, 0x20, 0x400
_SHOWN_PROBLEMS = 10

_BASE_FILES = (
    "Files/Windows/System32/config/DEFAULT",
    "Files/Windows/System32/config/SAM",
    "Files/Windows/System32/config/SECURITY",
    "Files/Windows/System32/config/SOFTWARE",
    "Files/Windows/System32/config/SYSTEM",
    "Files/Windows/System32/ntdll.dll",
    "Hives/DefaultUser_Base",
    "Hives/Sam_Base",
    "Hives/Security_Base",
    "Hives/Software_Base",
    "Hives/System_Base",
    "UtilityVM/Files/EFI/Microsoft/Boot/BCD",
    "UtilityVM/Files/EFI/Microsoft/Boot/bootmgfw.efi",
    "UtilityVM/Files/Windows/System32/ntoskrnl.exe",
)

Progress = Callable[[int], None]


class Compression(StrEnum):
    GZIP = "gzip"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PackConfig:
    """The runtime configuration of the image."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""
    ports: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        value = {
            "User": self.user,
            "ExposedPorts": {port: {} for port in sorted(self.ports)},
            "Env": list(self.env),
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.cmd),
            "WorkingDir": self.workdir,
            "Labels": dict(sorted(self.labels.items())),
        }
        return {key: setting for key, setting in value.items() if setting}


@dataclass(frozen=True, slots=True)
class DirectoryContent:
    """The validated content of a directory."""

    entries: tuple[_Entry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True)
class _Entry:
    source: Path
    name: str
    attributes: int
    size: int = 0
    link: str = ""


@dataclass(frozen=True, slots=True)
class _Layer:
    descriptor: Descriptor
    diff_id: str
    content: Path


def parse_pack_config(
    *,
    entrypoint: str = "",
    cmd: str = "",
    env: Sequence[str] = (),
    workdir: str = "",
    user: str = "",
    ports: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> PackConfig:
    """Parse and validate the settings of a command line."""
    variables = _parse_pairs(env, "an environment variable", key=casefold_name)
    return PackConfig(
        entrypoint=_parse_command(entrypoint, "entrypoint"),
        cmd=_parse_command(cmd, "cmd"),
        env=tuple(f"{name}={value}" for name, value in variables.items()),
        workdir=container_path(workdir) if workdir else "",
        user=user,
        ports=tuple(dict.fromkeys(map(_parse_port, ports))),
        labels=_parse_pairs(labels, "a label", key=str),
    )


def read_content(directory: Path) -> DirectoryContent:
    """Read a directory, or raise with all entries that Windows does not allow."""
    if not directory.is_dir():
        reason = "is not a directory" if directory.exists() else "does not exist"
        raise InvalidInput(
            f"{directory} {reason}.", "Use a directory with the content of the image's C: drive."
        )
    problems: list[str] = []
    root = directory.resolve()
    entries = tuple(_walk(root, problems))
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        listed = "; ".join(problems[:_SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise InvalidInput(
            f"{directory} cannot be the C: drive of a Windows image: {listed}.",
            "Rename or remove these entries.",
        )
    return DirectoryContent(entries)


def pack(
    content: DirectoryContent,
    builds: Sequence[Build],
    settings: PackConfig,
    workspace: Path,
    *,
    architecture: str = "amd64",
    compression: Compression = Compression.GZIP,
    progress: Progress = lambda _: None,
) -> ImageBundle:
    """Pack an image per build, with an index if there are several; layers are in `workspace`."""
    _check_builds(builds)
    if architecture not in ARCHITECTURES:
        raise InvalidInput(
            f'Windows images do not support the architecture "{architecture}".',
            f"Use one of: {', '.join(ARCHITECTURES)}.",
        )
    time = _source_date()
    layers = _LayerWriter(workspace, compression)
    add_content = partial(_add_content, content=content, time=time, progress=progress)
    content_layer = layers.make("content", add_content)
    blobs: dict[str, tuple[Descriptor, bytes | Path]] = {}
    manifests = []
    for build in sorted(builds):
        platform = Platform("windows", architecture, os_version=str(build))
        base = layers.make(f"base-{build}", partial(_add_base, build=build, time=time))
        config = _serialise(OCI_CONFIG, _config(platform, settings, (base, content_layer), time))
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config[0].as_json(),
            "layers": [layer.descriptor.as_json() for layer in (base, content_layer)],
        }
        manifests.append(_serialise(OCI_MANIFEST, manifest, platform))
        for layer in (base, content_layer):
            blobs[layer.descriptor.digest] = (layer.descriptor, layer.content)
        blobs[config[0].digest] = config
    if len(manifests) > 1:
        index = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [descriptor.as_json() for descriptor, _ in manifests],
        }
        manifests.append(_serialise(OCI_INDEX, index))
    return ImageBundle(tuple(blobs.values()), tuple(manifests))


def _check_builds(builds: Sequence[Build]) -> None:
    for build in builds:
        if list(builds).count(build) > 1:
            raise InvalidInput(f"The build {build.describe()} is given twice.", "Specify it once.")
    if not builds:
        raise InvalidInput("An image needs a Windows build.", "Use --os-version 2022, for example.")


def _source_date() -> int:
    text = os.environ.get("SOURCE_DATE_EPOCH") or "0"
    if not text.isdecimal() or not text.isascii() or len(text) > 11:
        raise InvalidInput(
            f'SOURCE_DATE_EPOCH is "{text}".', "Set it to seconds since 1970, or unset it."
        )
    return int(text)


def _config(
    platform: Platform, settings: PackConfig, layers: Sequence[_Layer], time: int
) -> dict[str, Any]:
    created = format_timestamp(datetime.fromtimestamp(time, UTC))
    return {
        "created": created,
        **platform_as_json(platform),
        "config": settings.as_json(),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [
            {"created": created, "created_by": f"Apply image {platform.os_version}"},
            {"created": created, "created_by": "winpod image pack"},
        ],
    }


def _serialise(
    media_type: str, document: dict[str, Any], platform: Platform | None = None
) -> tuple[Descriptor, bytes]:
    data = json.dumps(document, separators=(",", ":")).encode()
    return Descriptor(media_type, compute_digest(data), len(data), platform), data


class _DigestWriter:
    """A writer that computes the digest of what is written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class _LayerWriter:
    workspace: Path
    compression: Compression

    def make(self, name: str, add_entries: Callable[[tarfile.TarFile], None]) -> _Layer:
        path = self.workspace / f"{name}.tar"
        with _writing(path), path.open("wb") as file:
            compressed = _DigestWriter(file)
            with self._compressor(compressed) as compressor:
                plain = _DigestWriter(compressor)
                with tarfile.open(
                    fileobj=cast(IO[bytes], plain), mode="w|", format=tarfile.PAX_FORMAT
                ) as tar:
                    add_entries(tar)
        gzipped = self.compression is Compression.GZIP
        media_type = OCI_LAYER_GZIP if gzipped else OCI_LAYER
        descriptor = Descriptor(media_type, compressed.digest, path.stat().st_size)
        return _Layer(descriptor, plain.digest, path)

    @contextmanager
    def _compressor(self, target: _DigestWriter) -> Iterator[Any]:
        if self.compression is Compression.NONE:
            yield target
            return
        with gzip.GzipFile("", "wb", 6, target, mtime=0) as file:
            yield file


def _add_base(tar: tarfile.TarFile, build: Build, time: int) -> None:
    for directory in sorted({parent for name in _BASE_FILES for parent in _parents(name)}):
        tar.addfile(_member(directory, _DIRECTORY, time))
    for name in _BASE_FILES:
        text = f"winpod placeholder for {name} of Windows {build}\n".encode()
        tar.addfile(_member(name, _ARCHIVE, time, size=len(text)), io.BytesIO(text))


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _add_content(
    tar: tarfile.TarFile, content: DirectoryContent, time: int, progress: Progress
) -> None:
    tar.addfile(_member("Files", _DIRECTORY, time))
    for entry in content.entries:
        member = _member(
            f"Files/{entry.name}", entry.attributes, time, size=entry.size, link=entry.link
        )
        if member.isreg():
            _add_file(tar, member, entry, progress)
        else:
            tar.addfile(member)
        tar.getmembers().clear()  # tarfile keeps every member in memory, and there may be millions
    tar.addfile(_member("Hives", _DIRECTORY, time))


def _add_file(
    tar: tarfile.TarFile, member: tarfile.TarInfo, entry: _Entry, progress: Progress
) -> None:
    with _reading(entry.source):
        file = entry.source.open("rb")
    with file:
        tar.addfile(member, cast(IO[bytes], _ProgressReader(file, entry, progress)))


class _ProgressReader:
    """A reader that reports progress, and fails if the file shrinks."""

    def __init__(self, file: BinaryIO, entry: _Entry, progress: Progress) -> None:
        self._file = file
        self._entry = entry
        self._progress = progress

    def read(self, size: int) -> bytes:
        with _reading(self._entry.source):
            data = self._file.read(size)
        if len(data) < size:
            raise InvalidInput(
                f"{self._entry.source} was truncated while it was packed.",
                "Pack a directory that is not being modified.",
            )
        self._progress(len(data))
        return data


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"The layer cannot be written to {path.parent}: {error.strerror}.",
            "Set TMPDIR to a directory with more space.",
        ) from None


def _member(
    name: str, attributes: int, time: int, *, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mtime = time
    member.size = size
    member.pax_headers = {_ATTRIBUTES: str(attributes)}
    if link:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, link, 0o777
    elif attributes & _DIRECTORY:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    else:
        member.mode = 0o644
    return member


def _walk(root: Path, problems: list[str]) -> Iterator[_Entry]:
    """Yield all entries sorted by name, directories before their content."""
    pending = [(root, "")]
    while pending:
        path, name = pending.pop()
        if name:
            entry = _read_entry(root, path, name, problems)
            if entry is None:
                continue
            yield entry
            if entry.link or not entry.attributes & _DIRECTORY:
                continue
        children = _list_names(path, problems)
        _check_names(name, children, problems)
        pending += [
            (path / child, f"{name}/{child}" if name else child) for child in children[::-1]
        ]


def _list_names(path: Path, problems: list[str]) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - only names are needed
    except OSError as error:
        problems.append(f"{_quote(str(path))} cannot be read ({error.strerror})")
        return []


def _check_names(directory: str, names: Sequence[str], problems: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        shown = _quote(f"{directory}/{name}" if directory else name)
        problem = invalid_name_reason(name)
        if not _is_unicode(name):
            problem = "it is not UTF-8"
        elif name.startswith(WHITEOUT_PREFIX):
            problem = f"{WHITEOUT_PREFIX} marks a deleted file in an image"
        if problem:
            problems.append(f"{shown} ({problem})")
        other = seen.setdefault(casefold_name(name), name)
        if other != name:
            problems.append(f"{shown} and {_quote(other)} differ only in case")


def _read_entry(root: Path, path: Path, name: str, problems: list[str]) -> _Entry | None:
    try:
        status = path.lstat()
    except OSError as error:
        problems.append(f"{_quote(name)} cannot be read ({error.strerror})")
        return None
    if stat.S_ISDIR(status.st_mode):
        return _Entry(path, name, _DIRECTORY)
    if stat.S_ISREG(status.st_mode):
        return _Entry(path, name, _ARCHIVE, size=status.st_size)
    if stat.S_ISLNK(status.st_mode):
        return _read_link(root, path, name, problems)
    problems.append(f"{_quote(name)} is a socket, a pipe or a device")
    return None


def _read_link(root: Path, path: Path, name: str, problems: list[str]) -> _Entry | None:
    """Read a link to a target inside the root, made relative to be independent of its location."""
    target = os.path.realpath(path)
    if Path(target) != root and root not in Path(target).parents:
        problems.append(
            f"{_quote(name)} is a link to {_quote(str(path.readlink()))}, outside of it"
        )
        return None
    link = os.fspath(path.readlink())
    if Path(link).is_absolute() or _climbs_out(name, link):
        link = os.path.relpath(target, path.parent)
    attributes = _REPARSE_POINT | (_DIRECTORY if path.is_dir() else 0)
    return _Entry(path, name, attributes, link=link)


def _climbs_out(name: str, link: str) -> bool:
    """Return whether a relative link passes through a directory above the root."""
    return os.path.normpath(Path(name).parent / link).startswith("..")


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quote(name: str) -> str:
    return '"' + name.encode(errors="backslashreplace").decode() + '"'


def _parse_command(text: str, option: str) -> tuple[str, ...]:
    """Parse a JSON array of arguments, or split a command line as Windows does."""
    if not text.lstrip().startswith("["):
        return tuple(command_line.split(text.strip()))
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"--{option} starts like a JSON array, but is not valid JSON: {error}.",
            """Write '["C:\\\\app\\\\app.exe", "arg"]', or a command line.""",
        ) from None
    if not all(isinstance(argument, str) for argument in arguments):
        raise InvalidInput(f"--{option} is a JSON array, but not of strings only.")
    command_line.join(arguments)
    return tuple(arguments)


def _parse_pairs(texts: Sequence[str], kind: str, *, key: Callable[[str], str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    seen: set[str] = set()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f'"{text}" is not {kind}.', "Write NAME=VALUE.")
        if key(name) in seen:
            raise InvalidInput(f'"{name}" is given twice as {kind}.', "Specify it once.")
        seen.add(key(name))
        pairs[name] = value
    return pairs


def _parse_port(text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,5})(?:/(tcp|udp))?", text)
    if not match or not 1 <= int(match[1]) <= 65535:
        raise InvalidInput(f'"{text}" is not a port.', "Write 1 to 65535, with /tcp or /udp.")
    return f"{int(match[1])}/{match[2] or 'tcp'}"

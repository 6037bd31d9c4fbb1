"""A directory made into a Windows image: its content is the image's C: drive.

Each build gets a base layer that is recognised as Microsoft's are, by what is in it, and holds only
placeholders; the layer above it has the content and is shared by all builds. The same input gives
the same digests: names are sorted, and times, owners and modes are fixed.
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

from winpod.images.manifests import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Bundle,
    Descriptor,
    digest_of,
    platform_as_json,
)
from winpod.windows import command_line
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.paths import collision_key, container_path, name_problem
from winpod.windows.platforms import Platform

ARCHITECTURES = ("amd64", "arm64")
_ATTRIBUTES = "MSWINDOWS.fileattr"
_DIRECTORY, _ARCHIVE, _REPARSE_POINT = 0x10, 0x20, 0x400
_WHITEOUT = ".wh."
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
class Settings:
    """What the image says of how to run it."""

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
        return {key: one for key, one in value.items() if one}


@dataclass(frozen=True, slots=True)
class Content:
    """A directory that was found fit to be a C: drive."""

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


def parse_settings(
    *,
    entrypoint: str = "",
    cmd: str = "",
    env: Sequence[str] = (),
    workdir: str = "",
    user: str = "",
    ports: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Settings:
    """Settings from what was written on a command line, each checked."""
    variables = _pairs(env, "an environment variable", key=collision_key)
    return Settings(
        entrypoint=_parse_command(entrypoint, "entrypoint"),
        cmd=_parse_command(cmd, "cmd"),
        env=tuple(f"{name}={value}" for name, value in variables.items()),
        workdir=container_path(workdir) if workdir else "",
        user=user,
        ports=tuple(dict.fromkeys(map(_parse_port, ports))),
        labels=_pairs(labels, "a label", key=str),
    )


def read_content(directory: Path) -> Content:
    """Everything in a directory, or a sentence about what of it cannot be on Windows."""
    if not directory.is_dir():
        found = "is not a directory" if directory.exists() else "does not exist"
        raise InvalidInput(
            f"{directory} {found}.", "Give the directory that is to be the image's C: drive."
        )
    problems: list[str] = []
    root = directory.resolve()
    entries = tuple(_walk(root, problems))
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        listed = "; ".join(problems[:_SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise InvalidInput(
            f"{directory} cannot be the C: drive of a Windows image: {listed}.",
            "Rename or take out what is named here.",
        )
    return Content(entries)


def pack(
    content: Content,
    builds: Sequence[Build],
    settings: Settings,
    workspace: Path,
    *,
    architecture: str = "amd64",
    compression: Compression = Compression.GZIP,
    progress: Progress = lambda _: None,
) -> Bundle:
    """An image for each build: an index of them, or the only one. Layers lie in the workspace."""
    _check_builds(builds)
    if architecture not in ARCHITECTURES:
        raise InvalidInput(
            f'Windows images are not made for the architecture "{architecture}".',
            f"Write one of: {', '.join(ARCHITECTURES)}.",
        )
    time = _source_date()
    layers = _LayerMaker(workspace, compression)
    add_content = partial(_add_content, content=content, time=time, progress=progress)
    above = layers.make("content", add_content)
    blobs: dict[str, tuple[Descriptor, bytes | Path]] = {}
    manifests = []
    for build in sorted(builds):
        platform = Platform("windows", architecture, os_version=str(build))
        base = layers.make(f"base-{build}", partial(_add_base, build=build, time=time))
        config = _stored(OCI_CONFIG, _config(platform, settings, (base, above), time))
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config[0].as_json(),
            "layers": [layer.descriptor.as_json() for layer in (base, above)],
        }
        manifests.append(_stored(OCI_MANIFEST, manifest, platform))
        blobs |= {one.descriptor.digest: (one.descriptor, one.content) for one in (base, above)}
        blobs[config[0].digest] = config
    if len(manifests) > 1:
        index = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [descriptor.as_json() for descriptor, _ in manifests],
        }
        manifests.append(_stored(OCI_INDEX, index))
    return Bundle(tuple(blobs.values()), tuple(manifests))


def _check_builds(builds: Sequence[Build]) -> None:
    for build in builds:
        if list(builds).count(build) > 1:
            raise InvalidInput(f"The build {build.describe()} is given twice.", "Give it once.")
    if not builds:
        raise InvalidInput("An image needs a Windows build.", "Write --os-version 2022.")


def _source_date() -> int:
    text = os.environ.get("SOURCE_DATE_EPOCH") or "0"
    if not text.isdecimal() or not text.isascii() or len(text) > 11:
        raise InvalidInput(
            f'SOURCE_DATE_EPOCH is "{text}".', "Set it to seconds since 1970, or unset it."
        )
    return int(text)


def _config(
    platform: Platform, settings: Settings, layers: Sequence[_Layer], time: int
) -> dict[str, Any]:
    created = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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


def _stored(
    media_type: str, document: dict[str, Any], platform: Platform | None = None
) -> tuple[Descriptor, bytes]:
    data = json.dumps(document, separators=(",", ":")).encode()
    return Descriptor(media_type, digest_of(data), len(data), platform), data


class _Hashing:
    """A file to write to that knows the digest of what was written."""

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
class _LayerMaker:
    workspace: Path
    compression: Compression

    def make(self, name: str, add_entries: Callable[[tarfile.TarFile], None]) -> _Layer:
        path = self.workspace / f"{name}.tar"
        with _writing(path), path.open("wb") as file:
            stored = _Hashing(file)
            with self._compressor(stored) as compressor:
                plain = _Hashing(compressor)
                with tarfile.open(
                    fileobj=cast(IO[bytes], plain), mode="w|", format=tarfile.PAX_FORMAT
                ) as tar:
                    add_entries(tar)
        gzipped = self.compression is Compression.GZIP
        media_type = OCI_LAYER_GZIP if gzipped else OCI_LAYER
        descriptor = Descriptor(media_type, stored.digest, path.stat().st_size)
        return _Layer(descriptor, plain.digest, path)

    @contextmanager
    def _compressor(self, target: _Hashing) -> Iterator[Any]:
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


def _add_content(tar: tarfile.TarFile, content: Content, time: int, progress: Progress) -> None:
    tar.addfile(_member("Files", _DIRECTORY, time))
    for entry in content.entries:
        member = _member(
            f"Files/{entry.name}", entry.attributes, time, size=entry.size, link=entry.link
        )
        if member.isreg():
            _add_file(tar, member, entry, progress)
        else:
            tar.addfile(member)
        tar.getmembers().clear()  # tarfile keeps every member, and there may be millions
    tar.addfile(_member("Hives", _DIRECTORY, time))


def _add_file(
    tar: tarfile.TarFile, member: tarfile.TarInfo, entry: _Entry, progress: Progress
) -> None:
    with _reading(entry.source):
        file = entry.source.open("rb")
    with file:
        tar.addfile(member, cast(IO[bytes], _Watched(file, entry, progress)))


class _Watched:
    """A file that is read into a layer: what comes of it is reported, and it must not shrink."""

    def __init__(self, file: BinaryIO, entry: _Entry, progress: Progress) -> None:
        self._file = file
        self._entry = entry
        self._progress = progress

    def read(self, size: int) -> bytes:
        with _reading(self._entry.source):
            data = self._file.read(size)
        if len(data) < size:
            raise InvalidInput(
                f"{self._entry.source} became shorter while it was packed.",
                "Pack a directory that nothing writes to.",
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
            "Set TMPDIR to a directory with more room.",
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
    """Every entry, a directory before what is in it, in the order of names."""
    waiting = [(root, "")]
    while waiting:
        path, name = waiting.pop()
        if name:
            entry = _read_entry(root, path, name, problems)
            if entry is None:
                continue
            yield entry
            if entry.link or not entry.attributes & _DIRECTORY:
                continue
        children = _list_names(path, problems)
        _check_names(name, children, problems)
        waiting += [
            (path / child, f"{name}/{child}" if name else child) for child in children[::-1]
        ]


def _list_names(path: Path, problems: list[str]) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - plain names are all that is wanted
    except OSError as error:
        problems.append(f"{_shown(str(path))} cannot be read ({error.strerror})")
        return []


def _check_names(directory: str, names: Sequence[str], problems: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        shown = _shown(f"{directory}/{name}" if directory else name)
        problem = name_problem(name)
        if not _is_unicode(name):
            problem = "it is not UTF-8"
        elif name.startswith(_WHITEOUT):
            problem = f"{_WHITEOUT} marks a deleted file in an image"
        if problem:
            problems.append(f"{shown} ({problem})")
        other = seen.setdefault(collision_key(name), name)
        if other != name:
            problems.append(f"{shown} and {_shown(other)} differ only in case")


def _read_entry(root: Path, path: Path, name: str, problems: list[str]) -> _Entry | None:
    try:
        status = path.lstat()
    except OSError as error:
        problems.append(f"{_shown(name)} cannot be read ({error.strerror})")
        return None
    if stat.S_ISDIR(status.st_mode):
        return _Entry(path, name, _DIRECTORY)
    if stat.S_ISREG(status.st_mode):
        return _Entry(path, name, _ARCHIVE, size=status.st_size)
    if stat.S_ISLNK(status.st_mode):
        return _read_link(root, path, name, problems)
    problems.append(f"{_shown(name)} is a socket, a pipe or a device")
    return None


def _read_link(root: Path, path: Path, name: str, problems: list[str]) -> _Entry | None:
    """A link to something inside, as a relative one, so that the place of DIR is not in it."""
    target = os.path.realpath(path)
    if Path(target) != root and root not in Path(target).parents:
        problems.append(f"{_shown(name)} is a link to {_shown(str(path.readlink()))}, outside")
        return None
    link = os.fspath(path.readlink())
    if Path(link).is_absolute() or _climbs_out(name, link):
        link = os.path.relpath(target, path.parent)
    attributes = _REPARSE_POINT | (_DIRECTORY if path.is_dir() else 0)
    return _Entry(path, name, attributes, link=link)


def _climbs_out(name: str, link: str) -> bool:
    """Whether a relative link goes up past DIR, on its way back into it."""
    return os.path.normpath(Path(name).parent / link).startswith("..")


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: str) -> str:
    return '"' + name.encode(errors="backslashreplace").decode() + '"'


def _parse_command(text: str, option: str) -> tuple[str, ...]:
    """A JSON array of arguments, or a command line that is split as Windows does."""
    if not text.lstrip().startswith("["):
        return tuple(command_line.split(text.strip()))
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"--{option} begins like a JSON array, but is none: {error}.",
            """Write '["C:\\\\app\\\\app.exe", "arg"]', or a command line.""",
        ) from None
    if not all(isinstance(word, str) for word in words):
        raise InvalidInput(f"--{option} is a JSON array, but not of text only.")
    command_line.join(words)
    return tuple(words)


def _pairs(texts: Sequence[str], what: str, *, key: Callable[[str], str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    seen: set[str] = set()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f'"{text}" is not {what}.', "Write NAME=VALUE.")
        if key(name) in seen:
            raise InvalidInput(f'"{name}" is given twice as {what}.', "Give it once.")
        seen.add(key(name))
        pairs[name] = value
    return pairs


def _parse_port(text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,5})(?:/(tcp|udp))?", text)
    if not match or not 1 <= int(match[1]) <= 65535:
        raise InvalidInput(f'"{text}" is not a port.', "Write 1 to 65535, with /tcp or /udp.")
    return f"{int(match[1])}/{match[2] or 'tcp'}"

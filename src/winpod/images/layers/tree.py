"""Writer of layer entries as directory trees that overlayfs can stack.

Nothing is written outside the target. Names are validated; directories are opened relative to the
target with `openat2`, which refuses symlinks and paths that leave it; files are created in them by
a single name. Symbolic links are created last, after all content. The type of each name is tracked
in memory, so the disk is never consulted.

Names are compared case-insensitively, as Windows does: two spellings are one directory, and the
later of two files wins, under the name of the first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winpod.images.errors import CorruptContent, LimitExceeded
from winpod.images.layers.names import NameMap, name_key, relative_link, resolve_link
from winpod.images.layers.tar import EntryType, TarEntry, TarStream, quote_name
from winpod.images.layers.whiteouts import (
    AUFS_PREFIX,
    OPAQUE_WHITEOUT,
    WHITEOUT_PREFIX,
    create_whiteout,
    set_opaque,
)
from winpod.windows.paths import invalid_name_reason


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    size: int = 64 << 30
    """Bytes of the archive, uncompressed."""
    entries: int = 500_000
    depth: int = 128
    path: int = 3500
    """Bytes of a path in C:, so that the full path on the host stays below PATH_MAX."""


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    diff_id: str
    size: int
    """Bytes of its files."""
    entries: int
    has_hives: bool
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Kinds of content that are not unpacked, with the number of occurrences."""


FILES, HIVES, UTILITY_VM = "Files", "Hives", "UtilityVM"
DOS_ATTRIBUTES = "user.DOSATTRIB"

DESCRIPTORS = "security descriptors"
STREAMS = "alternate data streams"
UTILITY_VM_ENTRIES = "entries of the utility VM"
OUTER_LINKS = "links that lead out of C:"

_TOP_DIRECTORIES = {name.upper(): name for name in (FILES, HIVES, UTILITY_VM)}
_READ_ONLY, _HIDDEN, _SYSTEM = 0x1, 0x2, 0x4
_LONGEST_NAME = 255
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, eq=False)
class LayerDirectory:
    path: str
    """Relative to the target, in the spelling on disk."""
    depth: int
    length: int
    names: NameMap | None
    children: dict[str, LayerDirectory | LayerFile | LayerLink] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    """Names of lower layers that this one deletes."""
    is_opaque: bool = False
    mtime: int | None = None
    attributes: int = 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def steps(self) -> list[str]:
        """The names from the root of C:."""
        return self.path.split("/")[1:]


@dataclass(slots=True, eq=False)
class LayerFile:
    name: str


@dataclass(slots=True, eq=False)
class LayerLink:
    name: str
    target: tuple[str, ...]


class LayerTree:
    """The tree of a layer that is being unpacked into a target directory."""

    def __init__(self, target: Path, limits: UnpackLimits, names: NameMap | None) -> None:
        self._limits = limits
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._current: tuple[LayerDirectory, int] | None = None
        self._entered: dict[str, LayerDirectory] = {}
        self._tops: dict[str, LayerDirectory] = {}
        self._names = names
        self._last = ""
        self.entries = 0
        self.size = 0
        self.left_out: Counter[str] = Counter()

    def close(self) -> None:
        self._close_current()
        os.close(self._root)

    @property
    def has_hives(self) -> bool:
        hives = self._tops.get(HIVES)
        children = hives.children.values() if hives else ()
        return any(isinstance(child, LayerFile) for child in children)

    def add(self, entry: TarEntry, source: TarStream) -> None:
        self._count()
        self.left_out[DESCRIPTORS] += entry.has_descriptor
        if ":" in entry.name and self._last and entry.name.startswith(self._last + ":"):
            self.left_out[STREAMS] += 1
            return
        path = _normalise(entry.name)
        parent, _, name = path.rpartition("/")
        if not parent or name in (".", ".."):
            self._add_top(path, entry)
            return
        directory = self._enter(parent)
        if directory is None:
            self.left_out[UTILITY_VM_ENTRIES] += 1
        elif name.startswith(WHITEOUT_PREFIX):
            self._add_whiteout(directory, name, entry)
        else:
            self._add_to(directory, name, entry, source)
            self._last = entry.name.rstrip("/")

    def _add_top(self, path: str, entry: TarEntry) -> None:
        """Add a top-level directory, or one whose path ends in `.`."""
        directory = self._enter(path)
        if directory is None:
            self.left_out[UTILITY_VM_ENTRIES] += path != "."
            return
        if entry.kind is not EntryType.DIRECTORY:
            raise CorruptContent(
                f"{quote_name(path)} in the layer is {entry.kind.value}, but must be a directory."
            )
        directory.mtime = entry.mtime

    def finish(self) -> list[tuple[str, str]]:
        """Create links and whiteouts; return the links as (path, target) from the root of C:."""
        if FILES not in self._tops:
            self._create_top(FILES)
        links = []
        pending = list(self._tops.values())
        while pending:
            directory = pending.pop()
            for child in directory.children.values():
                if isinstance(child, LayerDirectory):
                    pending.append(child)
                elif isinstance(child, LayerLink):
                    links.append(self._create_link(directory, child))
            self._create_whiteouts(directory)
            self._apply_metadata(directory)
        return links

    def _count(self) -> None:
        self.entries += 1
        if self.entries > self._limits.entries:
            raise LimitExceeded(
                f"The layer has more than {self._limits.entries} entries, which is the limit."
            )

    def _enter(self, path: str) -> LayerDirectory | None:
        """Return the directory at a path of the layer, or None in the utility VM."""
        if path in self._entered:
            return self._entered[path]
        steps = [step for step in path.split("/") if step not in ("", ".")]
        if ".." in steps:
            raise CorruptContent(f"{quote_name(path)} in the layer refers to a parent directory.")
        if not steps:
            return None
        top = _TOP_DIRECTORIES.get(steps[0].upper())
        if top is None:
            raise CorruptContent(
                f"The layer has {quote_name(steps[0])} at its top level, where a Windows layer "
                f"has {FILES} and {HIVES}.",
                "It is a layer of a Linux image, or was created by a tool that does not support "
                "Windows layers.",
            )
        directory = None if top == UTILITY_VM else self._tops.get(top) or self._create_top(top)
        for step in steps[1:]:
            if directory is not None:
                if name_key(step) not in directory.children:
                    self._count()
                directory = self._subdirectory(directory, step)
        if directory is not None and len(path) <= self._limits.path:
            self._entered[path] = directory
        return directory

    def _create_top(self, name: str) -> LayerDirectory:
        os.mkdir(name, 0o755, dir_fd=self._root)
        created = LayerDirectory(name, 0, 0, self._names if name == FILES else None)
        self._tops[name] = created
        return created

    def _subdirectory(self, directory: LayerDirectory, step: str) -> LayerDirectory:
        """Return a subdirectory, creating it if the layer has no entry for it yet."""
        existing = directory.children.get(name_key(step))
        if isinstance(existing, LayerDirectory):
            return existing
        if existing is not None:
            kind = "a link" if isinstance(existing, LayerLink) else "a file"
            raise CorruptContent(
                f"{quote_name(f'{directory.path}/{step}')} in the layer is {kind} and a directory."
            )
        name, length = self._spell(directory, step)
        os.mkdir(name, 0o755, dir_fd=self._open(directory))
        names = directory.names.children.get(name_key(step)) if directory.names else None
        created = LayerDirectory(f"{directory.path}/{name}", directory.depth + 1, length, names)
        directory.children[name_key(step)] = created
        return created

    def _spell(self, directory: LayerDirectory, name: str) -> tuple[str, int]:
        """Return the spelling of a new name and the length of its path, or raise if invalid."""
        problem = invalid_name_reason(name)
        size = len(name) if name.isascii() else len(name.encode())
        if not problem and size > _LONGEST_NAME:
            problem = f"it is longer than {_LONGEST_NAME} bytes"
        if problem:
            path = quote_name(f"{directory.path}/{name}")
            raise CorruptContent(
                f"{path} in the layer is not a valid Windows file name: {problem}."
            )
        length = directory.length + 1 + size
        if directory.depth >= self._limits.depth or length > self._limits.path:
            raise LimitExceeded(
                f"{quote_name(f'{directory.path}/{name}')} in the layer is too deep: at most "
                f"{self._limits.depth} directories and {self._limits.path} bytes of path are "
                "allowed."
            )
        known = directory.names.children.get(name_key(name)) if directory.names else None
        return (known.name if known else name), length

    def _add_to(
        self, directory: LayerDirectory, name: str, entry: TarEntry, source: TarStream
    ) -> None:
        match entry.kind:
            case EntryType.FILE:
                self._add_file(directory, name, entry, source)
            case EntryType.DIRECTORY:
                self._set_metadata(self._subdirectory(directory, name), entry)
            case EntryType.HARD_LINK:
                self._add_hard_link(directory, name, entry)
            case EntryType.LINK:
                self._add_link(directory, name, entry)
            case kind:
                raise CorruptContent(
                    f"{quote_name(entry.name)} in the layer is {kind.value}, "
                    "which Windows does not support."
                )

    def _set_metadata(self, directory: LayerDirectory, entry: TarEntry) -> None:
        directory.mtime = entry.mtime
        directory.attributes = entry.attributes

    def _add_file(
        self, directory: LayerDirectory, name: str, entry: TarEntry, source: TarStream
    ) -> None:
        if self.size + entry.size > self._limits.size:
            raise limit_exceeded_error(self._limits)
        name = self._claim_name(directory, name, entry).name
        mode = 0o444 if entry.attributes & _READ_ONLY else 0o644
        file = os.open(name, _CREATE, mode, dir_fd=self._open(directory))
        try:
            source.copy(entry.size, file)
            _set_dos_attributes(file, entry.attributes)
            os.fchmod(file, mode)
            os.utime(file, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(file)
        self.size += entry.size

    def _claim_name(self, directory: LayerDirectory, name: str, entry: TarEntry) -> LayerFile:
        """Return the name for a new file, removing an earlier file of that name."""
        key = name_key(name)
        existing = directory.children.get(key)
        if isinstance(existing, LayerDirectory):
            raise CorruptContent(
                f"{quote_name(entry.name)} in the layer is a directory and {entry.kind.value}."
            )
        if isinstance(existing, LayerFile):
            os.unlink(existing.name, dir_fd=self._open(directory))
            return existing
        created = LayerFile(existing.name if existing else self._spell(directory, name)[0])
        directory.children[key] = created
        return created

    def _add_hard_link(self, directory: LayerDirectory, name: str, entry: TarEntry) -> None:
        parent, _, last = entry.link.rpartition("/")
        steps = [step for step in parent.split("/") if step not in ("", ".")]
        origin = self._find(steps) if not entry.link.startswith("/") else None
        target = origin.children.get(name_key(last)) if origin else None
        if origin is None or not isinstance(target, LayerFile):
            raise CorruptContent(
                f"{quote_name(entry.name)} in the layer is a hard link to "
                f"{quote_name(entry.link)}, which is not an earlier file of the layer."
            )
        if directory.children.get(name_key(name)) is target:
            return
        link = self._claim_name(directory, name, entry).name
        with self._opened(origin.path) as origin_fd:
            os.link(
                target.name,
                link,
                src_dir_fd=origin_fd,
                dst_dir_fd=self._open(directory),
                follow_symlinks=False,
            )

    def _find(self, steps: Sequence[str]) -> LayerDirectory | None:
        """Return an existing directory by its path from the top, or None."""
        directory = self._tops.get(_TOP_DIRECTORIES.get(steps[0].upper(), "")) if steps else None
        for step in steps[1:]:
            child = directory.children.get(name_key(step)) if directory else None
            directory = child if isinstance(child, LayerDirectory) else None
        return directory

    def _add_link(self, directory: LayerDirectory, name: str, entry: TarEntry) -> None:
        if directory.path.partition("/")[0] != FILES:
            raise CorruptContent(
                f"{quote_name(entry.name)} in the layer is a link, but only files are allowed."
            )
        if not entry.link:
            raise CorruptContent(
                f"{quote_name(entry.name)} in the layer is a link without a target."
            )
        target = resolve_link(entry.link, directory.steps)
        if target is None:
            self.left_out[OUTER_LINKS] += 1
            return
        for step in target:
            if problem := invalid_name_reason(step):
                raise CorruptContent(
                    f"{quote_name(entry.name)} in the layer is a link to {quote_name(entry.link)}, "
                    f"which is not a valid Windows path: {problem}."
                )
        link = self._claim_name(directory, name, entry)
        if sum(len(step.encode()) + 1 for step in target) > self._limits.path:
            raise LimitExceeded(
                f"{quote_name(entry.name)} in the layer is a link to a path of more than "
                f"{self._limits.path} bytes."
            )
        directory.children[name_key(name)] = LayerLink(link.name, target)

    def _add_whiteout(self, directory: LayerDirectory, name: str, entry: TarEntry) -> None:
        if directory.path.partition("/")[0] != FILES:
            raise CorruptContent(
                f"{quote_name(entry.name)} in the layer is a whiteout outside of C:."
            )
        if name == OPAQUE_WHITEOUT:
            if not directory.depth:
                raise CorruptContent("The layer has an opaque whiteout of all of C:.")
            directory.is_opaque = True
        elif not name.startswith(AUFS_PREFIX):
            hidden = name.removeprefix(WHITEOUT_PREFIX)
            directory.hidden[name_key(hidden)] = self._spell(directory, hidden)[0]

    def _create_link(self, directory: LayerDirectory, link: LayerLink) -> tuple[str, str]:
        target = self._spelled_target(link.target)
        text = relative_link(target, directory.steps)
        os.symlink(text, link.name, dir_fd=self._open(directory))
        return "/".join([*directory.steps, link.name]), "/".join(target)

    def _spelled_target(self, steps: Sequence[str]) -> list[str]:
        """Return a target in the spelling on disk, because Unix is case-sensitive."""
        spelled = []
        directory: LayerDirectory | None = self._tops[FILES]
        names = self._names
        for step in steps:
            key = name_key(step)
            child = directory.children.get(key) if directory else None
            names = names.children.get(key) if names else None
            known = child or names
            spelled.append(known.name if known else step)
            directory = child if isinstance(child, LayerDirectory) else None
        return spelled

    def _create_whiteouts(self, directory: LayerDirectory) -> None:
        for key, name in directory.hidden.items():
            child = directory.children.get(key)
            if isinstance(child, LayerDirectory):
                child.is_opaque = True
            elif child is None:
                create_whiteout(name, self._open(directory))

    def _apply_metadata(self, directory: LayerDirectory) -> None:
        file = self._open(directory)
        if directory.is_opaque:
            set_opaque(file)
        _set_dos_attributes(file, directory.attributes)
        os.fchmod(file, 0o755)
        if directory.mtime is not None:
            os.utime(file, ns=(directory.mtime, directory.mtime))

    def _open(self, directory: LayerDirectory) -> int:
        """Return a file descriptor of a directory, valid until the next call."""
        if self._current and self._current[0] is directory:
            return self._current[1]
        self._close_current()
        file = open_beneath(self._root, directory.path)
        self._current = (directory, file)
        return file

    def _close_current(self) -> None:
        if self._current:
            os.close(self._current[1])
            self._current = None

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        file = open_beneath(self._root, path)
        try:
            yield file
        finally:
            os.close(file)


def _normalise(name: str) -> str:
    """Strip leading `./` and trailing slashes, and reject absolute names."""
    if name.startswith("/"):
        raise CorruptContent(f"{quote_name(name)} in the layer is an absolute path.")
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name.rstrip("/") or "."


def limit_exceeded_error(limits: UnpackLimits) -> LimitExceeded:
    return LimitExceeded(
        f"The layer unpacks to more than {limits.size} bytes, which is the limit.",
        "Raise the limit if the layer is expected to be this large.",
    )


def _set_dos_attributes(file: int, attributes: int) -> None:
    """Store the hidden and system attributes where Wine reads them; read-only is in the mode."""
    if kept := attributes & (_HIDDEN | _SYSTEM):
        try:
            os.setxattr(file, DOS_ATTRIBUTES, b"0x%x" % kept)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_HOW = _OpenHow(
    os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
    0,
    _NO_MAGIC_LINKS | _NO_SYMLINKS | _BENEATH,
)
_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(root: int, path: str) -> int:
    """Open a directory relative to another one, without following symlinks or leaving it."""
    result = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(_HOW),
        ctypes.c_size_t(ctypes.sizeof(_HOW)),
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int(result)

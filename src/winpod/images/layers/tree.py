"""The entries of a layer, written as trees that overlayfs can stack.

Nothing is written outside the target. Names are checked before they are used; a directory is opened
by its path from the target with `openat2`, which follows no link and leaves the target by no way;
what is made in it is named by one plain name. Symbolic links are made last, when no content is
written any more. What a name is was decided here, so the disk is never asked.

Names are compared as Windows does: one directory under two spellings is one directory, and the
later of two files wins, under the name of the first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winpod.images.errors import BadContent, LimitExceeded
from winpod.images.layers.limits import Limits
from winpod.images.layers.links import relative_link, target_of
from winpod.images.layers.names import NameMap, name_key
from winpod.images.layers.tar import Entry, Kind, Source, quoted
from winpod.windows.paths import name_problem

FILES, HIVES, UTILITY_VM = "Files", "Hives", "UtilityVM"
OPAQUE = "trusted.overlay.opaque"
DOS_ATTRIBUTES = "user.DOSATTRIB"

DESCRIPTORS = "security descriptors"
STREAMS = "alternate data streams"
UTILITY_VM_ENTRIES = "entries of the utility VM"
OUTER_LINKS = "links that lead out of C:"

_TOPS = {name.upper(): name for name in (FILES, HIVES, UTILITY_VM)}
_WHITEOUT, _OPAQUE_MARK, _OTHER_MARK = ".wh.", ".wh..wh..opq", ".wh..wh."
_READ_ONLY, _HIDDEN, _SYSTEM = 0x1, 0x2, 0x4
_LONGEST_NAME = 255
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, eq=False)
class Directory:
    path: str
    """From the target, as it is on disk."""
    depth: int
    length: int
    names: NameMap | None
    children: dict[str, Directory | File | Link] = field(default_factory=dict)
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
class File:
    name: str


@dataclass(slots=True, eq=False)
class Link:
    name: str
    target: tuple[str, ...]


class Tree:
    """What a layer makes of its target."""

    def __init__(self, target: Path, limits: Limits, names: NameMap | None) -> None:
        self._limits = limits
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._current: tuple[Directory, int] | None = None
        self._entered: dict[str, Directory] = {}
        self._tops: dict[str, Directory] = {}
        self._names = names
        self._last = ""
        self.entries = 0
        self.size = 0
        self.left_out: Counter[str] = Counter()

    def close(self) -> None:
        self._leave()
        os.close(self._root)

    @property
    def has_hives(self) -> bool:
        hives = self._tops.get(HIVES)
        found = hives.children.values() if hives else ()
        return any(isinstance(one, File) for one in found)

    def add(self, entry: Entry, source: Source) -> None:
        self._count()
        self.left_out[DESCRIPTORS] += entry.has_descriptor
        if ":" in entry.name and self._last and entry.name.startswith(self._last + ":"):
            self.left_out[STREAMS] += 1
            return
        path = _plain(entry.name)
        parent, _, name = path.rpartition("/")
        if not parent or name in (".", ".."):
            self._add_known(path, entry)
            return
        directory = self._enter(parent)
        if directory is None:
            self.left_out[UTILITY_VM_ENTRIES] += 1
        elif name.startswith(_WHITEOUT):
            self._hide(directory, name, entry)
        else:
            self._add_to(directory, name, entry, source)
            self._last = entry.name.rstrip("/")

    def _add_known(self, path: str, entry: Entry) -> None:
        """The directories at the top, and those that are called by `.`."""
        directory = self._enter(path)
        if directory is None:
            self.left_out[UTILITY_VM_ENTRIES] += path != "."
            return
        if entry.kind is not Kind.DIRECTORY:
            raise BadContent(
                f"{quoted(path)} in the layer is {entry.kind.value}, and must be a directory."
            )
        directory.mtime = entry.mtime

    def finish(self) -> list[tuple[str, str]]:
        """Make links and whiteouts, and give the links as (path, target) from the root of C:."""
        if FILES not in self._tops:
            self._top(FILES)
        links = []
        waiting = list(self._tops.values())
        while waiting:
            directory = waiting.pop()
            for child in directory.children.values():
                if isinstance(child, Directory):
                    waiting.append(child)
                elif isinstance(child, Link):
                    links.append(self._make_link(directory, child))
            self._make_whiteouts(directory)
            self._seal(directory)
        return links

    def _count(self) -> None:
        self.entries += 1
        if self.entries > self._limits.entries:
            raise LimitExceeded(
                f"The layer has more than {self._limits.entries} entries, which is the limit."
            )

    def _enter(self, path: str) -> Directory | None:
        """The directory that a layer calls by this path, None in the utility VM."""
        if path in self._entered:
            return self._entered[path]
        steps = [step for step in path.split("/") if step not in ("", ".")]
        if ".." in steps:
            raise BadContent(f"{quoted(path)} in the layer leads out of its place.")
        if not steps:
            return None
        top = _TOPS.get(steps[0].upper())
        if top is None:
            raise BadContent(
                f"The layer has {quoted(steps[0])} at its top, where a layer of a Windows image "
                f"has {FILES} and {HIVES}.",
                "It is a layer of a Linux image, or was made by a tool that does not know Windows "
                "layers.",
            )
        found = None if top == UTILITY_VM else self._tops.get(top) or self._top(top)
        for step in steps[1:]:
            if found is not None:
                if name_key(step) not in found.children:
                    self._count()
                found = self._step(found, step)
        if found is not None and len(path) <= self._limits.path:
            self._entered[path] = found
        return found

    def _top(self, name: str) -> Directory:
        os.mkdir(name, 0o755, dir_fd=self._root)
        made = Directory(name, 0, 0, self._names if name == FILES else None)
        self._tops[name] = made
        return made

    def _step(self, directory: Directory, step: str) -> Directory:
        """A directory in a directory, made where the layer has not told of it yet."""
        known = directory.children.get(name_key(step))
        if isinstance(known, Directory):
            return known
        if known is not None:
            what = "a link" if isinstance(known, Link) else "a file"
            raise BadContent(
                f"{quoted(f'{directory.path}/{step}')} in the layer is {what} and a directory."
            )
        name, length = self._spell(directory, step)
        os.mkdir(name, 0o755, dir_fd=self._open(directory))
        names = directory.names.beneath.get(name_key(step)) if directory.names else None
        made = Directory(f"{directory.path}/{name}", directory.depth + 1, length, names)
        directory.children[name_key(step)] = made
        return made

    def _spell(self, directory: Directory, name: str) -> tuple[str, int]:
        """How a new name is spelled, and how long its path is; or why it cannot be."""
        problem = name_problem(name)
        size = len(name) if name.isascii() else len(name.encode())
        if not problem and size > _LONGEST_NAME:
            problem = f"it is longer than {_LONGEST_NAME} bytes"
        if problem:
            path = quoted(f"{directory.path}/{name}")
            raise BadContent(f"{path} in the layer cannot be a file on Windows: {problem}.")
        length = directory.length + 1 + size
        if directory.depth >= self._limits.depth or length > self._limits.path:
            raise LimitExceeded(
                f"{quoted(f'{directory.path}/{name}')} in the layer is too deep: at most "
                f"{self._limits.depth} directories and {self._limits.path} bytes of path are "
                "unpacked."
            )
        known = directory.names.beneath.get(name_key(name)) if directory.names else None
        return (known.name if known else name), length

    def _add_to(self, directory: Directory, name: str, entry: Entry, source: Source) -> None:
        match entry.kind:
            case Kind.FILE:
                self._add_file(directory, name, entry, source)
            case Kind.DIRECTORY:
                self._describe(self._step(directory, name), entry)
            case Kind.HARD_LINK:
                self._add_hard_link(directory, name, entry)
            case Kind.LINK:
                self._add_link(directory, name, entry)
            case kind:
                raise BadContent(
                    f"{quoted(entry.name)} in the layer is {kind.value}, which Windows does not "
                    "have."
                )

    def _describe(self, directory: Directory, entry: Entry) -> None:
        directory.mtime = entry.mtime
        directory.attributes = entry.attributes

    def _add_file(self, directory: Directory, name: str, entry: Entry, source: Source) -> None:
        if self.size + entry.size > self._limits.size:
            raise too_large(self._limits)
        name = self._place(directory, name, entry).name
        mode = 0o444 if entry.attributes & _READ_ONLY else 0o644
        file = os.open(name, _CREATE, mode, dir_fd=self._open(directory))
        try:
            source.copy(entry.size, file)
            _keep_attributes(file, entry.attributes)
            os.fchmod(file, mode)
            os.utime(file, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(file)
        self.size += entry.size

    def _place(self, directory: Directory, name: str, entry: Entry) -> File:
        """A name for a new file, where an earlier one of that name has gone."""
        key = name_key(name)
        known = directory.children.get(key)
        if isinstance(known, Directory):
            raise BadContent(
                f"{quoted(entry.name)} in the layer is a directory and {entry.kind.value}."
            )
        if isinstance(known, File):
            os.unlink(known.name, dir_fd=self._open(directory))
            return known
        made = File(known.name if known else self._spell(directory, name)[0])
        directory.children[key] = made
        return made

    def _add_hard_link(self, directory: Directory, name: str, entry: Entry) -> None:
        parent, _, last = entry.link.rpartition("/")
        steps = [step for step in parent.split("/") if step not in ("", ".")]
        place = self._find(steps) if not entry.link.startswith("/") else None
        target = place.children.get(name_key(last)) if place else None
        if place is None or not isinstance(target, File):
            raise BadContent(
                f"{quoted(entry.name)} in the layer is a hard link to {quoted(entry.link)}, which "
                "is not a file that the layer had before it."
            )
        if directory.children.get(name_key(name)) is target:
            return
        made = self._place(directory, name, entry).name
        with self._opened(place.path) as origin:
            os.link(
                target.name,
                made,
                src_dir_fd=origin,
                dst_dir_fd=self._open(directory),
                follow_symlinks=False,
            )

    def _find(self, steps: Sequence[str]) -> Directory | None:
        """A directory that the layer has already, by its path from the top."""
        found = self._tops.get(_TOPS.get(steps[0].upper(), "")) if steps else None
        for step in steps[1:]:
            child = found.children.get(name_key(step)) if found else None
            found = child if isinstance(child, Directory) else None
        return found

    def _add_link(self, directory: Directory, name: str, entry: Entry) -> None:
        if directory.path.partition("/")[0] != FILES:
            raise BadContent(f"{quoted(entry.name)} in the layer is a link, where only files are.")
        if not entry.link:
            raise BadContent(f"{quoted(entry.name)} in the layer is a link to nothing.")
        target = target_of(entry.link, directory.steps)
        if target is None:
            self.left_out[OUTER_LINKS] += 1
            return
        for step in target:
            if problem := name_problem(step):
                raise BadContent(
                    f"{quoted(entry.name)} in the layer is a link to {quoted(entry.link)}, which "
                    f"cannot be on Windows: {problem}."
                )
        made = self._place(directory, name, entry)
        if sum(len(step.encode()) + 1 for step in target) > self._limits.path:
            raise LimitExceeded(
                f"{quoted(entry.name)} in the layer is a link to a path of more than "
                f"{self._limits.path} bytes."
            )
        directory.children[name_key(name)] = Link(made.name, target)

    def _hide(self, directory: Directory, name: str, entry: Entry) -> None:
        if directory.path.partition("/")[0] != FILES:
            raise BadContent(f"{quoted(entry.name)} in the layer deletes what is no file of C:.")
        if name == _OPAQUE_MARK:
            if not directory.depth:
                raise BadContent("The layer hides all of C:, and Windows with it.")
            directory.is_opaque = True
        elif not name.startswith(_OTHER_MARK):
            hidden = name.removeprefix(_WHITEOUT)
            directory.hidden[name_key(hidden)] = self._spell(directory, hidden)[0]

    def _make_link(self, directory: Directory, link: Link) -> tuple[str, str]:
        target = self._spelled_target(link.target)
        text = relative_link(target, directory.steps)
        os.symlink(text, link.name, dir_fd=self._open(directory))
        return "/".join([*directory.steps, link.name]), "/".join(target)

    def _spelled_target(self, steps: Sequence[str]) -> list[str]:
        """A target with each name as it is on disk, because Unix is strict about case."""
        spelled = []
        place: Directory | None = self._tops[FILES]
        names = self._names
        for step in steps:
            key = name_key(step)
            child = place.children.get(key) if place else None
            names = names.beneath.get(key) if names else None
            known = child or names
            spelled.append(known.name if known else step)
            place = child if isinstance(child, Directory) else None
        return spelled

    def _make_whiteouts(self, directory: Directory) -> None:
        for key, name in directory.hidden.items():
            child = directory.children.get(key)
            if isinstance(child, Directory):
                child.is_opaque = True
            elif child is None:
                device = os.makedev(0, 0)
                os.mknod(name, stat.S_IFCHR | 0o600, device, dir_fd=self._open(directory))

    def _seal(self, directory: Directory) -> None:
        file = self._open(directory)
        if directory.is_opaque:
            os.setxattr(file, OPAQUE, b"y")
        _keep_attributes(file, directory.attributes)
        os.fchmod(file, 0o755)
        if directory.mtime is not None:
            os.utime(file, ns=(directory.mtime, directory.mtime))

    def _open(self, directory: Directory) -> int:
        """A descriptor of a directory, good until the next one is asked for."""
        if self._current and self._current[0] is directory:
            return self._current[1]
        self._leave()
        file = open_beneath(self._root, directory.path)
        self._current = (directory, file)
        return file

    def _leave(self) -> None:
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


def _plain(name: str) -> str:
    """A name without what leads nowhere at its ends."""
    if name.startswith("/"):
        raise BadContent(f"{quoted(name)} in the layer is an absolute name.")
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name.rstrip("/") or "."


def too_large(limits: Limits) -> LimitExceeded:
    return LimitExceeded(
        f"The layer unpacks to more than {limits.size} bytes, which is the limit.",
        "Allow larger layers if this one is meant to be so large.",
    )


def _keep_attributes(file: int, attributes: int) -> None:
    """Hidden and system, where Wine looks for them. Read-only it takes from the mode."""
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
    """Open a directory by its path from another, through directories only."""
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

"""The files of a layout on disk: those of a directory, or of an archive of one."""

from __future__ import annotations

import io
import lzma
import posixpath
import shutil
import tarfile
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from winpod.images.errors import BadContent
from winpod.windows.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and where in it something begins."""

    path: Path
    offset: int = 0


class Files(Protocol):
    def read(self, name: str, limit: int) -> bytes | None:
        """A file's content, or None where there is no such file."""

    def size(self, name: str) -> int | None: ...

    def place(self, name: str) -> Place | None:
        """Where its bytes lie plainly, or None where they are compressed."""

    def copy(self, name: str, target: Path) -> None: ...

    def close(self) -> None: ...


class Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with (self._path / name).open("rb") as file:
                data = file.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InvalidInput(f"{self._path / name} cannot be read: {error.strerror}.") from None
        _refuse_larger(len(data), limit, f"{self._path / name}")
        return data

    def size(self, name: str) -> int | None:
        try:
            return (self._path / name).stat().st_size
        except OSError:
            return None

    def place(self, name: str) -> Place:
        return Place(self._path / name)

    def copy(self, name: str, target: Path) -> None:
        shutil.copyfile(self._path / name, target)

    def close(self) -> None:
        pass


_DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)


class Archive:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._tar = tarfile.open(path)  # noqa: SIM115 - closed by close()
            self._is_plain = type(self._tar.fileobj) in (io.BufferedReader, io.FileIO)
            members = self._tar.getmembers()
        except _DAMAGED as error:
            found = str(error).partition("\n")[0].rstrip(":.")
            raise InvalidInput(
                f"{path} is not a whole tar archive: {found}.",
                "Give an OCI layout or an archive of one.",
            ) from None
        self._members = {str(PurePosixPath(member.name)): member for member in members}

    def read(self, name: str, limit: int) -> bytes | None:
        member = self._members.get(name)
        if member is None:
            return None
        with self._lock:
            try:
                file = self._tar.extractfile(member)
                data = b"" if file is None else file.read(limit + 1)
            except (KeyError, *_DAMAGED) as error:
                raise BadContent(f"{name} in {self._path} cannot be read: {error}.") from None
        _refuse_larger(len(data), limit, f"{name} in {self._path}")
        return data

    def size(self, name: str) -> int | None:
        member = self._member(name)
        return None if member is None else member.size

    def place(self, name: str) -> Place | None:
        member = self._member(name)
        return Place(self._path, member.offset_data) if member and self._is_plain else None

    def copy(self, name: str, target: Path) -> None:
        member = self._member(name)
        with self._lock, target.open("wb") as file:
            try:
                source = self._tar.extractfile(member) if member else None
                if source:
                    shutil.copyfileobj(source, file, 1 << 20)
            except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
                raise BadContent(f"{name} in {self._path} cannot be read: {error}.") from None

    def _member(self, name: str) -> tarfile.TarInfo | None:
        """A file; docker writes a layer once and links to it from other places."""
        member = self._members.get(name)
        if member and member.issym():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            member = self._members.get(target)
        return member if member and member.isreg() else None

    def close(self) -> None:
        self._tar.close()


def _refuse_larger(size: int, limit: int, name: str) -> None:
    if size > limit:
        raise BadContent(f"{name} is larger than {limit >> 20} MiB, so it is no manifest.")

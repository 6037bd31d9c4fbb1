"""A directory of files that changes all at once, as programs that watch a config map expect.

The files are in a directory of their own; `..data` is a link to it, and every visible name a link
through `..data`. A new content is written beside the old, and the one link is replaced.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_CURRENT = "..data"
_NEXT = "..data_tmp"

Files = Mapping[str, bytes]
"""Content by path, with slashes."""


def read_files(folder: Path) -> dict[str, bytes]:
    """What is there now."""
    current = folder / _CURRENT
    if not current.exists():
        return {}
    found = (path for path in current.resolve().rglob("*") if path.is_file())
    return {str(path.relative_to(current.resolve())): path.read_bytes() for path in found}


def write_files(folder: Path, files: Files) -> bool:
    """Make it the directory's content; whether anything had to be done."""
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    if (folder / _CURRENT).exists() and read_files(folder) == dict(files):
        return False
    place = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    place.chmod(0o755)
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    before = (folder / _CURRENT).readlink() if (folder / _CURRENT).is_symlink() else None
    (folder / _NEXT).unlink(missing_ok=True)
    (folder / _NEXT).symlink_to(place.name)
    (folder / _NEXT).replace(folder / _CURRENT)
    _show(folder, {name.partition("/")[0] for name in files})
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
    return True


def _show(folder: Path, names: set[str]) -> None:
    shown = {path.name for path in folder.iterdir() if not path.name.startswith("..")}
    for name in names - shown:
        (folder / name).symlink_to(f"{_CURRENT}/{name}")
    for name in shown - names:
        (folder / name).unlink()


def _sweep(folder: Path) -> None:
    """What a write left that was cut short."""
    current = (folder / _CURRENT).readlink().name if (folder / _CURRENT).is_symlink() else ""
    for path in folder.iterdir():
        is_content = path.name.startswith("..") and path.is_dir() and not path.is_symlink()
        if is_content and path.name != current:
            shutil.rmtree(path)

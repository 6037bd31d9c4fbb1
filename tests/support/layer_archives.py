"""Layers built entry by entry, and their content when mounted as an overlay."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.registries import program
from winpod.images.layers.names import NameMap
from winpod.images.layers.overlay import overlay_lowerdirs
from winpod.images.layers.tree import UnpackedLayer, UnpackLimits
from winpod.images.layers.unpack import unpack_layer

TIME = 1_600_000_000


@dataclass(frozen=True)
class Item:
    name: str
    content: bytes = b""
    type: bytes = tarfile.REGTYPE
    link: str = ""
    pax: Mapping[str, str] = field(default_factory=dict)
    mode: int = 0o644


def file(
    name: str, content: bytes = b"", attributes: int = 0x20, pax: Mapping[str, str] | None = None
) -> Item:
    return Item(name, content, pax={"MSWINDOWS.fileattr": str(attributes), **(pax or {})})


def folder(name: str, attributes: int = 0x10) -> Item:
    return Item(name, type=tarfile.DIRTYPE, pax={"MSWINDOWS.fileattr": str(attributes)})


def link(name: str, target: str) -> Item:
    return Item(name, type=tarfile.SYMTYPE, link=target)


def hard_link(name: str, target: str) -> Item:
    return Item(name, type=tarfile.LNKTYPE, link=target)


def archive(*items: Item, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for item in items:
            member = tarfile.TarInfo(item.name)
            member.type, member.linkname, member.mode = item.type, item.link, item.mode
            member.size, member.mtime, member.pax_headers = len(item.content), TIME, dict(item.pax)
            tar.addfile(member, io.BytesIO(item.content))
    return buffer.getvalue()


def unpack(
    layer: bytes | Iterable[bytes],
    target: Path,
    compression: str = "none",
    limits: UnpackLimits | None = None,
    names: NameMap | None = None,
) -> UnpackedLayer:
    target.mkdir(parents=True)
    chunks = (layer,) if isinstance(layer, bytes) else layer
    return unpack_layer(chunks, target, compression=compression, limits=limits, names=names)


def found(root: Path) -> dict[str, Any]:
    """Return a directory's content: bytes of files, None for directories, text for other types."""
    everything: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(root))
        if stat.S_ISDIR(mode):
            everything[name] = None
        elif stat.S_ISLNK(mode):
            everything[name] = f"-> {path.readlink()}"
        elif stat.S_ISCHR(mode) and path.lstat().st_rdev == os.makedev(0, 0):
            everything[name] = "whiteout"
        else:
            everything[name] = path.read_bytes()
    return everything


_LIST_OVERLAY = """
import json, os, sys
root = sys.argv[1]
files = {}
for place, _, names in os.walk(root):
    for name in names:
        path = os.path.join(place, name)
        if not os.path.islink(path):
            files[os.path.relpath(path, root)] = open(path).read()
read = {}
for path in sys.argv[2:]:
    try:
        read[path] = open(os.path.join(root, path)).read()
    except OSError as error:
        read[path] = error.strerror
print(json.dumps({"files": files, "read": read}))
"""


def merged(
    layers: Sequence[Path], workspace: Path, *, base: Path | None = None, read: Sequence[str] = ()
) -> dict[str, dict[str, str]]:
    """Mount unpacked layers as an overlay; return its files, and the result of opening some paths.

    It is mounted in a mount namespace that ends with the reading process.
    """
    scratch, mount, empty = workspace / "scratch", workspace / "mount", workspace / "empty"
    for directory in (scratch, mount, empty):
        directory.mkdir(parents=True)
    lower = [*overlay_lowerdirs(layers, scratch, base=base), empty]
    options = "lowerdir=" + ":".join(map(str, lower))
    script = 'mount -t overlay overlay -o "$1" "$2" && shift 2 && exec "$@"'
    unshare = [program("unshare", "util-linux"), "--mount", "sh", "-c", script, "sh"]
    command = [sys.executable, "-c", _LIST_OVERLAY, str(mount), *read]
    result = subprocess.run(
        [*unshare, options, str(mount), *command], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    answer: dict[str, dict[str, str]] = json.loads(result.stdout)
    return answer

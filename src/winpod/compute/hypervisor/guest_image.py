"""What a guest boots from: an archive with its first process, and the Wine base as a disk.

Both are made on the host, of nothing but the base, the kit and winpod's own programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from winpod.compute.hypervisor.kit import Kit, run_program
from winpod.compute.native import WAGENT, WGUEST, native_program
from winpod.images.base import Base
from winpod.images.base_prefix import UPDATES
from winpod.images.hives import compose_registry
from winpod.windows.builds import DEFAULT_HOST

_FOLDER, _PROGRAM, _FILE, _DEVICE = 0o040755, 0o100755, 0o100644, 0o020600
_CONSOLE = (5, 1)


def initial_archive(kit: Kit, base: Base) -> bytes:
    """What the kernel unpacks and starts, in cpio's newc format."""
    return b"".join(_entries(kit, base))


def _entries(kit: Kit, base: Base) -> Iterator[bytes]:
    yield _entry("dev", _FOLDER)
    yield _entry("dev/console", _DEVICE, device=_CONSOLE)
    yield _entry("init", _PROGRAM, native_program(WGUEST).read_bytes())
    for folder in ("modules", "winpod", "registry", "base", "drives", "volumes"):
        yield _entry(folder, _FOLDER)
    for number, module in enumerate(kit.modules):
        yield _entry(f"modules/{number:02}-{module.name}", _FILE, module.read_bytes())
    yield _entry(f"winpod/{WAGENT}", _PROGRAM, native_program(WAGENT).read_bytes())
    registry = compose_registry(base.prefix, DEFAULT_HOST, ()).files()
    for name, content in {**registry, UPDATES: b"disable\n"}.items():
        yield _entry(f"registry/{name}", _FILE, content)
    yield _entry("TRAILER!!!", 0)


def _entry(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    text = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(text), 0)
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + text
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def make_base_disk(kit: Kit, base: Base, target: Path) -> None:
    run_program(kit.mkfs_erofs("--quiet", str(target), str(base.path)))

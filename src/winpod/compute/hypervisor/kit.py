"""The hypervisor kit: QEMU, virtiofsd and a guest's kernel, from Debian's packages.

It is built on the machine that uses it, like the Wine base, and runs on any Linux: each program is
started with the kit's own libraries. A build happens in a directory whose name begins with a dot
and is renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from winpod.compute.errors import KitFailed
from winpod.images.base_packages import choose_mirrors, unpack_packages
from winpod.images.store_lock import FileLock

PACKAGES = (
    "qemu-system-x86",
    "virtiofsd",
    "erofs-utils",
    "e2fsprogs",
    "linux-image-cloud-amd64",
)
MODULES = (
    "libcrc32c",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "overlay",
    "erofs",
    "virtio_mem",
)
"""What the kernel has not built in and the guest needs, in the order they are loaded."""
LOADED_LATER = ("ntfs3",)
"""What a guest loads when it has to."""

OLDEST = 10
"""Of QEMU."""
_REVISION = 2
_SHORT = 12
_ALL_MODULES = (*MODULES, *LOADED_LATER)
_BUILDING = ".building-"
_RECORD = "kit.json"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_NEEDLESS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var")
_SETUP_SECTORS, _PAYLOAD_AT, _PAYLOAD_SIZE, _SECTOR = 0x1F1, 0x248, 0x24C, 512


@dataclass(frozen=True, slots=True)
class Kit:
    path: Path
    qemu_version: str

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def short_id(self) -> str:
        return self.id[:_SHORT]

    @property
    def tree(self) -> Path:
        return self.path / "tree"

    @property
    def kernel(self) -> Path:
        return self.path / "vmlinux"

    @property
    def modules(self) -> list[Path]:
        return [self.path / "modules" / f"{name}.ko" for name in MODULES]

    def qemu(self, *arguments: str) -> list[str]:
        data = [word for place in ("qemu", "seabios") for word in ("-L", self._data(place))]
        return self._program("usr/bin/qemu-system-x86_64", *data, *arguments)

    def virtiofsd(self, *arguments: str) -> list[str]:
        return self._program("usr/libexec/virtiofsd", *arguments)

    def mkfs_erofs(self, *arguments: str) -> list[str]:
        return self._program("usr/bin/mkfs.erofs", *arguments)

    def seen_at(self, place: str) -> Kit:
        """The same kit, as somebody sees it who has it mounted there."""
        return Kit(Path(place), self.qemu_version)

    def mke2fs(self, *arguments: str) -> list[str]:
        return self._program("usr/sbin/mke2fs", *arguments)

    def load_module(self, name: str) -> list[str]:
        return self._program("usr/sbin/insmod", str(self.path / "modules" / f"{name}.ko"))

    def _data(self, name: str) -> str:
        return str(self.tree / "usr/share" / name)

    def _program(self, name: str, *arguments: str) -> list[str]:
        loader = [str(self.tree / _LOADER), "--library-path", str(self.tree / _LIBRARIES)]
        return [*loader, str(self.tree / name), *arguments]


def find_kit(root: Path) -> Kit | None:
    folders = (path for path in (root / "kits").glob("*") if path.name[0] != ".")
    found = [kit for kit in map(_read, folders) if kit]
    return max(found, key=lambda kit: kit.path.stat().st_mtime, default=None)


def build_kit(
    root: Path,
    mirror: str = "",
    progress: Callable[[str], None] = lambda _: None,
    *,
    refresh: bool = False,
) -> Kit:
    """The one that is there, else built; `refresh` builds it anyway, and it takes the other's
    place."""
    folder = root / "kits"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(folder / ".lock")
    try:
        for left in folder.glob(f"{_BUILDING}*"):
            shutil.rmtree(left)
        existing = None if refresh else find_kit(root)
        return existing or _build(folder, mirror, progress)
    finally:
        lock.release()


def remove_kits(root: Path) -> bool:
    """With the guests that were kept of them; machines that run have their files open."""
    found = find_kit(root) is not None
    for folder in ("kits", "templates"):
        shutil.rmtree(root / folder, ignore_errors=True)
    return found


def _build(folder: Path, mirror: str, progress: Callable[[str], None]) -> Kit:
    work = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
    try:
        progress("downloading and unpacking QEMU and a kernel")
        packages = unpack_packages(
            work / "tree", choose_mirrors(mirror), with_32bit=False, packages=PACKAGES
        )
        version = _upstream(packages["qemu-system-x86"])
        refuse_old(version)
        progress("taking out what the guest needs")
        _extract_kernel(work)
        for name in _NEEDLESS:
            shutil.rmtree(work / "tree" / name, ignore_errors=True)
        decisive = {"revision": _REVISION, "packages": packages, "modules": _ALL_MODULES}
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        record = {**decisive, "qemu": version}
        (work / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        work.chmod(0o755)
        final = work.with_name(digest)
        put_in_place(work, final)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return _read(final) or _unreadable(final)


def put_in_place(work: Path, final: Path) -> None:
    """One of the same packages stays; machines that were made of others have their files open."""
    os.sync()
    if final.exists():
        shutil.rmtree(work)
    else:
        work.rename(final)
    for other in final.parent.iterdir():
        if other.name[0] != "." and other != final:
            shutil.rmtree(other)


def _read(path: Path) -> Kit | None:
    try:
        record = json.loads((path / _RECORD).read_bytes())
        return Kit(path, record["qemu"]) if record["revision"] == _REVISION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unreadable(path: Path) -> Kit:
    raise KitFailed(f"the hypervisor kit {path} cannot be read")


def refuse_old(version: str) -> None:
    """Of eleven guests with Wine five crashed in QEMU 7.2, and in 10 none of thirty-three."""
    if int(version.partition(".")[0]) < OLDEST:
        raise KitFailed(
            f"the mirror has QEMU {version}, in which guests with Wine crash; it has to be "
            f"{OLDEST} or newer, as in Debian 13"
        )


def _upstream(version: str) -> str:
    """`10.0.13` of `1:10.0.13+ds-0+deb13u1`."""
    return version.partition(":")[2].partition("+")[0].partition("-")[0]


def _extract_kernel(work: Path) -> None:
    """The kernel as QEMU starts it at once, and the modules as they are loaded."""
    tree = work / "tree"
    image = next((tree / "boot").glob("vmlinuz-*"), None)
    if image is None:
        raise KitFailed("Debian's kernel package has no kernel in it")
    (work / "vmlinux").write_bytes(unpack_kernel(image.read_bytes()))
    (work / "modules").mkdir()
    for name in _ALL_MODULES:
        packed = next((tree / "usr/lib/modules").rglob(f"{name}.ko.xz"), None)
        if packed is None:
            raise KitFailed(f"Debian's kernel has no module {name}")
        (work / "modules" / f"{name}.ko").write_bytes(lzma.decompress(packed.read_bytes()))
    shutil.rmtree(tree / "usr/lib/modules")
    shutil.rmtree(tree / "boot")


def unpack_kernel(image: bytes) -> bytes:
    """The ELF file inside of a compressed kernel."""
    header = (image[_SETUP_SECTORS] + 1) * _SECTOR
    start = header + _number(image, _PAYLOAD_AT)
    packed = image[start : start + _number(image, _PAYLOAD_SIZE)]
    kernel = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    if not kernel.startswith(b"\x7fELF"):
        raise KitFailed("Debian's kernel is not packed as expected")
    return kernel


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def run_program(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise KitFailed(f"{Path(command[3]).name}: {done.stderr.strip()[-500:]}")

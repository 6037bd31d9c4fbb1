"""The hypervisor assets: QEMU, virtiofsd and the guest's kernel, from Debian packages.

They are built on the host that uses them, like the Wine base, and run on any Linux: each program is
started with the assets' own libraries.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from winpod.artifacts import ArtifactDirectory, artifact_id
from winpod.compute.errors import HypervisorAssetsFailed
from winpod.files import remove_tree
from winpod.images.base.rootfs_builder import choose_mirrors, unpack_packages
from winpod.subprocesses import run_blocking

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
"""Modules that the guest needs and the kernel does not have built in, in load order."""
LOADED_LATER = ("ntfs3",)
"""Modules that a guest loads on demand."""

MIN_QEMU = 10
"""The oldest supported major version of QEMU."""
_REVISION = 2
_SHORT_ID = 12
_ALL_MODULES = (*MODULES, *LOADED_LATER)
_RECORD = "kit.json"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_UNUSED_PATHS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var")
_SETUP_SECTORS, _PAYLOAD_AT, _PAYLOAD_SIZE, _SECTOR = 0x1F1, 0x248, 0x24C, 512


@dataclass(frozen=True, slots=True)
class HypervisorAssets:
    path: Path
    qemu_version: str

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def short_id(self) -> str:
        return self.id[:_SHORT_ID]

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
        data = [option for name in ("qemu", "seabios") for option in ("-L", self._data(name))]
        return self._program("usr/bin/qemu-system-x86_64", *data, *arguments)

    def virtiofsd(self, *arguments: str) -> list[str]:
        return self._program("usr/libexec/virtiofsd", *arguments)

    def mkfs_erofs(self, *arguments: str) -> list[str]:
        return self._program("usr/bin/mkfs.erofs", *arguments)

    def relocated_to(self, path: str) -> HypervisorAssets:
        """Return the assets as mounted at another path."""
        return HypervisorAssets(Path(path), self.qemu_version)

    def mke2fs(self, *arguments: str) -> list[str]:
        return self._program("usr/sbin/mke2fs", *arguments)

    def load_module(self, name: str) -> list[str]:
        return self._program("usr/sbin/insmod", str(self.path / "modules" / f"{name}.ko"))

    def _data(self, name: str) -> str:
        return str(self.tree / "usr/share" / name)

    def _program(self, name: str, *arguments: str) -> list[str]:
        loader = [str(self.tree / _LOADER), "--library-path", str(self.tree / _LIBRARIES)]
        return [*loader, str(self.tree / name), *arguments]


def find_assets(root: Path) -> HypervisorAssets | None:
    candidates = [assets for assets in map(_read, _artifacts(root).complete()) if assets]
    return max(candidates, key=lambda assets: assets.path.stat().st_mtime, default=None)


def build_assets(
    root: Path,
    mirror: str = "",
    progress: Callable[[str], None] = lambda _: None,
    *,
    refresh: bool = False,
) -> HypervisorAssets:
    """Return the installed assets, or build them; `refresh` rebuilds and replaces them."""
    artifacts = _artifacts(root)
    with artifacts.lock():
        artifacts.sweep()
        existing = None if refresh else find_assets(root)
        return existing or _build(artifacts, mirror, progress)


def remove_assets(root: Path) -> bool:
    """Remove assets and templates. Running microVMs have their files open."""
    existed = find_assets(root) is not None
    for folder in ("kits", "templates"):
        remove_tree(root / folder, ignore_errors=True)
    return existed


def _artifacts(root: Path) -> ArtifactDirectory:
    return ArtifactDirectory(root / "kits")


def _build(
    artifacts: ArtifactDirectory, mirror: str, progress: Callable[[str], None]
) -> HypervisorAssets:
    with artifacts.building() as work:
        progress("downloading and unpacking QEMU and a kernel")
        packages = unpack_packages(
            work / "tree", choose_mirrors(mirror), with_32bit=False, packages=PACKAGES
        )
        version = _upstream_version(packages["qemu-system-x86"])
        require_qemu_version(version)
        progress("extracting the guest's kernel")
        _extract_kernel(work)
        for name in _UNUSED_PATHS:
            remove_tree(work / "tree" / name, ignore_errors=True)
        inputs = {"revision": _REVISION, "packages": packages, "modules": _ALL_MODULES}
        record = {**inputs, "qemu": version}
        (work / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        final = artifacts.save(work, artifact_id(inputs))
    artifacts.keep_only(final)  # running microVMs have their files open
    return _read(final) or _unreadable(final)


def _read(path: Path) -> HypervisorAssets | None:
    try:
        record = json.loads((path / _RECORD).read_bytes())
        return HypervisorAssets(path, record["qemu"]) if record["revision"] == _REVISION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unreadable(path: Path) -> HypervisorAssets:
    raise HypervisorAssetsFailed(f"the hypervisor assets {path} cannot be read")


def require_qemu_version(version: str) -> None:
    """Refuse QEMU before 10: with 7.2, 5 of 11 guests with Wine crashed; with 10, 0 of 33."""
    if int(version.partition(".")[0]) < MIN_QEMU:
        raise HypervisorAssetsFailed(
            f"the mirror has QEMU {version}, in which guests with Wine crash; "
            f"{MIN_QEMU} or newer is required, as in Debian 13"
        )


def _upstream_version(version: str) -> str:
    """Return `10.0.13` for `1:10.0.13+ds-0+deb13u1`."""
    return version.partition(":")[2].partition("+")[0].partition("-")[0]


def _extract_kernel(work: Path) -> None:
    """Extract the uncompressed kernel, which QEMU starts fastest, and the modules."""
    tree = work / "tree"
    image = next((tree / "boot").glob("vmlinuz-*"), None)
    if image is None:
        raise HypervisorAssetsFailed("Debian's kernel package contains no kernel")
    (work / "vmlinux").write_bytes(unpack_kernel(image.read_bytes()))
    (work / "modules").mkdir()
    for name in _ALL_MODULES:
        compressed = next((tree / "usr/lib/modules").rglob(f"{name}.ko.xz"), None)
        if compressed is None:
            raise HypervisorAssetsFailed(f"Debian's kernel has no module {name}")
        (work / "modules" / f"{name}.ko").write_bytes(lzma.decompress(compressed.read_bytes()))
    remove_tree(tree / "usr/lib/modules")
    remove_tree(tree / "boot")


def unpack_kernel(image: bytes) -> bytes:
    """Return the ELF file inside of a compressed kernel."""
    header = (image[_SETUP_SECTORS] + 1) * _SECTOR
    start = header + _number(image, _PAYLOAD_AT)
    compressed = image[start : start + _number(image, _PAYLOAD_SIZE)]
    kernel = zstandard.ZstdDecompressor().decompressobj().decompress(compressed)
    if not kernel.startswith(b"\x7fELF"):
        raise HypervisorAssetsFailed("Debian's kernel is not a zstd-compressed ELF file")
    return kernel


def _number(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")


def run_program(command: Sequence[str]) -> None:
    done = run_blocking(command)
    if done.code:
        raise HypervisorAssetsFailed(f"{Path(command[3]).name}: {done.error_text[-500:]}")

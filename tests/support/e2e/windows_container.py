"""Windows container for tests: an image's layer over a base, in plain runc."""

import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from winpod.images.base.build_container import BuildCommandResult, run_in_container
from winpod.images.base.builder import Base, prepare_prefix
from winpod.images.layers.names import NameMap
from winpod.images.layers.overlay import overlay_lowerdirs
from winpod.images.layers.unpack import unpack_layer
from winpod.windows.builds import Build

CHUNK = 1 << 20
PATIENCE = 300.0


def unpack_content(base: Base, content: Mapping[str, Path | str], folder: Path) -> Path:
    """Create a layer from files by their paths in C:, and unpack it."""
    archive = folder / "layer.tar"
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path, source in content.items():
            _add(tar, f"Files/{path}", source)
    layer = folder / "layer"
    layer.mkdir()
    with archive.open("rb") as file:
        chunks = iter(lambda: file.read(CHUNK), b"")
        unpack_layer(chunks, layer, compression="none", names=NameMap.read_drive(base.drive_c))
    archive.unlink()
    return layer


def link_base(root: Path, base: Base) -> None:
    """Link this base as the base of a root, regardless of bases that are built meanwhile."""
    own = root.with_name("bases")
    own.mkdir()
    (own / base.id).symlink_to(base.path)
    (root / "bases").symlink_to(own)


class Container:
    """Container with its own drive C:; each run is a cold start of Wine."""

    def __init__(self, base: Base, folder: Path) -> None:
        self.base = base
        self.folder = folder
        self.written = folder / "upper"

    def run(self, *command: str) -> BuildCommandResult:
        return run_in_container(
            self.base.rootfs,
            self.folder / "prefix",
            ["wine64", *command],
            self.folder,
            seconds=PATIENCE,
        )

    def run_in_cmd(self, command: str) -> BuildCommandResult:
        """Run a cmd line with its output in a file: libuv cannot write to a Unix pipe."""
        result = self.run("cmd", "/c", f"{command} >C:\\output.txt 2>&1")
        output = self.written / "output.txt"
        text = output.read_bytes().decode() if output.exists() else ""
        return BuildCommandResult(result.code, result.output + text, result.timed_out)


@contextmanager
def container(
    base: Base, build: Build, layers: Sequence[Path], folder: Path
) -> Iterator[Container]:
    folder.mkdir()
    for name in ("upper", "work", "scratch"):
        (folder / name).mkdir()
    prepare_prefix(base, build, layers, folder / "prefix")
    lower = overlay_lowerdirs(layers, folder / "scratch", base=base.drive_c)
    drive = folder / "prefix/drive_c"
    options = f"lowerdir={':'.join(map(str, lower))}"
    options += f",upperdir={folder / 'upper'},workdir={folder / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(drive)], check=True)
    try:
        yield Container(base, folder)
    finally:
        subprocess.run(["umount", str(drive)], check=True)


def _add(tar: tarfile.TarFile, name: str, source: Path | str) -> None:
    member = tarfile.TarInfo(name)
    if isinstance(source, str):
        data = source.encode()
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
        return
    member.size = source.stat().st_size
    with source.open("rb") as file:
        tar.addfile(member, file)

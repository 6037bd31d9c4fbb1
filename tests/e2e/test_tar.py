"""The tar of the base: compatibility with Python's, and containment of extraction."""

import gzip
import io
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.e2e.windows_container import Container, container

from winpod.images.base.builder import Base
from winpod.windows.builds import parse_build

Tree = dict[str, tuple[bytes | None, int]]
"""Maps a path to its content, or None for a directory, and its modification time."""

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ._-+=#%&'(){}[]~$!äéßçñłжя日本語한글🎉"
GIB = 1 << 30


@pytest.fixture(scope="module")
def windows(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container(
        base, parse_build("2022"), [], tmp_path_factory.mktemp("tar") / "one"
    ) as running:
        yield running


@pytest.fixture
def drive(windows: Container, request: pytest.FixtureRequest) -> Path:
    """Create a directory in C: for one test; its name is the same in Linux and Windows."""
    name = str(request.node.name).replace("[", "-").rstrip("]")
    directory = windows.folder / "prefix/drive_c" / name
    directory.mkdir()
    return directory


def make_tree(folder: Path, seed: int) -> None:
    """Create deep paths, long and non-ASCII names, files of many sizes, and empty directories."""
    rng = random.Random(seed)
    folders, files = [folder], []
    for _ in range(25):
        folders.append(rng.choice(folders[-3:]) / random_name(rng))
    for directory in rng.choices(folders, k=60):
        files.append(directory / random_name(rng))
    for directory in folders:
        directory.mkdir(parents=True, exist_ok=True)
    sizes = (0, 1, 511, 512, 513, 10240, 65536, 65537, 3_000_000)
    for file in files:
        file.write_bytes(rng.randbytes(rng.choice(sizes)))
    for path in (*files, *reversed(folders)):
        os.utime(path, (1, rng.randrange(1, 1 << 32)))


def random_name(rng: random.Random) -> str:
    size = rng.choice((3, 8, 20, 60))
    return "n" + "".join(rng.choices(LETTERS, k=size)) + "e"


def read_tree(folder: Path) -> Tree:
    found: Tree = {}
    for path in folder.rglob("*"):
        content = None if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = (content, int(path.stat().st_mtime))
    return found


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_python_archive_is_extracted(windows: Container, drive: Path, tar_format: int) -> None:
    source = windows.folder / f"source-{tar_format}"
    make_tree(source, seed=tar_format)
    with tarfile.open(drive / "in.tar", "w", format=tar_format) as archive:
        archive.add(source, ".")
    (drive / "out").mkdir()
    result = windows.run("cmd", "/c", rf"tar xf - -C C:\{drive.name}\out <C:\{drive.name}\in.tar")
    assert (result.code, result.output) == (0, "")
    assert read_tree(drive / "out") == read_tree(source)


def test_python_extracts_archive(windows: Container, drive: Path, tmp_path: Path) -> None:
    make_tree(drive / "tree", seed=7)
    result = windows.run("cmd", "/c", rf"tar -C C:\{drive.name} -cf C:\{drive.name}\out.tar .")
    assert (result.code, result.output) == (
        0,
        "tar: out.tar: it is the archive itself; skipped\r\n",
    )
    with tarfile.open(drive / "out.tar") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    assert read_tree(tmp_path / "tree") == read_tree(drive / "tree")


def pack(to: Path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(to, "w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))


def member(
    name: str, *, size: int = 0, kind: bytes = tarfile.REGTYPE, to: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, to
    return info


def test_unsafe_members_are_rejected_and_others_extracted(windows: Container, drive: Path) -> None:
    rejected = ("../up", "in/../../up", "..\\up", "/up", "\\up", "C:/up", "C:up", "a:stream", "a?")
    links = (
        member("symbolic", kind=tarfile.SYMTYPE, to="../"),
        member("symbolic/up", size=1),
        member("hard-out", kind=tarfile.LNKTYPE, to="../keep"),
        member("hard-in", kind=tarfile.LNKTYPE, to="good/file"),
    )
    (drive / "keep").write_bytes(b"kept")
    (drive / "out").mkdir()
    (drive / "out/good").mkdir()
    (drive / "out/good/file").write_bytes(b"old and longer")
    invalid = (member(name, size=600) for name in rejected)
    pack(drive / "in.tar", *invalid, member("./good//file", size=3), *links)
    result = windows.run("tar", "-xmf", rf"C:\{drive.name}\in.tar", "-C", f"/{drive.name}/out")
    assert result.code == 1
    lines = result.output.splitlines()
    for name in (*rejected, "symbolic", "hard-out"):
        assert any(line.startswith(f"tar: {name}: ") for line in lines), (name, lines)
    assert len(lines) == len(rejected) + 2
    assert {path.name for path in drive.iterdir()} == {"keep", "in.tar", "out"}
    assert {path: data for path, (data, _) in read_tree(drive / "out").items()} == {
        "good": None,
        "good/file": bytes(3),
        "hard-in": bytes(3),
        "symbolic": None,
        "symbolic/up": bytes(1),
    }


def corrupt(content: bytes) -> bytes:
    return content[:1024] + b"x" * 512 + content[1536:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "it is empty"),
        (lambda _: b"some words\n" * 99, "it is not a tar archive"),
        (corrupt, "it is damaged"),
        (lambda content: content[:1700], "unexpected end of archive"),
        (gzip.compress, "it is compressed, and winpod's tar does not decompress"),
    ],
    ids=["empty", "words", "damaged", "cut", "compressed"],
)
def test_invalid_archive_is_reported(
    windows: Container, drive: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    pack(drive / "in.tar", member("first", size=1), member("second", size=999))
    (drive / "in.tar").write_bytes(change((drive / "in.tar").read_bytes()))
    result = windows.run("cmd", "/c", rf"cd \{drive.name}& tar xf in.tar")
    assert result.code == 1
    assert message in result.output
    assert not (drive / "second").exists()


def test_sizes_beyond_octal_digits_are_supported(windows: Container, drive: Path) -> None:
    large = member("large", size=9 * GIB)
    with (drive / "in.tar").open("wb") as file:
        file.write(large.tobuf(tarfile.PAX_FORMAT))
        file.seek(9 * GIB, os.SEEK_CUR)
        file.write(large.tobuf(tarfile.GNU_FORMAT))
        file.seek(9 * GIB, os.SEEK_CUR)
        file.write(member("ä").tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    result = windows.run("tar", "tf", rf"C:\{drive.name}\in.tar")
    assert (result.code, result.output.split()) == (0, ["large", "large", "ä"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--version", 0, "tar of winpod"),
        ("-czf C:\\x.tgz C:\\windows", 1, "-z: winpod's tar does not compress"),
        ("xf -", 1, "the archive: it is empty"),
        ("xf C:\\none.tar", 1, "tar: C:\\none.tar: File not found"),
        ("cf NUL \\none \\windows\\win.ini", 1, "tar: none: File not found"),
        ("cf NUL -C C:\\none x", 1, "tar: C:\\none: "),
        ("cf NUL", 1, "no path to archive is given"),
        ("-xv", 1, "-f: the archive is required"),
        (
            "--strip-components=1 -xf -",
            1,
            "--strip-components: winpod's tar does not have this option",
        ),
    ],
)
def test_unsupported_operation_is_reported(
    windows: Container, arguments: str, code: int, message: str
) -> None:
    result = windows.run("tar", *arguments.split())
    assert (result.code, message in result.output) == (code, True), result.output

"""The base's tar and Python's understand each other, and nothing leads it out of its directory."""

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
"""What is at each path: a file's content, or None for a directory; and when it was written."""

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ._-+=#%&'(){}[]~$!äéßçñłжя日本語한글🎉"
GIB = 1 << 30


@pytest.fixture(scope="module")
def windows(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container(base, parse_build("2022"), [], tmp_path_factory.mktemp("tar") / "one") as one:
        yield one


@pytest.fixture
def drive(windows: Container, request: pytest.FixtureRequest) -> Path:
    """A directory of C: for one test, as Linux sees it; Windows has it by the same name."""
    name = str(request.node.name).replace("[", "-").rstrip("]")
    made = windows.folder / "prefix/drive_c" / name
    made.mkdir()
    return made


def make_tree(folder: Path, seed: int) -> None:
    """Deep, long and foreign names, files of all sizes around a block, and empty directories."""
    chance = random.Random(seed)
    folders, files = [folder], []
    for _ in range(25):
        folders.append(chance.choice(folders[-3:]) / name_of(chance))
    for at in chance.choices(folders, k=60):
        files.append(at / name_of(chance))
    for at in folders:
        at.mkdir(parents=True, exist_ok=True)
    sizes = (0, 1, 511, 512, 513, 10240, 65536, 65537, 3_000_000)
    for file in files:
        file.write_bytes(chance.randbytes(chance.choice(sizes)))
    for path in (*files, *reversed(folders)):
        os.utime(path, (1, chance.randrange(1, 1 << 32)))


def name_of(chance: random.Random) -> str:
    size = chance.choice((3, 8, 20, 60))
    return "n" + "".join(chance.choices(LETTERS, k=size)) + "e"


def tree_in(folder: Path) -> Tree:
    found: Tree = {}
    for path in folder.rglob("*"):
        content = None if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = (content, int(path.stat().st_mtime))
    return found


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_what_python_packs_is_unpacked(windows: Container, drive: Path, form: int) -> None:
    source = windows.folder / f"source-{form}"
    make_tree(source, seed=form)
    with tarfile.open(drive / "in.tar", "w", format=form) as archive:
        archive.add(source, ".")
    (drive / "out").mkdir()
    done = windows.run("cmd", "/c", rf"tar xf - -C C:\{drive.name}\out <C:\{drive.name}\in.tar")
    assert (done.code, done.output) == (0, "")
    assert tree_in(drive / "out") == tree_in(source)


def test_what_is_packed_python_unpacks(windows: Container, drive: Path, tmp_path: Path) -> None:
    make_tree(drive / "tree", seed=7)
    done = windows.run("cmd", "/c", rf"tar -C C:\{drive.name} -cf C:\{drive.name}\out.tar .")
    assert (done.code, done.output) == (
        0,
        "tar: out.tar: it is the archive itself; skipped\r\n",
    )
    with tarfile.open(drive / "out.tar") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    assert tree_in(tmp_path / "tree") == tree_in(drive / "tree")


def pack(to: Path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(to, "w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))


def member(
    name: str, *, size: int = 0, kind: bytes = tarfile.REGTYPE, to: str = ""
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type, made.linkname = size, kind, to
    return made


def test_what_leads_out_or_is_no_windows_name_is_refused_and_the_rest_unpacked(
    windows: Container, drive: Path
) -> None:
    refused = ("../up", "in/../../up", "..\\up", "/up", "\\up", "C:/up", "C:up", "a:stream", "a?")
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
    bad = (member(name, size=600) for name in refused)
    pack(drive / "in.tar", *bad, member("./good//file", size=3), *links)
    done = windows.run("tar", "-xmf", rf"C:\{drive.name}\in.tar", "-C", f"/{drive.name}/out")
    assert done.code == 1
    lines = done.output.splitlines()
    for name in (*refused, "symbolic", "hard-out"):
        assert any(line.startswith(f"tar: {name}: ") for line in lines), (name, lines)
    assert len(lines) == len(refused) + 2
    assert {path.name for path in drive.iterdir()} == {"keep", "in.tar", "out"}
    assert {path: what for path, (what, _) in tree_in(drive / "out").items()} == {
        "good": None,
        "good/file": bytes(3),
        "hard-in": bytes(3),
        "symbolic": None,
        "symbolic/up": bytes(1),
    }


def damaged(whole: bytes) -> bytes:
    return whole[:1024] + b"x" * 512 + whole[1536:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: b"", "it is empty"),
        (lambda _: b"some words\n" * 99, "it is not a tar archive"),
        (damaged, "it is damaged"),
        (lambda whole: whole[:1700], "unexpected end of archive"),
        (gzip.compress, "it is compressed, and winpod's tar does not decompress"),
    ],
    ids=["empty", "words", "damaged", "cut", "compressed"],
)
def test_what_is_no_whole_archive_is_named(
    windows: Container, drive: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    pack(drive / "in.tar", member("first", size=1), member("second", size=999))
    (drive / "in.tar").write_bytes(change((drive / "in.tar").read_bytes()))
    done = windows.run("cmd", "/c", rf"cd \{drive.name}& tar xf in.tar")
    assert done.code == 1
    assert said in done.output
    assert not (drive / "second").exists()


def test_sizes_beyond_octal_digits_are_read(windows: Container, drive: Path) -> None:
    large = member("large", size=9 * GIB)
    with (drive / "in.tar").open("wb") as file:
        file.write(large.tobuf(tarfile.PAX_FORMAT))
        file.seek(9 * GIB, os.SEEK_CUR)
        file.write(large.tobuf(tarfile.GNU_FORMAT))
        file.seek(9 * GIB, os.SEEK_CUR)
        file.write(member("ä").tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    done = windows.run("tar", "tf", rf"C:\{drive.name}\in.tar")
    assert (done.code, done.output.split()) == (0, ["large", "large", "ä"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
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
def test_what_cannot_be_done_is_a_sentence(
    windows: Container, arguments: str, code: int, said: str
) -> None:
    done = windows.run("tar", *arguments.split())
    assert (done.code, said in done.output) == (code, True), done.output

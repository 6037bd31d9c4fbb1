"""Hostile and malformed layers, each rejected with a message."""

import gzip
import io
import os
import signal
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.layer_archives import Item, archive, file, folder, found, hard_link, link, unpack
from winpod.errors import WinpodError
from winpod.images.errors import CorruptContent, LimitExceeded
from winpod.images.layers.tree import UnpackLimits

SMALL = UnpackLimits(size=2 << 20, entries=1000, depth=20, path=1000)

REFUSED: dict[str, tuple[bytes, type[WinpodError], str]] = {
    "up and out": (
        archive(file("Files/../../etc/cron.d/x", b"x")),
        CorruptContent,
        '"Files/../../etc/cron.d" in the layer refers to a parent directory.',
    ),
    "up at the end": (
        archive(folder("Files/a/..")),
        CorruptContent,
        '"Files/a/.." in the layer refers to a parent directory.',
    ),
    "up and back": (
        archive(file("Files/a/../b", b"x")),
        CorruptContent,
        '"Files/a/.." in the layer refers to a parent directory.',
    ),
    "up with backslashes": (
        archive(file(r"Files/..\..\x", b"x")),
        CorruptContent,
        r'"Files/..\..\x" in the layer is not a valid Windows file name: it has the character '
        r"'\\'.",
    ),
    "up in a whiteout": (
        archive(file("Files/d/.wh...")),
        CorruptContent,
        '"Files/d/.." in the layer is not a valid Windows file name: it is not a file name.',
    ),
    "a whiteout of nothing": (
        archive(file("Files/d/.wh.")),
        CorruptContent,
        '"Files/d/" in the layer is not a valid Windows file name: it is not a file name.',
    ),
    "absolute": (
        archive(file("/etc/passwd", b"x")),
        CorruptContent,
        '"/etc/passwd" in the layer is an absolute path.',
    ),
    "absolute among files": (
        archive(file("//Files/x", b"x")),
        CorruptContent,
        '"//Files/x" in the layer is an absolute path.',
    ),
    "a drive": (
        archive(file("Files/C:/x", b"x")),
        CorruptContent,
        "\"Files/C:\" in the layer is not a valid Windows file name: it has the character ':'.",
    ),
    "beneath a link": (
        archive(link("Files/l", "/etc"), file("Files/l/passwd", b"x")),
        CorruptContent,
        '"Files/l" in the layer is a link and a directory.',
    ),
    "beneath a link in another case": (
        archive(link("Files/l", "/etc"), file("Files/L/passwd", b"x")),
        CorruptContent,
        '"Files/L" in the layer is a link and a directory.',
    ),
    "a directory in place of a link": (
        archive(link("Files/l", ".."), folder("Files/l")),
        CorruptContent,
        '"Files/l" in the layer is a link and a directory.',
    ),
    "a link in place of a directory": (
        archive(file("Files/d/x"), link("Files/d", "/etc")),
        CorruptContent,
        '"Files/d" in the layer is a directory and a symbolic link.',
    ),
    "a link in place of all files": (
        archive(link("Files", "/etc")),
        CorruptContent,
        '"Files" in the layer is a symbolic link, but must be a directory.',
    ),
    "a link among the hives": (
        archive(link("Hives/System_Delta", "/etc/passwd")),
        CorruptContent,
        '"Hives/System_Delta" in the layer is a link, but only files are allowed.',
    ),
    "a link to nothing": (
        archive(link("Files/l", "")),
        CorruptContent,
        '"Files/l" in the layer is a link without a target.',
    ),
    "a link to what cannot be": (
        archive(link("Files/l", "a/x\tb")),
        CorruptContent,
        '"Files/l" in the layer is a link to "a/x\\tb", which is not a valid Windows path: it '
        "has the character '\\t'.",
    ),
    "a long link": (
        archive(link("Files/l", "x/" * 1000)),
        LimitExceeded,
        '"Files/l" in the layer is a link to a path of more than 1000 bytes.',
    ),
    "a hard link to outside": (
        archive(hard_link("Files/x", "/etc/shadow")),
        CorruptContent,
        '"Files/x" in the layer is a hard link to "/etc/shadow", which is not an earlier file of '
        "the layer.",
    ),
    "a hard link up and out": (
        archive(folder("Files/d"), hard_link("Files/x", "Files/../../../etc/shadow")),
        CorruptContent,
        '"Files/x" in the layer is a hard link to "Files/../../../etc/shadow", which is not an '
        "earlier file of the layer.",
    ),
    "a hard link to a link": (
        archive(link("Files/l", "/etc/shadow"), hard_link("Files/x", "Files/l")),
        CorruptContent,
        '"Files/x" in the layer is a hard link to "Files/l", which is not an earlier file of '
        "the layer.",
    ),
    "a hard link through a link": (
        archive(link("Files/l", "/etc"), hard_link("Files/x", "Files/l/shadow")),
        CorruptContent,
        '"Files/x" in the layer is a hard link to "Files/l/shadow", which is not an earlier file '
        "of the layer.",
    ),
    "a hard link to a directory": (
        archive(folder("Files/d"), hard_link("Files/x", "Files/d")),
        CorruptContent,
        '"Files/x" in the layer is a hard link to "Files/d", which is not an earlier file of '
        "the layer.",
    ),
    "a character device": (
        archive(Item("Files/null", type=tarfile.CHRTYPE)),
        CorruptContent,
        '"Files/null" in the layer is a character device, which Windows does not support.',
    ),
    "a block device": (
        archive(Item("Files/sda", type=tarfile.BLKTYPE)),
        CorruptContent,
        '"Files/sda" in the layer is a block device, which Windows does not support.',
    ),
    "a pipe": (
        archive(Item("Files/pipe", type=tarfile.FIFOTYPE)),
        CorruptContent,
        '"Files/pipe" in the layer is a pipe, which Windows does not support.',
    ),
    "a device in Windows": (
        archive(file("Files/aux.txt")),
        CorruptContent,
        '"Files/aux.txt" in the layer is not a valid Windows file name: AUX is a device.',
    ),
    "a name that ends in a dot": (
        archive(file("Files/d./x")),
        CorruptContent,
        '"Files/d." in the layer is not a valid Windows file name: it ends in a dot or a space.',
    ),
    "a stream of no file": (
        archive(file("Files/a"), file("Files/b:stream")),
        CorruptContent,
        '"Files/b:stream" in the layer is not a valid Windows file name: it has the character '
        "':'.",
    ),
    "a name of 5,000 characters": (
        archive(file("Files/" + "n" * 5000)),
        CorruptContent,
        '"Files/' + "n" * 93 + '…" in the layer is not a valid Windows file name: it is '
        "longer than 255 characters.",
    ),
    "a name of too many bytes": (
        archive(file("Files/" + "日" * 100)),
        CorruptContent,
        '"Files/' + "日" * 93 + '…" in the layer is not a valid Windows file name: it is '
        "longer than 255 bytes.",
    ),
    "a path of 5,000 characters": (
        archive(file("Files/" + "/".join(["n" * 100] * 50))),
        LimitExceeded,
        '"Files/' + "n" * 93 + '…" in the layer is too deep: at most 20 directories and 1000 bytes '
        "of path are allowed.",
    ),
    "a directory in a directory in a directory": (
        archive(file("Files/" + "/".join("abcdefghijklmnopqrstuvwxyz"))),
        LimitExceeded,
        '"Files/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u" in the layer is too deep: at most 20 '
        "directories and 1000 bytes of path are allowed.",
    ),
    "too many files": (
        archive(*(file(f"Files/{number}") for number in range(1001))),
        LimitExceeded,
        "The layer has more than 1000 entries, which is the limit.",
    ),
    "too many implied directories": (
        archive(*(file(f"Files/{n}/a/b/c/d/e/f/g/h/x") for n in range(200))),
        LimitExceeded,
        "The layer has more than 1000 entries, which is the limit.",
    ),
    "too many whiteouts": (
        archive(*(file(f"Files/.wh.{n}") for n in range(1001))),
        LimitExceeded,
        "The layer has more than 1000 entries, which is the limit.",
    ),
    "a file and a directory": (
        archive(file("Files/x"), folder("Files/X")),
        CorruptContent,
        '"Files/X" in the layer is a file and a directory.',
    ),
    "a directory and a file": (
        archive(folder("Files/x"), file("Files/x")),
        CorruptContent,
        '"Files/x" in the layer is a directory and a file.',
    ),
    "all of C: hidden": (
        archive(file("Files/.wh..wh..opq")),
        CorruptContent,
        "The layer has an opaque whiteout of all of C:.",
    ),
    "a deleted hive": (
        archive(file("Hives/.wh.System_Delta")),
        CorruptContent,
        '"Hives/.wh.System_Delta" in the layer is a whiteout outside of C:.',
    ),
    "a Linux tree": (
        archive(folder("bin"), file("bin/sh")),
        CorruptContent,
        'The layer has "bin" at its top level, where a Windows layer has Files and Hives.',
    ),
    "a Linux tree among files": (
        archive(folder("Files"), file("./usr/lib/os-release")),
        CorruptContent,
        'The layer has "usr" at its top level, where a Windows layer has Files and Hives.',
    ),
    "a whiteout of all files": (
        archive(file(".wh.Files")),
        CorruptContent,
        'The layer has ".wh.Files" at its top level, where a Windows layer has Files and Hives.',
    ),
    "a name to fool a terminal": (
        archive(file("\x1b[2Jcleared")),
        CorruptContent,
        'The layer has "\\x1b[2Jcleared" at its top level, where a Windows layer has Files '
        "and Hives.",
    ),
    "attributes that are none": (
        archive(Item("Files/x", pax={"MSWINDOWS.fileattr": "rw"})),
        CorruptContent,
        '"Files/x" in the layer has invalid file attributes.',
    ),
    "a time that is none": (
        archive(Item("Files/x", pax={"mtime": "nan"})),
        CorruptContent,
        '"Files/x" in the layer has an invalid mtime.',
    ),
    "a size that is none": (
        archive(Item("Files/x", pax={"size": "-1"})),
        CorruptContent,
        '"Files/x" in the layer has an invalid size.',
    ),
    "a size larger than the limit": (
        archive(Item("Files/x", pax={"size": str(1 << 60)})),
        LimitExceeded,
        "The layer unpacks to more than 2097152 bytes, which is the limit.",
    ),
    "a bomb of zeroes": (
        archive(file("Files/x", bytes(3 << 20))),
        LimitExceeded,
        "The layer unpacks to more than 2097152 bytes, which is the limit.",
    ),
    "a bomb after the end": (
        archive(file("Files/x")) + bytes(3 << 20),
        LimitExceeded,
        "The layer unpacks to more than 2097152 bytes, which is the limit.",
    ),
    "a bomb that is skipped": (
        archive(file("UtilityVM/x", bytes(3 << 20))),
        LimitExceeded,
        "The layer unpacks to more than 2097152 bytes, which is the limit.",
    ),
    "a sparse file": (
        archive(Item("Files/x", pax={"GNU.sparse.realsize": str(1 << 50)})),
        CorruptContent,
        '"Files/x" in the layer is a sparse file, which is not supported.',
    ),
    "an old sparse file": (
        archive(Item("Files/x", type=tarfile.GNUTYPE_SPARSE)),
        CorruptContent,
        '"Files/x" in the layer is a sparse file, which is not supported.',
    ),
    "an unknown kind": (
        archive(Item("Files/x", type=b"Z")),
        CorruptContent,
        "\"Files/x\" in the layer has the unknown type 'Z'.",
    ),
    "a name that is not UTF-8": (
        archive(Item("Files/\udcff\udcfe"), format=tarfile.GNU_FORMAT),
        CorruptContent,
        '"Files/\\xff\\xfe" in the layer is not valid UTF-8.',
    ),
    "more after the end": (
        bytes(512) + archive(file("Files/x")),
        CorruptContent,
        "The layer's archive has data after its end-of-archive marker.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_layer_is_rejected_and_writes_nothing_outside(case: str, tmp_path: Path) -> None:
    layer, kind, sentence = REFUSED[case]
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub" / "kept").write_bytes(b"kept")
    with pytest.raises(kind) as failure:
        unpack(layer, outside / "t", limits=SMALL)
    assert failure.value.message == sentence
    assert sorted(path.name for path in outside.iterdir()) == ["sub", "t"]
    assert found(outside / "sub") == {"kept": b"kept"}
    for path in (outside / "t").rglob("*"):
        assert path.is_dir() or path.is_file()


def meta(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    """Return an extended header with any content and size."""
    header = tarfile.TarInfo("extra")
    header.type, header.size = kind, len(content) if size is None else size
    padded = content + bytes(-len(content) % 512)
    return header.tobuf(tarfile.USTAR_FORMAT) + padded


def _with_size(field: bytes) -> bytes:
    """Return a header with any bytes as size, and a valid checksum."""
    header = bytearray(tarfile.TarInfo("Files/x").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


FILE = tarfile.TarInfo("Files/x").tobuf(tarfile.USTAR_FORMAT)
BROKEN_PAX = "The layer's archive has an invalid PAX header."
META: dict[str, tuple[bytes, str]] = {
    "a length of zero": (meta(b"x", b"0 path=x\n"), BROKEN_PAX),
    "a length beyond the end": (meta(b"x", b"99 path=x\n"), BROKEN_PAX),
    "a length that cuts": (meta(b"x", b"5 path=Files/y\n"), BROKEN_PAX),
    "a huge length": (meta(b"x", b"9" * 400 + b" path=x\n"), BROKEN_PAX),
    "no length": (meta(b"x", b"path=x\n"), BROKEN_PAX),
    "no value": (meta(b"x", b"9 pathabc\n"), BROKEN_PAX),
    "a signed length": (meta(b"x", b"+10 path=x\n"), BROKEN_PAX),
    "a gigabyte": (
        meta(b"x", b"", 1 << 30),
        "The layer's archive has an extended header of 1073741824 bytes; the limit is 1048576.",
    ),
    "a long name of a gigabyte": (
        meta(b"L", b"", 1 << 30),
        "The layer's archive has an extended header of 1073741824 bytes; the limit is 1048576.",
    ),
    "two for one": (
        meta(b"x", b"10 path=x\n") * 2,
        "The layer's archive has duplicate extended headers for one entry.",
    ),
    "one for all": (
        meta(b"g", b"16 path=Files/y\n"),
        'The layer\'s archive has "path" in a global PAX header.',
    ),
    "a name with a zero in it": (
        meta(b"x", b"18 path=Files/x\0y\n"),
        '"Files/x\\x00y" in the layer is not a valid Windows file name: it has the character '
        "'\\x00'.",
    ),
    "a name that is not UTF-8": (
        meta(b"x", b"17 path=Files/x\xff\n"),
        '"Files/x\\xff" in the layer is not valid UTF-8.',
    ),
    "an empty long name and none at all": (
        meta(b"L", b"\0") + tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT),
        "The layer's archive has an entry without a name.",
    ),
    "a size below zero": (
        _with_size(b"\xff" * 12),
        '"Files/x" in the layer has a negative size.',
    ),
}


@pytest.mark.parametrize("case", META)
def test_invalid_header_is_rejected(case: str, tmp_path: Path) -> None:
    header, sentence = META[case]
    with pytest.raises(CorruptContent) as failure:
        unpack(header + FILE + bytes(1024), tmp_path / "t", limits=SMALL)
    assert failure.value.message == sentence


def test_number_of_entries_is_limited(tmp_path: Path) -> None:
    assert UnpackLimits().entries < 1_000_000
    taken = []

    def chunks() -> Iterator[bytes]:
        for thousand in range(1000):
            taken.append(thousand)
            names = (f"Files/{thousand}/{number}" for number in range(1000))
            yield b"".join(tarfile.TarInfo(n).tobuf(tarfile.USTAR_FORMAT) for n in names)

    with pytest.raises(LimitExceeded) as failure:
        unpack(chunks(), tmp_path / "t", limits=UnpackLimits(entries=20_000))
    assert failure.value.message == "The layer has more than 20000 entries, which is the limit."
    assert len(taken) < 60


def test_decompression_bomb_is_rejected_before_it_is_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as bomb:
        header = tarfile.TarInfo("UtilityVM/x")
        header.size = 1 << 30
        bomb.write(header.tobuf())
        for _ in range(200):
            bomb.write(bytes(1 << 20))
    assert len(buffer.getvalue()) < 1 << 20
    with pytest.raises(LimitExceeded):
        unpack(buffer.getvalue(), tmp_path / "t", "gzip", limits=UnpackLimits(size=10 << 20))


UNPACK_A_PART = """
import signal, sys
from pathlib import Path
from winpod.images.layers.unpack import unpack_layer
def chunks():
    data = Path(sys.argv[1]).read_bytes()
    for at in range(0, int(len(data) * float(sys.argv[3])), 4096):
        yield data[at:at + 4096]
    print("waiting", flush=True)
    signal.pause()
unpack_layer(chunks(), Path(sys.argv[2]), compression="none")
"""


def test_killed_unpack_leaves_only_the_target(tmp_path: Path) -> None:
    items = [file(f"Files/d{n % 7}/{n}", bytes(n * 10)) for n in range(300)]
    (tmp_path / "layer.tar").write_bytes(archive(*items, link("Files/l", "d1")))
    for number, part in enumerate((0.1, 0.5, 0.95)):
        target = tmp_path / f"t{number}"
        target.mkdir()
        command = [sys.executable, "-c", UNPACK_A_PART, str(tmp_path / "layer.tar"), str(target)]
        process = subprocess.Popen([*command, str(part)], stdout=subprocess.PIPE)
        assert process.stdout
        assert process.stdout.readline() == b"waiting\n"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert (target / "Files").exists()
        assert not (target / "layer.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer.tar", "t0", "t1", "t2"]
    whole = unpack((tmp_path / "layer.tar").read_bytes(), tmp_path / "whole")
    assert whole.entries == 308


@pytest.mark.parametrize("top", ["UtilityVM/", "Files/"])
def test_long_names_do_not_accumulate_in_memory(top: str, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        for number in range(200):
            name = f"{top}d/{'./' * 150_000}{number}/x"
            yield tarfile.TarInfo(name).tobuf(tarfile.PAX_FORMAT)

    tracemalloc.start()
    try:
        unpack(chunks(), tmp_path / "t")
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()

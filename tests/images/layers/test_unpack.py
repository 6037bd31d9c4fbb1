import gzip
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.support.layer_archives import (
    TIME,
    Item,
    archive,
    file,
    folder,
    found,
    hard_link,
    link,
    unpack,
)
from winpod.images.errors import CorruptContent
from winpod.images.layers.names import NameMap, relative_link, resolve_link

LAYER = archive(
    folder("Files"),
    folder("Files/app"),
    file("Files/app/app.exe", b"MZ" * 3000),
    file("Files/app/empty.txt"),
    folder("Hives"),
    file("Hives/System_Delta", b"regf"),
)
UNPACKED = {
    "Files": None,
    "Files/app": None,
    "Files/app/app.exe": b"MZ" * 3000,
    "Files/app/empty.txt": b"",
    "Hives": None,
    "Hives/System_Delta": b"regf",
}
DIFF_ID = "sha256:" + hashlib.sha256(LAYER).hexdigest()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zstandarded(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


SKIPPED_FRAME = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
FORMS = {
    "plain": (LAYER, "none"),
    "gzip": (gzipped(LAYER), "gzip"),
    "gzip in members": (gzipped(LAYER[:700]) + gzipped(b"") + gzipped(LAYER[700:]), "gzip"),
    "gzip and padding": (gzipped(LAYER) + bytes(100), "gzip"),
    "zstd": (zstandarded(LAYER), "zstd"),
    "zstd in frames": (zstandarded(LAYER[:700]) + zstandarded(LAYER[700:]), "zstd"),
    "zstd with skipped frames": (SKIPPED_FRAME + zstandarded(LAYER) + SKIPPED_FRAME, "zstd"),
    "gzip, said to be zstd": (gzipped(LAYER), "zstd"),
    "zstd, said to be plain": (zstandarded(LAYER), "none"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1, 512, 1 << 20])
def test_every_compression_has_the_same_files_and_diff_id(
    form: str, step: int, tmp_path: Path
) -> None:
    data, compression = FORMS[form]
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    layer = unpack(chunks, tmp_path / "t", compression)
    assert layer.diff_id == DIFF_ID
    assert (layer.size, layer.entries, layer.has_hives) == (6004, 6, True)
    unpacked = found(tmp_path / "t")
    record = json.loads(unpacked.pop("layer.json"))
    assert unpacked == UNPACKED
    assert record["diff_id"] == DIFF_ID
    assert record["size"] == 6004


DAMAGED = {
    "gzip cut short": (gzipped(LAYER)[:-30], "gzip", "The layer's gzip content ends too early."),
    "gzip with a wrong sum": (
        gzipped(LAYER)[:-6] + b"123456",
        "gzip",
        "The layer's gzip content is damaged: Error -6 Incorrect checksum found.",
    ),
    "gzip and a bit": (
        gzipped(LAYER) + b"junk",
        "gzip",
        "The layer's gzip content ends too early.",
    ),
    "gzip and more": (
        gzipped(LAYER) + b"junk" * 10,
        "gzip",
        "The layer's gzip content is damaged: Error",
    ),
    "zstd cut short": (zstandarded(LAYER)[:-30], "zstd", "The layer"),
    "zstd that is none": (
        zstandarded(LAYER)[:4] + b"\xff" * 100,
        "zstd",
        "The layer's zstd content is damaged: ",
    ),
    "plain, said to be gzip": (
        LAYER,
        "gzip",
        "The layer is declared as gzip, but is not compressed with it.",
    ),
    "nothing": (b"", "none", "The layer is empty, or was truncated before its first file."),
    "no archive": (b"hello" * 300, "none", "The layer is not a tar archive."),
    "a header of noise": (
        LAYER[:1024] + b"\xff" * 1024,
        "none",
        "The layer's archive is damaged: a header has a wrong checksum.",
    ),
    "cut in a file": (
        LAYER[:5000],
        "none",
        "The layer's archive ends in the middle of a file.",
    ),
    "cut in a header": (LAYER[:100], "none", "The layer's archive ends in the middle of a header."),
    "cut after a header": (
        LAYER[:1024],
        "none",
        "The layer's archive ends after an extended header.",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_content_is_rejected(case: str, tmp_path: Path) -> None:
    data, compression, sentence = DAMAGED[case]
    with pytest.raises(CorruptContent) as failure:
        unpack(data, tmp_path / "t", compression)
    assert failure.value.message.startswith(sentence)


def test_archive_without_files_is_an_empty_layer(tmp_path: Path) -> None:
    layer = unpack(bytes(1024), tmp_path / "t")
    assert (layer.size, layer.entries, layer.has_hives) == (0, 0, False)
    assert list(found(tmp_path / "t")) == ["Files", "layer.json"]


def test_modes_and_owners_are_normalised_and_times_are_kept(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        unpack(
            archive(
                folder("Files"),
                folder("Files/d"),
                Item("Files/d/setuid", b"x", mode=0o6777),
                file("Files/d/readonly", b"x", 0x21),
                file("Files/implied/x", pax={"mtime": "1500000000.25"}),
                file("Files/old", pax={"mtime": "-7.5"}),
                file("Files/far", pax={"mtime": "99999999999999"}),
            ),
            tmp_path / "t",
        )
    finally:
        os.umask(before)
    files = tmp_path / "t" / "Files"
    status = {path.name: path.lstat() for path in files.rglob("*")}
    assert {name: oct(one.st_mode & 0o7777) for name, one in status.items()} == {
        "d": "0o755",
        "setuid": "0o644",
        "readonly": "0o444",
        "implied": "0o755",
        "x": "0o644",
        "old": "0o644",
        "far": "0o644",
    }
    assert {(one.st_uid, one.st_gid) for one in status.values()} == {(os.geteuid(), os.getegid())}
    assert status["d"].st_mtime == status["setuid"].st_mtime == files.stat().st_mtime == TIME
    assert status["x"].st_mtime_ns == 1_500_000_000_250_000_000
    assert status["old"].st_mtime == 0
    assert status["far"].st_mtime > TIME


def test_hidden_and_system_attributes_are_stored_for_wine(tmp_path: Path) -> None:
    unpack(
        archive(
            folder("Files", 0x16),
            folder("Files/d", 0x12),
            file("Files/d/hidden", b"x", 0x22),
            file("Files/d/system", b"x", 0x27),
            file("Files/d/plain", b"x", 0x20),
        ),
        tmp_path / "t",
    )
    files = tmp_path / "t" / "Files"
    kept = {
        path.name: os.getxattr(path, "user.DOSATTRIB") if os.listxattr(path) else b""
        for path in (files, *files.rglob("*"))
    }
    assert kept == {
        "Files": b"",
        "d": b"0x2",
        "hidden": b"0x2",
        "system": b"0x6",
        "plain": b"",
    }


def test_unsupported_content_is_skipped_and_counted(tmp_path: Path) -> None:
    layer = unpack(
        archive(
            file("Files/a.txt", b"a", pax={"MSWINDOWS.rawsd": "AQAUgA=="}),
            file("Files/a.txt:Zone.Identifier", b"[ZoneTransfer]"),
            file("Files/b.txt", b"b", pax={"MSWINDOWS.rawsd": "AQAUgA=="}),
            link("Files/volume", r"\??\Volume{1234}\data"),
            link("Files/other", "D:\\data"),
            link("Files/share", r"\\server\share"),
            folder("UtilityVM"),
            file("UtilityVM/Files/Windows/System32/ntoskrnl.exe", b"MZ"),
        ),
        tmp_path / "t",
    )
    assert layer.left_out == {
        "alternate data streams": 1,
        "entries of the utility VM": 2,
        "links that lead out of C:": 3,
        "security descriptors": 2,
    }
    assert list(found(tmp_path / "t")) == ["Files", "Files/a.txt", "Files/b.txt", "layer.json"]


def test_whiteouts_have_the_format_of_overlayfs(tmp_path: Path) -> None:
    unpack(
        archive(
            file("Files/.wh.gone.txt"),
            file("Files/d/.wh..wh..opq"),
            file("Files/d/new", b"new"),
            file("Files/.wh.replaced"),
            file("Files/replaced/x", b"x"),
            file("Files/file", b"1"),
            file("Files/.wh.file"),
            file("Files/.wh..wh.plnk"),
        ),
        tmp_path / "t",
    )
    files = tmp_path / "t" / "Files"
    assert found(files) == {
        "d": None,
        "d/new": b"new",
        "file": b"1",
        "gone.txt": "whiteout",
        "replaced": None,
        "replaced/x": b"x",
    }
    opaque = [
        path.name for path in files.iterdir() if "trusted.overlay.opaque" in _overlay_marks(path)
    ]
    assert sorted(opaque) == ["d", "replaced"]


def _overlay_marks(path: Path) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    layer = unpack(
        archive(
            file("Files/a/one.dll", b"dll"),
            hard_link("Files/b/two.dll", "Files/A/ONE.dll"),
            hard_link("Files/a/one.dll", "./Files/a/one.dll"),
            file("Files/c", b"c"),
            hard_link("Files/C", "Files/a/one.dll"),
        ),
        tmp_path / "t",
    )
    files = tmp_path / "t" / "Files"
    assert len({(files / name).stat().st_ino for name in ("a/one.dll", "b/two.dll", "c")}) == 1
    assert (files / "c").read_bytes() == b"dll"
    assert layer.entries == 7


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_paths_may_be_longer_than_max_path(format: int, tmp_path: Path) -> None:
    deep = "Files/" + "/".join(["d" * 100] * 25)
    long = f"Files/{'n' * 255}"
    unpack(
        archive(
            Item(f"{deep}/x.txt", b"x"),
            Item(long, b"n"),
            Item("Files/link", type=tarfile.SYMTYPE, link="C:/" + deep.removeprefix("Files/")),
            format=format,
        ),
        tmp_path / "t",
    )
    everything = found(tmp_path / "t")
    assert everything[f"{deep}/x.txt"] == b"x"
    assert everything[long] == b"n"
    assert everything["Files/link"] == "-> " + deep.removeprefix("Files/")


def test_names_in_every_script_are_kept(tmp_path: Path) -> None:
    names = ("données.txt", "日本語", "Ünïcödé", "🙂.png", "a b  c")
    unpack(archive(*(file(f"Files/{name}", name.encode()) for name in names)), tmp_path / "t")
    assert {k: v.decode() for k, v in found(tmp_path / "t" / "Files").items()} == {
        name: name for name in names
    }


def test_later_of_two_names_that_differ_in_case_wins(tmp_path: Path) -> None:
    unpack(
        archive(
            folder("Files/App"),
            file("Files/App/Read.me", b"first"),
            file("Files/APP/READ.ME", b"second"),
            folder("files/app/sub"),
            file("FILES/aPP/SUB/École", b"1"),
            file("Files/App/sub/école", b"2"),
            link("Files/App/l", "x"),
            file("Files/app/L", b"no link"),
        ),
        tmp_path / "t",
    )
    assert found(tmp_path / "t" / "Files") == {
        "App": None,
        "App/Read.me": b"second",
        "App/l": b"no link",
        "App/sub": None,
        "App/sub/École": b"2",
    }


def test_names_use_the_spelling_of_the_base(tmp_path: Path) -> None:
    drive = tmp_path / "drive_c"
    (drive / "windows" / "system32" / "drivers").mkdir(parents=True)
    (drive / "windows" / "system32" / "cmd.exe").write_bytes(b"")
    (drive / "Users").symlink_to("windows")
    unpack(
        archive(
            file("Files/Windows/System32/CMD.EXE", b"new"),
            file("Files/Windows/System32/Drivers/etc/Hosts", b"hosts"),
            file("Files/WINDOWS/.wh.Notepad.exe"),
            file("Files/Windows/System32/.wh.DRIVERS"),
            link("Files/l", r"C:\WINDOWS\SYSTEM32\Drivers\other"),
        ),
        tmp_path / "t",
        names=NameMap.read_drive(drive),
    )
    assert found(tmp_path / "t" / "Files") == {
        "l": "-> windows/system32/drivers/other",
        "windows": None,
        "windows/Notepad.exe": "whiteout",
        "windows/system32": None,
        "windows/system32/cmd.exe": b"new",
        "windows/system32/drivers": None,
        "windows/system32/drivers/etc": None,
        "windows/system32/drivers/etc/Hosts": b"hosts",
    }


TARGETS = {
    r"C:\x\y": ("x", "y"),
    r"c:/x/y": ("x", "y"),
    r"\??\C:\x\y": ("x", "y"),
    r"/??/C:/x/y": ("x", "y"),
    r"\\?\C:\x": ("x",),
    r"\\.\C:\x": ("x",),
    r"\x": ("x",),
    r"/x/": ("x",),
    "C:\\": (),
    "C:": (),
    r"x\.\y": ("a", "b", "x", "y"),
    r"..\x": ("a", "x"),
    r"..\..\..\..\x": ("x",),
    r"C:\..\..\x": ("x",),
    r"x\..\..\..\y": ("y",),
    ".": ("a", "b"),
    r"D:\x": None,
    r"\??\D:\x": None,
    r"\??\Volume{0d1e}\x": None,
    r"\??\UNC\server\share": None,
    r"\\server\share": None,
    "//server/share": None,
}


@pytest.mark.parametrize("text", TARGETS)
def test_link_targets_are_resolved_as_in_windows(text: str) -> None:
    assert resolve_link(text, ("a", "b")) == TARGETS[text]


@pytest.mark.parametrize(
    ("target", "directory", "text"),
    [
        (("x",), (), "x"),
        ((), (), "."),
        ((), ("a", "b"), "../.."),
        (("x", "y"), ("a",), "../x/y"),
        (("a", "x"), ("a", "b"), "../x"),
        (("a", "b"), ("a", "b"), "."),
        (("a", "b", "c"), ("a", "b"), "c"),
    ],
)
def test_links_are_relative(target: tuple[str, ...], directory: tuple[str, ...], text: str) -> None:
    assert relative_link(target, directory) == text


def test_links_use_the_spelling_of_their_targets_and_stay_inside(tmp_path: Path) -> None:
    unpack(
        archive(
            link("Files/Documents and Settings", r"\??\C:\USERS"),
            link("Files/a/up", r"..\..\..\..\etc\passwd"),
            link("Files/a/down", r"B\c"),
            folder("Files/Users"),
            folder("Files/a/b"),
            link("Files/a/root", "C:\\"),
        ),
        tmp_path / "t",
    )
    assert {k: v for k, v in found(tmp_path / "t" / "Files").items() if v} == {
        "Documents and Settings": "-> Users",
        "a/up": "-> ../etc/passwd",
        "a/down": "-> b/c",
        "a/root": "-> ..",
    }


def test_error_of_the_source_is_raised(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield LAYER[:3000]
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        unpack(chunks(), tmp_path / "t")
    assert not [one for one in threading.enumerate() if one.name == "layer-writer"]
    assert not (tmp_path / "t" / "layer.json").exists()


def test_write_error_stops_reading(tmp_path: Path) -> None:
    taken = []

    def chunks() -> Iterator[bytes]:
        yield archive(file("etc/passwd"))
        for number in range(1000):
            taken.append(number)
            yield bytes(1 << 20)

    with pytest.raises(CorruptContent, match="etc"):
        unpack(chunks(), tmp_path / "t")
    assert len(taken) < 100


FULL = """
import sys
from pathlib import Path
from winpod.images.layers.unpack import unpack_layer
from winpod.errors import WinpodError
try:
    unpack_layer([sys.stdin.buffer.read()], Path(sys.argv[1]), compression="none")
except WinpodError as error:
    print(type(error).__name__, error.code, error)
"""


@pytest.mark.parametrize("options", ["size=1m", "nr_inodes=40"])
def test_full_disk_is_explained(options: str, tmp_path: Path) -> None:
    layer = archive(*(file(f"Files/{number}", bytes(100_000)) for number in range(50)))
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && mkdir "$1/t" && exec "$2" -c "$3" "$1/t"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    result = _run_python(command, FULL, layer)
    assert result == (
        f"DiskFull RESOURCE_EXHAUSTED No space left for the layer in {tmp_path}. "
        "Remove unused images, or use a larger disk.\n"
    )


def test_missing_privilege_for_whiteouts_is_explained(tmp_path: Path) -> None:
    layer = archive(file("Files/d/.wh..wh..opq"))
    (tmp_path / "t").mkdir()
    dropped = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    command = [*dropped, "sh", "-c", 'exec "$2" -c "$3" "$1/t"', "sh", str(tmp_path)]
    result = _run_python(command, FULL, layer)
    assert result.startswith("PermissionDenied PERMISSION_DENIED The layer cannot be unpacked to")
    advice = "Run winpod as root: layers need whiteouts and attributes that only root can set.\n"
    assert result.endswith(advice)


def _run_python(command: list[str], text: str, given: bytes) -> str:
    command = [*command, sys.executable, text]
    result = subprocess.run(command, input=given, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()

"""Fuzzing of the unpacker: layers are rejected or unpacked inside the target.

The tar parser is compared with Python's tarfile: accepted archives have the same entries.
"""

import io
import os
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.layer_archives import Item, archive, file, folder, hard_link, link
from winpod.errors import WinpodError
from winpod.images.errors import CorruptContent
from winpod.images.layers.base_layers import is_base_layer
from winpod.images.layers.names import NameMap, relative_link, resolve_link
from winpod.images.layers.tar import EntryType, TarStream, read_entries
from winpod.images.layers.tree import UnpackLimits
from winpod.images.layers.unpack import unpack_layer

LIMITS = UnpackLimits(size=1 << 20, entries=200, depth=12, path=600)
EXAMPLES = int(os.environ.get("WINPOD_FUZZ_EXAMPLES", "150"))
bounded = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

VALID = archive(
    folder("Files"),
    file("Files/app/app.exe", b"MZ" * 300, 0x27, {"MSWINDOWS.rawsd": "AQAUgA=="}),
    file("Files/" + "long/" * 40 + "name", b"deep"),
    hard_link("Files/app/same.exe", "Files/app/app.exe"),
    link("Files/app/link", r"C:\app"),
    file("Files/.wh.gone"),
    file("Files/app/.wh..wh..opq"),
    file("Hives/System_Delta", b"regf"),
)
VALID_GNU = archive(
    Item("Files/" + "long/" * 40 + "name", b"deep"),
    Item("Files/l", type=tarfile.SYMTYPE, link="x/" * 80),
    format=tarfile.GNU_FORMAT,
)

STEPS = st.sampled_from(
    ("a", "A", "b", "é", "É", "..", ".", "", "C:", "nul", "x.", ".wh.a", ".wh.", ".wh..wh..opq")
)
NAMES = st.one_of(
    st.builds("/".join, st.lists(STEPS, max_size=6)).map("Files/".__add__),
    st.builds("/".join, st.lists(STEPS, max_size=4)),
    st.builds("/".join, st.lists(STEPS, max_size=3)).map("Hives/".__add__),
)
TARGETS = st.one_of(
    NAMES,
    st.builds("\\".join, st.lists(STEPS, max_size=6)),
    st.builds("\\".join, st.lists(STEPS, max_size=6)).map("\\??\\C:\\".__add__),
    st.text(max_size=30),
)
KINDS = st.sampled_from(
    (
        *(tarfile.DIRTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
        *(tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.AREGTYPE),
    )
)
LINKS = TARGETS.filter(lambda text: "\0" not in text)
ITEMS = st.one_of(
    st.builds(Item, NAMES, st.binary(max_size=600)),
    st.builds(Item, NAMES, st.just(b""), KINDS, LINKS),
)
FORMATS = st.sampled_from((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a valid archive with some changed bytes and correct checksums."""
    data = bytearray(draw(st.sampled_from((VALID, VALID_GNU))))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + 1] = draw(st.binary(max_size=3))
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


def unpack_and_check(layer: bytes, names: NameMap | None = None) -> None:
    """Check that a layer, unpacked or rejected, only created allowed files inside the target."""
    place = Path(tempfile.mkdtemp(prefix="winpod-fuzz-"))
    target = place / "in" / "t"
    target.mkdir(parents=True)
    try:
        sentence = _unpack(layer, target, names)
        assert sentence.isprintable()
        assert sentence.endswith(".") or not sentence
        assert [path.name for path in place.iterdir()] == ["in"]
        assert [path.name for path in (place / "in").iterdir()] == ["t"]
        assert (not sentence) == (target / "layer.json").exists()
        _check_tree(target)
    finally:
        shutil.rmtree(place)


def _unpack(layer: bytes, target: Path, names: NameMap | None) -> str:
    """Return why it could not be unpacked, or an empty string."""
    try:
        unpack_layer([layer], target, compression="none", limits=LIMITS, names=names)
    except WinpodError as error:
        return error.message
    return ""


def _check_tree(target: Path) -> None:
    for path in target.rglob("*"):
        status = path.lstat()
        keys = [one.name.upper() for one in path.parent.iterdir() if one.name.isascii()]
        assert len(keys) == len(set(keys))
        if stat.S_ISLNK(status.st_mode):
            parts = path.relative_to(target / "Files").parent.parts
            assert _stays_inside(str(path.readlink()), parts)
        elif stat.S_ISCHR(status.st_mode):
            assert status.st_rdev == 0
        else:
            assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            assert status.st_mode & 0o7022 == 0


def _stays_inside(text: str, directory: tuple[str, ...]) -> bool:
    depth = len(directory)
    for step in PurePosixPath(text).parts:
        depth += -1 if step == ".." else 1
        if step == "/" or depth < 0:
            return False
    return True


@bounded
@given(st.lists(ITEMS, max_size=12), FORMATS)
@example([Item("Files/a", type=tarfile.SYMTYPE, link="/"), Item("Files/A/x")], tarfile.PAX_FORMAT)
def test_any_entries_stay_inside(items: list[Item], format: int) -> None:
    unpack_and_check(archive(*items, format=format))


@bounded
@given(damaged())
def test_damaged_archives_stay_inside(layer: bytes) -> None:
    unpack_and_check(layer)
    is_base_layer(layer, "none")


@bounded
@given(st.binary(max_size=3000), st.sampled_from(("none", "gzip", "zstd")))
def test_noise_is_rejected(noise: bytes, compression: str) -> None:
    magic = {"none": b"", "gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd"}[compression]
    unpack_and_check(magic + noise)
    is_base_layer(magic + noise, compression)


def read(layer: bytes, step: int = 1 << 20) -> list[tuple[str, EntryType, int, str]]:
    source = TarStream(layer[at : at + step] for at in range(0, len(layer), step))
    return [(one.name, one.kind, one.size, one.link) for one in read_entries(source)]


TARFILE_KINDS = {
    tarfile.REGTYPE: EntryType.FILE,
    tarfile.AREGTYPE: EntryType.FILE,
    tarfile.CONTTYPE: EntryType.FILE,
    tarfile.DIRTYPE: EntryType.DIRECTORY,
    tarfile.SYMTYPE: EntryType.LINK,
    tarfile.LNKTYPE: EntryType.HARD_LINK,
    tarfile.CHRTYPE: EntryType.CHARACTER_DEVICE,
    tarfile.BLKTYPE: EntryType.BLOCK_DEVICE,
    tarfile.FIFOTYPE: EntryType.FIFO,
}


def read_with_tarfile(layer: bytes) -> list[tuple[str, EntryType, int, str]]:
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r|") as tar:
        return [
            (
                one.name,
                TARFILE_KINDS[one.type],
                one.size if one.isreg() else 0,
                one.linkname if one.issym() or one.islnk() else "",
            )
            for one in tar
        ]


def without_slash(
    entries: list[tuple[str, EntryType, int, str]],
) -> list[tuple[str, EntryType, int, str]]:
    """Remove trailing slashes of names, as tarfile does."""
    return [(name.rstrip("/"), *rest) for name, *rest in entries]  # type: ignore[misc]


@bounded
@given(
    st.lists(ITEMS.filter(lambda item: bool(item.name)), max_size=8), FORMATS, st.integers(1, 700)
)
def test_archives_are_read_as_tarfile_wrote_them(items: list[Item], format: int, step: int) -> None:
    layer = archive(*items, format=format)
    assert without_slash(read(layer, step)) == without_slash(read_with_tarfile(layer))


@bounded
@given(damaged())
def test_damaged_archives_are_read_as_by_tarfile_or_rejected(layer: bytes) -> None:
    """tarfile also parses owners and stops at invalid ones, so it may return fewer entries."""
    try:
        ours = read(layer)
        theirs = read_with_tarfile(layer)
    except (CorruptContent, tarfile.TarError):
        return
    assert without_slash(ours)[: len(theirs)] == without_slash(theirs)


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="=\n\0"), min_size=1)
VALUES = st.text(st.characters(codec="utf-8"))


@bounded
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_unknown_pax_records_are_ignored(records: dict[str, str]) -> None:
    known = ("path", "linkpath", "size", "mtime", "MSWINDOWS.fileattr")
    kept = {k: v for k, v in records.items() if k not in known and not k.startswith("GNU.sparse.")}
    assert read(archive(Item("Files/x", b"content", pax=kept))) == [
        ("Files/x", EntryType.FILE, 7, "")
    ]


@bounded
@given(st.binary(max_size=200))
@example(b"11 path=../x\n")
def test_any_pax_header_is_read_or_rejected(records: bytes) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    padded = records + bytes(-len(records) % 512)
    entry = tarfile.TarInfo("Files/x").tobuf(tarfile.USTAR_FORMAT)
    unpack_and_check(header.tobuf(tarfile.USTAR_FORMAT) + padded + entry + bytes(1024))


@bounded
@given(TARGETS, st.lists(st.sampled_from("abc"), max_size=4).map(tuple))
def test_any_link_stays_inside(text: str, directory: tuple[str, ...]) -> None:
    target = resolve_link(text, directory)
    if target is not None:
        assert ".." not in target
        assert _stays_inside(relative_link(target, directory), directory)

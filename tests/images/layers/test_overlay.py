"""Layers stacked by a real overlayfs."""

import os
from pathlib import Path

from tests.support.layer_archives import (
    Item,
    archive,
    file,
    folder,
    found,
    hard_link,
    link,
    merged,
    unpack,
)
from winpod.images.layers.names import NameMap
from winpod.images.layers.overlay import overlay_lowerdirs


def layers(workspace: Path, *contents: list[Item], names: NameMap | None = None) -> list[Path]:
    """Return unpacked layers, lowest first."""
    made = []
    for number, items in enumerate(contents):
        made.append(workspace / f"layer{number}")
        unpack(archive(*items), made[-1], names=names)
    return made


def test_upper_layers_win_and_whiteouts_hide(tmp_path: Path) -> None:
    stack = layers(
        tmp_path,
        [
            file("Files/app/a", b"lower a"),
            file("Files/app/b", b"lower b"),
            file("Files/app/gone/x", b"x"),
            file("Files/opaque/old", b"old"),
            file("Files/replaced/old", b"old"),
            file("Files/becomes-a-folder", b"file"),
            file("Files/becomes-a-file/x", b"x"),
        ],
        [
            file("Files/app/a", b"upper a"),
            file("Files/app/.wh.gone"),
            file("Files/opaque/.wh..wh..opq"),
            file("Files/opaque/new", b"new"),
            file("Files/.wh.replaced"),
            file("Files/replaced/new", b"new"),
            file("Files/becomes-a-folder/x", b"x"),
            file("Files/becomes-a-file", b"file"),
        ],
    )
    assert merged(stack, tmp_path)["files"] == {
        "app/a": "upper a",
        "app/b": "lower b",
        "opaque/new": "new",
        "replaced/new": "new",
        "becomes-a-folder/x": "x",
        "becomes-a-file": "file",
    }


def test_upper_of_two_names_that_differ_in_case_wins(tmp_path: Path) -> None:
    stack = layers(
        tmp_path,
        [
            file("Files/App/Data/one", b"lower"),
            file("Files/App/Data/two", b"lower"),
            file("Files/App/Data/gone", b"lower"),
            file("Files/App/Hidden/old", b"lower"),
        ],
        [
            file("Files/app/DATA/ONE", b"middle"),
            file("Files/APP/DATA/.wh.GONE"),
            file("Files/APP/HIDDEN/.wh..wh..opq"),
            file("Files/APP/HIDDEN/new", b"middle"),
            file("Files/Other/x", b"middle"),
        ],
        [
            file("Files/app/data/three", b"upper"),
            hard_link("Files/app/data/four", "Files/app/data/three"),
            file("Files/OTHER/X", b"upper"),
        ],
    )
    assert merged(stack, tmp_path)["files"] == {
        "App/Data/one": "middle",
        "App/Data/two": "lower",
        "App/Data/three": "upper",
        "App/Data/four": "upper",
        "App/Hidden/new": "middle",
        "Other/x": "upper",
    }


def test_base_is_lowest_and_determines_the_spelling(tmp_path: Path) -> None:
    base = tmp_path / "drive_c"
    (base / "windows" / "system32").mkdir(parents=True)
    (base / "windows" / "system32" / "cmd.exe").write_text("wine")
    (base / "windows" / "notepad.exe").write_text("wine")
    content = [
        file("Files/Windows/System32/CMD.exe", b"image"),
        file("Files/Windows/System32/tool.exe", b"image"),
        file("Files/Windows/.wh.NOTEPAD.EXE"),
    ]
    expected = {"windows/system32/cmd.exe": "image", "windows/system32/tool.exe": "image"}
    known = layers(tmp_path / "known", content, names=NameMap.read_drive(base))
    assert overlay_lowerdirs(known, tmp_path, base=base) == [known[0] / "Files", base]
    assert merged(known, tmp_path / "known", base=base)["files"] == expected
    unknown = layers(tmp_path / "unknown", content)
    assert merged(unknown, tmp_path / "unknown", base=base)["files"] == expected


def test_links_are_followed_within_the_stack(tmp_path: Path) -> None:
    stack = layers(
        tmp_path,
        [file("Files/Program Files/Tool/Tool.exe", b"tool"), file("Files/etc/passwd", b"in C:")],
        [
            link("Files/tool", r"C:\PROGRAM FILES\tool"),
            link("Files/deep/er/tool.exe", r"..\..\program files\TOOL\tool.EXE"),
            link("Files/escape", r"..\..\..\..\..\etc\passwd"),
            link("Files/absolute", "/etc/passwd"),
            link("Files/dangling", r"C:\nowhere"),
        ],
        [link("Files/over", r"\??\C:\TOOL\Tool.exe")],
    )
    read = ["tool/Tool.exe", "deep/er/tool.exe", "escape", "absolute", "dangling", "over"]
    assert merged(stack, tmp_path, read=read)["read"] == {
        "tool/Tool.exe": "tool",
        "deep/er/tool.exe": "tool",
        "escape": "in C:",
        "absolute": "in C:",
        "dangling": "No such file or directory",
        "over": "tool",
    }


def test_only_layers_with_another_spelling_are_copied(tmp_path: Path) -> None:
    stack = layers(
        tmp_path,
        [file("Files/App/a", b"a"), file("Files/App/b", b"b")],
        [file("Files/App/c", b"c"), link("Files/App/l", r"C:\App\a")],
        [folder("Files/app", 0x12), file("Files/app/d", b"d", 0x21), file("Files/app/.wh.B")],
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lower = overlay_lowerdirs(stack, scratch)
    assert lower == [scratch / "2", stack[1] / "Files", stack[0] / "Files"]
    assert found(scratch / "2") == {"App": None, "App/b": "whiteout", "App/d": b"d"}
    copied, own = scratch / "2" / "App", stack[2] / "Files" / "app"
    assert os.getxattr(copied, "user.DOSATTRIB") == b"0x2"
    assert copied.stat().st_mtime == own.stat().st_mtime
    assert (copied / "d").stat().st_ino == (own / "d").stat().st_ino


def test_directories_of_a_single_layer_are_not_compared(tmp_path: Path) -> None:
    (one,) = layers(tmp_path, [file("Files/A/b", b"b")])
    (one / "Files" / "A").chmod(0o755)
    assert overlay_lowerdirs([one], tmp_path / "scratch") == [one / "Files"]
    assert overlay_lowerdirs([], tmp_path / "scratch") == []

"""Image layers as programs in a container see them, through Wine and a real overlay."""

from collections.abc import Iterator

import pytest
from tests.support.e2e.windows_container import Container, container
from tests.support.layer_archives import archive, file, folder, link, unpack

from winpod.images.base.builder import Base
from winpod.images.layers.names import NameMap
from winpod.windows.builds import parse_build

LOWER = archive(
    folder("Files/Program Files/Tool"),
    file("Files/Program Files/Tool/Text.txt", b"lower\r\n"),
    file("Files/Program Files/Tool/Kept.txt", b"kept\r\n"),
    file("Files/data/gone.txt", b"gone\r\n"),
    file("Files/data/hidden.txt", b"x", 0x22),
    file("Files/data/system.txt", b"x", 0x26),
    file("Files/data/readonly.txt", b"x", 0x21),
    file("Files/data/plain.txt", b"x", 0x20),
)
UPPER = archive(
    file("Files/PROGRAM FILES/TOOL/TEXT.TXT", b"upper\r\n"),
    file("Files/Data/.wh.GONE.txt"),
    file("Files/Windows/.wh.Notepad.exe"),
    file("Files/Windows/System32/drivers/etc/hosts", b"127.0.0.1 image\r\n"),
    file("Files/show.bat", b'@type "C:\\PROGRAM FILES\\tool\\%1"\r\n'),
    link("Files/tool", r"\??\C:\program files\tool"),
    link("Files/data/text", r"..\PROGRAM FILES\tool\text.txt"),
    link("Files/data/out", r"..\..\..\..\..\..\etc\passwd"),
)


@pytest.fixture(scope="module")
def windows(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    workspace = tmp_path_factory.mktemp("layers")
    layers = [workspace / "lower", workspace / "upper"]
    for content, layer in zip((LOWER, UPPER), layers, strict=True):
        unpack(content, layer, names=NameMap.read_drive(base.drive_c))
    with container(base, parse_build("2022"), layers, workspace / "container") as running:
        yield running


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (r"C:\show.bat Text.txt", "upper"),
        (r"C:\show.bat KEPT.TXT", "kept"),
        (r"type C:\tool\text.txt", "upper"),
        (r"type C:\DATA\TEXT", "upper"),
        (r"if exist C:\data\gone.txt (echo there) else (echo gone)", "gone"),
        (r"if exist C:\windows\notepad.exe (echo there) else (echo gone)", "gone"),
        (r"if exist C:\data\out (echo there) else (echo nowhere)", "nowhere"),
        (r"type C:\windows\system32\drivers\etc\hosts", "127.0.0.1 image"),
        (r"dir /b /ad C:\Prog*", "Program Files Program Files (x86) ProgramData"),
        (r"dir /b /ah C:\data", "hidden.txt system.txt"),
        (r"dir /b /as C:\data", "system.txt"),
        (r"dir /b /ar C:\data", "readonly.txt"),
        (r"dir /b /a-h C:\data\*.txt", "plain.txt readonly.txt"),
    ],
)
def test_merged_layers_look_like_windows(windows: Container, command: str, expected: str) -> None:
    result = windows.run_in_cmd(command)
    assert " ".join(sorted(result.output.split("\r\n"))).strip() == expected


def test_read_only_file_is_not_writable(windows: Container) -> None:
    result = windows.run("cmd", "/c", r"echo changed>C:\data\readonly.txt")
    assert "Access denied." in result.output
    assert not (windows.written / "data" / "readonly.txt").exists()

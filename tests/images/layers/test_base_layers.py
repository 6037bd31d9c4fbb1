import gzip
import random
from pathlib import Path

import pytest
import zstandard

from tests.support.layer_archives import Item, archive, file, folder, hard_link, link
from winpod.images.layers.base_layers import is_base_layer
from winpod.images.pack import PackConfig, pack, read_content
from winpod.windows.builds import parse_build

SIGNS: dict[str, Item] = {
    "the hive of a whole system": file("Files/Windows/System32/config/SYSTEM", b"regf"),
    "a hive in another case": file("files/windows/system32/CONFIG/software", b"regf"),
    "the hive of the base": file("Hives/System_Base", b"regf"),
    "ntdll": file("Files/Windows/System32/ntdll.dll", b"MZ"),
    "ntdll as a hard link": hard_link("Files/Windows/System32/ntdll.dll", "Files/x"),
    "the utility VM": folder("UtilityVM"),
    "the utility VM's files": file("./UtilityVM/Files/EFI/Microsoft/Boot/BCD", b"regf"),
    "what only setup makes": link("Files/Documents and Settings", r"\??\C:\Users"),
}
NO_SIGNS: dict[str, Item] = {
    "a change to a hive": file("Hives/System_Delta", b"regf"),
    "another file of system32": file("Files/Windows/System32/drivers/etc/hosts", b""),
    "an ntdll of one's own": file("Files/app/ntdll.dll", b"MZ"),
    "a directory for old programs": folder("Files/Documents and Settings"),
    "a file called so": file("Files/app/UtilityVM", b""),
}
BEFORE = (folder("Files"), folder("Files/Windows"), file("Files/License.txt", b"license" * 100))


@pytest.mark.parametrize("sign", SIGNS)
def test_base_layer_is_recognised_by_its_first_entries(sign: str) -> None:
    assert is_base_layer(archive(*BEFORE, SIGNS[sign]), "none")


@pytest.mark.parametrize("sign", NO_SIGNS)
def test_other_layers_are_not_base_layers(sign: str) -> None:
    assert not is_base_layer(archive(*BEFORE, NO_SIGNS[sign]), "none")


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_first_bytes_are_sufficient(compression: str) -> None:
    noise = random.Random(1).randbytes(300_000)
    layer = archive(*BEFORE, SIGNS["ntdll"], *(file(f"Files/{n}", noise) for n in range(5)))
    packed = {
        "gzip": gzip.compress(layer, 1),
        "zstd": zstandard.ZstdCompressor(write_content_size=False).compress(layer),
        "none": layer,
    }[compression]
    assert is_base_layer(
        packed[: 16 << 10 if compression == "none" else len(packed) // 2], compression
    )
    assert not is_base_layer(packed[:10], compression)


@pytest.mark.parametrize("head", [b"", b"x", b"junk" * 1000, b"\x1f\x8b\x08junk", bytes(2000)])
def test_unreadable_content_is_not_a_base_layer(head: bytes) -> None:
    assert not is_base_layer(head, "none")
    assert not is_base_layer(head, "gzip")


def test_only_the_base_layer_of_pack_is_a_base_layer(tmp_path: Path) -> None:
    (tmp_path / "c" / "app").mkdir(parents=True)
    (tmp_path / "c" / "app" / "app.exe").write_bytes(b"MZ")
    (tmp_path / "w").mkdir()
    content = read_content(tmp_path / "c")
    bundle = pack(content, [parse_build("10.0.20348.1")], PackConfig(), tmp_path / "w")
    heads = [blob.read_bytes() for _, blob in bundle.blobs if isinstance(blob, Path)]
    assert [is_base_layer(head[:4096], "gzip") for head in heads] == [True, False]

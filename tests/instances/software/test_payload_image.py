"""A payload that comes as an image is the one that was packed."""

from pathlib import Path

import pytest

from tests.instances.software.test_payload import GO_BUILD, program
from winpod.images.layout_write import write_image
from winpod.images.pack import Settings, pack, read_content
from winpod.instances.errors import BadPayload
from winpod.instances.software.payload import make_payload, read_payload
from winpod.instances.software.payload_image import fetch_payload
from winpod.instances.software.programs import REQUIRED
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.errors import InvalidInput


def packed(directory: Path, tmp_path: Path) -> str:
    (tmp_path / "work").mkdir()
    bundle = pack(read_content(directory), [DEFAULT_HOST], Settings(), tmp_path / "work")
    write_image(tmp_path / "layout", "payload", bundle)
    return f"oci:{tmp_path / 'layout'}:payload"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "payload"
    directory.mkdir()
    for name in REQUIRED:
        (directory / name).write_bytes(program(more=GO_BUILD))
    return directory


async def test_an_image_of_a_payload_is_that_payload(directory: Path, tmp_path: Path) -> None:
    made = make_payload(directory, "6.0.0")
    target = tmp_path / "new"
    found = await fetch_payload(packed(directory, tmp_path), target, tmp_path / "store")
    assert found == read_payload(target)
    assert (found.version, found.containerd) == (made.version, made.containerd)
    assert {name: file.sha256 for name, file in found.files.items()} == {
        name: file.sha256 for name, file in made.files.items()
    }


async def test_a_payload_is_not_mixed_with_another(directory: Path, tmp_path: Path) -> None:
    make_payload(directory, "6.0.0")
    with pytest.raises(InvalidInput, match="has a payload already"):
        await fetch_payload(packed(directory, tmp_path), directory, tmp_path / "store")


async def test_an_image_without_a_list_is_no_payload(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BadPayload, match=r"has no payload\.toml in it"):
        await fetch_payload(packed(directory, tmp_path), tmp_path / "new", tmp_path / "store")

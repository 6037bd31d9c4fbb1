"""Payloads pulled as images."""

from pathlib import Path

import pytest

from tests.support.payloads import GO_BUILD, program
from winpod.errors import InvalidInput
from winpod.images.layout import write_image
from winpod.images.pack import PackConfig, pack, read_content
from winpod.instances.errors import InvalidPayload
from winpod.instances.software.payload import fetch_payload, make_payload, read_payload
from winpod.instances.software.programs import REQUIRED
from winpod.windows.builds import DEFAULT_HOST


def packed(directory: Path, tmp_path: Path) -> str:
    (tmp_path / "work").mkdir()
    bundle = pack(read_content(directory), [DEFAULT_HOST], PackConfig(), tmp_path / "work")
    write_image(tmp_path / "layout", "payload", bundle)
    return f"oci:{tmp_path / 'layout'}:payload"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "payload"
    directory.mkdir()
    for name in REQUIRED:
        (directory / name).write_bytes(program(extra=GO_BUILD))
    return directory


async def test_payload_image_round_trips(directory: Path, tmp_path: Path) -> None:
    packed_payload = make_payload(directory, "6.0.0")
    target = tmp_path / "new"
    fetched = await fetch_payload(packed(directory, tmp_path), target, tmp_path / "store")
    assert fetched == read_payload(target)
    assert (fetched.version, fetched.containerd) == (
        packed_payload.version,
        packed_payload.containerd,
    )
    assert {name: file.sha256 for name, file in fetched.files.items()} == {
        name: file.sha256 for name, file in packed_payload.files.items()
    }


async def test_existing_payload_is_not_overwritten(directory: Path, tmp_path: Path) -> None:
    make_payload(directory, "6.0.0")
    with pytest.raises(InvalidInput, match="already has a payload"):
        await fetch_payload(packed(directory, tmp_path), directory, tmp_path / "store")


async def test_image_without_payload_list_is_rejected(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidPayload, match=r"has no payload\.toml"):
        await fetch_payload(packed(directory, tmp_path), tmp_path / "new", tmp_path / "store")

"""`winpod instance payload` and `fetch`."""

from pathlib import Path

from tests.support.payloads import GO_BUILD, program
from tests.support.winpod_cli import winpod
from winpod.instances.software.programs import REQUIRED


def test_payload_is_listed_packed_and_fetched(tmp_path: Path) -> None:
    programs, layout, there = (str(tmp_path / name) for name in ("payload", "layout", "there"))
    Path(programs).mkdir()
    for name in REQUIRED:
        (Path(programs) / name).write_bytes(program(extra=GO_BUILD))
    listed = winpod("instance", "payload", programs, "--version", "6.0.0", home=tmp_path)
    assert listed.code == 0, listed.err
    assert listed.out.endswith("payload.toml: version 6.0.0, containerd 2.4.2\n")
    packed = winpod("image", "pack", programs, "--tag", f"oci:{layout}:files", home=tmp_path)
    assert packed.code == 0, packed.err
    store = ("--root", str(tmp_path / "store"))
    fetched = winpod("instance", "fetch", f"oci:{layout}:files", there, *store, home=tmp_path)
    assert fetched.code == 0, fetched.err
    assert fetched.out.splitlines()[:-1] == listed.out.splitlines()[:-1]
    again = winpod("instance", "fetch", f"oci:{layout}:files", there, *store, home=tmp_path)
    assert again.code == 2
    assert "already has a payload" in again.err

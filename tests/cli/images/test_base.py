"""`winpod base`; builds are tested in tests/e2e."""

import json
from pathlib import Path

import pytest

from tests.support.base_records import save
from tests.support.winpod_cli import winpod


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_missing_base_is_reported_with_build_command(tmp_path: Path, home: Path) -> None:
    ran = winpod("base", "show", "--root", str(tmp_path), home=home)
    assert ran.code == 2
    assert "Build one: winpod base build" in ran.err
    ran = winpod("base", "show", "--root", str(tmp_path), "-o", "json", home=home)
    assert (ran.code, json.loads(ran.out)) == (0, [])


def test_base_is_shown_and_removed(tmp_path: Path, home: Path) -> None:
    save(tmp_path, "abcdef0123456789", size=223_000_000)
    ran = winpod("base", "show", "--root", str(tmp_path), home=home)
    assert ran.code == 0
    assert "abcdef012345  Wine 10.0~repack-6  64-bit  223 MB  built 2026-01-02 03:04" in ran.out
    assert "outdated: run winpod base build" in ran.out
    ran = winpod("base", "show", "--root", str(tmp_path), "-o", "json", home=home)
    assert json.loads(ran.out)[0]["packages"] == {"wine64": "10.0~repack-6"}
    ran = winpod("base", "rm", "abc", "--root", str(tmp_path), home=home)
    assert (ran.code, ran.out) == (0, "removed abcdef012345 (223 MB)\n")
    assert [path.name for path in (tmp_path / "bases").iterdir()] == [".lock"]


def test_hypervisor_assets_are_shown_and_removed_with_the_bases(tmp_path: Path, home: Path) -> None:
    save(tmp_path, "abcdef0123456789", size=223_000_000)
    kit = tmp_path / "kits/0123456789abcdef"
    kit.mkdir(parents=True)
    (kit / "kit.json").write_text('{"revision": 2, "qemu": "10.0.13"}')
    ran = winpod("base", "show", "--root", str(tmp_path), home=home)
    assert "0123456789ab  QEMU 10.0.13  for hypervisor isolation\n" in ran.out
    ran = winpod("base", "rm", "--root", str(tmp_path), home=home)
    assert ran.out.endswith("removed the hypervisor assets\n")
    assert not kit.exists()


def test_mirror_must_be_a_url(tmp_path: Path, home: Path) -> None:
    ran = winpod("base", "build", "--root", str(tmp_path), "--mirror", "debian", home=home)
    assert ran.code == 2
    assert ran.err.startswith("winpod: ")
    assert list(tmp_path.glob("bases/*")) == []

"""The kit: which QEMU it takes, and that it goes whole."""

from pathlib import Path

import pytest

from winpod.compute.errors import KitFailed
from winpod.compute.hypervisor.kit import find_kit, put_in_place, refuse_old, remove_kits


@pytest.mark.parametrize("version", ["10.0.13", "10.0", "11.2.1"])
def test_qemu_from_10_on_is_taken(version: str) -> None:
    refuse_old(version)


@pytest.mark.parametrize("version", ["7.2.9", "9.2.4"])
def test_an_older_one_is_refused_with_the_reason(version: str) -> None:
    with pytest.raises(KitFailed, match=f"QEMU {version}, in which guests with Wine crash"):
        refuse_old(version)


def test_a_kit_takes_the_place_of_others_and_one_of_the_same_packages_stays(
    tmp_path: Path,
) -> None:
    for name in (".lock", "old/tree", ".building-1/new", ".building-2"):
        (tmp_path / name).mkdir(parents=True)
    put_in_place(tmp_path / ".building-1", tmp_path / "kit")
    put_in_place(tmp_path / ".building-2", tmp_path / "kit")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "kit"]
    assert (tmp_path / "kit/new").exists()


def test_what_is_removed_is_gone_with_what_was_made_of_it(tmp_path: Path) -> None:
    assert not remove_kits(tmp_path)
    for folder in ("kits/one", "templates/other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "kits/one/kit.json").write_text('{"revision": 2, "qemu": "10.0.13"}')
    assert find_kit(tmp_path)
    assert remove_kits(tmp_path)
    assert list(tmp_path.iterdir()) == []

"""The kit: which QEMU it takes, and that it goes whole."""

from pathlib import Path

import pytest

from winpod.compute.errors import KitFailed
from winpod.compute.hypervisor.kit import find_kit, refuse_old, remove_kits


@pytest.mark.parametrize("version", ["10.0.13", "10.0", "11.2.1"])
def test_qemu_from_10_on_is_taken(version: str) -> None:
    refuse_old(version)


@pytest.mark.parametrize("version", ["7.2.9", "9.2.4"])
def test_an_older_one_is_refused_with_the_reason(version: str) -> None:
    with pytest.raises(KitFailed, match=f"QEMU {version}, in which guests with Wine crash"):
        refuse_old(version)


def test_what_is_removed_is_gone_with_what_was_made_of_it(tmp_path: Path) -> None:
    assert not remove_kits(tmp_path)
    for folder in ("kits/one", "templates/other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "kits/one/kit.json").write_text('{"revision": 2, "qemu": "10.0.13"}')
    assert find_kit(tmp_path)
    assert remove_kits(tmp_path)
    assert list(tmp_path.iterdir()) == []

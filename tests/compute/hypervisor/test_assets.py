"""Hypervisor assets: supported QEMU versions, installation and removal."""

from pathlib import Path

import pytest

from winpod.compute.errors import HypervisorAssetsFailed
from winpod.compute.hypervisor.assets import (
    find_assets,
    remove_assets,
    require_qemu_version,
)


@pytest.mark.parametrize("version", ["10.0.13", "10.0", "11.2.1"])
def test_qemu_10_and_newer_is_accepted(version: str) -> None:
    require_qemu_version(version)


@pytest.mark.parametrize("version", ["7.2.9", "9.2.4"])
def test_older_qemu_is_refused_with_the_reason(version: str) -> None:
    with pytest.raises(
        HypervisorAssetsFailed, match=f"QEMU {version}, in which guests with Wine crash"
    ):
        require_qemu_version(version)


def test_removing_assets_also_removes_templates(tmp_path: Path) -> None:
    assert not remove_assets(tmp_path)
    for folder in ("kits/one", "templates/other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "kits/one/kit.json").write_text('{"revision": 2, "qemu": "10.0.13"}')
    assert find_assets(tmp_path)
    assert remove_assets(tmp_path)
    assert list(tmp_path.iterdir()) == []

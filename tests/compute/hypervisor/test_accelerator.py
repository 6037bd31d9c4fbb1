"""Selection of KVM by the hardware modules, and of emulation where allowed."""

from pathlib import Path

import pytest

from winpod.compute.hypervisor.accelerator import (
    ALLOW,
    Accelerator,
    find_accelerator,
    is_emulation_allowed,
)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    device = tmp_path / "kvm"
    device.touch()
    return device


@pytest.mark.parametrize("module", ["kvm_intel", "kvm_amd"])
def test_kvm_is_used_with_a_hardware_module(tmp_path: Path, device: Path, module: str) -> None:
    (tmp_path / "modules" / module).mkdir(parents=True)
    found = find_accelerator(allow_emulation=True, modules=tmp_path / "modules", device=device)
    assert found.accelerator is Accelerator.KVM
    assert not found.unavailable_reason


def test_kvm_device_without_a_hardware_module_is_not_used(tmp_path: Path, device: Path) -> None:
    (tmp_path / "modules/kvm").mkdir(parents=True)
    found = find_accelerator(allow_emulation=False, modules=tmp_path / "modules", device=device)
    assert found.accelerator is Accelerator.EMULATION
    assert "neither kvm_intel nor kvm_amd" in found.unavailable_reason
    assert "hypervisor.allow_emulation" in found.unavailable_reason
    assert ALLOW in found.unavailable_reason


def test_emulation_is_used_if_allowed(tmp_path: Path, device: Path) -> None:
    found = find_accelerator(allow_emulation=True, modules=tmp_path, device=device)
    assert found.accelerator is Accelerator.EMULATION
    assert not found.unavailable_reason


def test_missing_device_is_named(tmp_path: Path) -> None:
    (tmp_path / "kvm_intel").mkdir()
    missing = tmp_path / "missing"
    found = find_accelerator(allow_emulation=False, modules=tmp_path, device=missing)
    assert f"{missing} cannot be opened" in found.unavailable_reason


@pytest.mark.parametrize(
    ("setting", "variable", "allowed"),
    [
        (False, "", False),
        (True, "", True),
        (False, "1", True),
        (True, "0", False),
        (True, "yes", True),
        (False, "yes", False),
    ],
)
def test_variable_overrides_the_setting(setting: bool, variable: str, allowed: bool) -> None:
    assert is_emulation_allowed(setting, {ALLOW: variable}) is allowed

"""Selection of KVM or emulation.

Creating a VM is not a sufficient test: on some hosts /dev/kvm only runs paravirtualized kernels. So
KVM requires the kernel's module for Intel's or AMD's processors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ALLOW = "WINPOD_ALLOW_EMULATION"
_MODULES = Path("/sys/module")
_DEVICE = Path("/dev/kvm")
_HARDWARE_MODULES = ("kvm_intel", "kvm_amd")


class Accelerator(StrEnum):
    KVM = "kvm"
    EMULATION = "emulation"


@dataclass(frozen=True, slots=True)
class AcceleratorStatus:
    """The accelerator; `unavailable_reason` is why guests cannot run, empty if they can."""

    accelerator: Accelerator
    unavailable_reason: str = ""


def find_accelerator(
    *, allow_emulation: bool, modules: Path = _MODULES, device: Path = _DEVICE
) -> AcceleratorStatus:
    has_module = any((modules / name).is_dir() for name in _HARDWARE_MODULES)
    if has_module and os.access(device, os.R_OK | os.W_OK):
        return AcceleratorStatus(Accelerator.KVM)
    if allow_emulation:
        return AcceleratorStatus(Accelerator.EMULATION)
    reason = (
        f"{device} cannot be opened by this user"
        if has_module
        else "the host has no hardware KVM (neither kvm_intel nor kvm_amd)"
    )
    return AcceleratorStatus(
        Accelerator.EMULATION,
        f"hypervisor isolation is unavailable: {reason}, and emulation, which is many times "
        f"slower, is not allowed (hypervisor.allow_emulation in config.toml, or {ALLOW}=1).",
    )


def is_emulation_allowed(setting: bool, environment: Mapping[str, str]) -> bool:
    """Decide whether emulation is allowed. The environment overrides the setting."""
    value = environment.get(ALLOW, "")
    return value == "1" if value in ("0", "1") else setting

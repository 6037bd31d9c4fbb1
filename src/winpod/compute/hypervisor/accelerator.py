"""What runs a guest's instructions: the processor itself, or an emulation of it.

That a VM can be made says nothing: there are machines whose /dev/kvm only runs kernels that were
changed for it. So hardware is what the kernel's modules for Intel's and AMD's processors say.
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
_OF_PROCESSORS = ("kvm_intel", "kvm_amd")


class Accelerator(StrEnum):
    KVM = "kvm"
    EMULATION = "emulation"


@dataclass(frozen=True, slots=True)
class Found:
    """What there is; `trouble` says why guests cannot run, empty where they can."""

    accelerator: Accelerator
    trouble: str = ""


def find_accelerator(
    *, allow_emulation: bool, modules: Path = _MODULES, device: Path = _DEVICE
) -> Found:
    has_module = any((modules / name).is_dir() for name in _OF_PROCESSORS)
    if has_module and os.access(device, os.R_OK | os.W_OK):
        return Found(Accelerator.KVM)
    if allow_emulation:
        return Found(Accelerator.EMULATION)
    why = (
        f"{device} cannot be opened by this user"
        if has_module
        else "there is no KVM of the processor's own here (neither kvm_intel nor kvm_amd)"
    )
    return Found(
        Accelerator.EMULATION,
        f"hypervisor isolation cannot be had: {why}, and emulation, which is many times slower, is "
        f"not allowed (hypervisor.allow_emulation in config.toml, or {ALLOW}=1).",
    )


def is_emulation_allowed(setting: bool, environment: Mapping[str, str]) -> bool:
    """The variable goes before the setting."""
    said = environment.get(ALLOW, "")
    return said == "1" if said in ("0", "1") else setting

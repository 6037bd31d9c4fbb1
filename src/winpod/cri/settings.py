"""How the runtime runs: where it listens, and what makes its containers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from winpod.windows.reading import At

SOCKET = Path("/run/winpod/winpod.sock")
_LOG_LEVELS = ("debug", "info", "warning", "error")


class Compute(StrEnum):
    """Real containers under Wine, or a simulation of them that costs nothing."""

    WINE = "wine"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`warm_shells` is how many shells are booted before anybody asks for one."""

    socket: Path = SOCKET
    tcp: str = ""
    compute: Compute = Compute.WINE
    warm_shells: int = 2
    log_level: str = "info"


def read_runtime_settings(table: At) -> RuntimeSettings:
    """The section `[runtime]`."""
    table.allow("socket", "tcp", "compute", "warm_shells", "log_level")
    default = RuntimeSettings()
    return RuntimeSettings(
        Path(table.get("socket").text(str(default.socket))),
        table.get("tcp").text(),
        Compute(table.get("compute").one_of(*Compute) or default.compute),
        int(table.get("warm_shells").number(default.warm_shells, 0, 100)),
        table.get("log_level").one_of(*_LOG_LEVELS) or default.log_level,
    )


@dataclass(frozen=True, slots=True)
class HypervisorSettings:
    """Whether guests may be emulated, many times slower, where the processor cannot run them."""

    allow_emulation: bool = False


def read_hypervisor_settings(table: At) -> HypervisorSettings:
    """The section `[hypervisor]`."""
    table.allow("allow_emulation")
    return HypervisorSettings(table.get("allow_emulation").flag())

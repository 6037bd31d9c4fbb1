"""The spec of an upgrade: old and new Windows build, strategy and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from winpod.errors import InvalidInput
from winpod.windows.builds import Build, parse_build

_STEP_TIMEOUT = 1800


class UpgradeStrategy(StrEnum):
    NEW_CLASS = "new-class"
    SAME_CLASS = "same-class"
    NODE_SELECTOR = "node-selector"


class OldNodePolicy(StrEnum):
    """What to do with drained old nodes; they stay cordoned in any case."""

    KEEP = "keep"
    MARK = "mark"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class UpgradeSpec:
    """`step_timeout` is in seconds; a step that exceeds it undoes the upgrade."""

    old: Build
    new: Build
    strategy: UpgradeStrategy = UpgradeStrategy.NEW_CLASS
    patch_workloads: bool = False
    leave_behind: bool = False
    old_nodes: OldNodePolicy = OldNodePolicy.KEEP
    step_timeout: int = _STEP_TIMEOUT

    @property
    def name(self) -> str:
        return f"{_short(self.old)}-to-{_short(self.new)}"


def _short(build: Build) -> str:
    return build.release.short_name if build.release else str(build.number)


def read_spec(spec: Mapping[str, Any]) -> UpgradeSpec:
    """Decode the resource's spec; builds may be versions or release names."""
    old, new = (parse_build(str(spec.get(key, ""))).base for key in ("from", "to"))
    if not old < new:
        raise InvalidInput(
            f"{new.describe()} is not newer than {old.describe()}.",
            "Images do not run on an older Windows, so only upgrades to a newer one are possible.",
        )
    return UpgradeSpec(
        old,
        new,
        UpgradeStrategy(spec.get("way", UpgradeStrategy.NEW_CLASS)),
        bool(spec.get("patchWorkloads", False)),
        bool(spec.get("leaveBehind", False)),
        OldNodePolicy(spec.get("oldNodes", OldNodePolicy.KEEP)),
        int(spec.get("patienceSeconds", _STEP_TIMEOUT)),
    )


def write_spec(upgrade: UpgradeSpec) -> dict[str, Any]:
    return {
        "from": _short(upgrade.old),
        "to": _short(upgrade.new),
        "way": str(upgrade.strategy),
        "patchWorkloads": upgrade.patch_workloads,
        "leaveBehind": upgrade.leave_behind,
        "oldNodes": str(upgrade.old_nodes),
        "patienceSeconds": upgrade.step_timeout,
    }

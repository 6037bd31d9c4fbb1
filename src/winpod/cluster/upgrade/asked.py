"""What is asked of an upgrade: from which Windows build to which, in which way, how far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from winpod.windows.builds import Build, parse_build
from winpod.windows.errors import InvalidInput

_PATIENCE = 1800


class Way(StrEnum):
    NEW_CLASS = "new-class"
    SAME_CLASS = "same-class"
    NODE_SELECTOR = "node-selector"


class OldNodes(StrEnum):
    """What becomes of them when they are empty; cordoned they are anyway."""

    KEEP = "keep"
    MARK = "mark"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Asked:
    """`patience` is how long one step may take, in seconds, before all is undone."""

    old: Build
    new: Build
    way: Way = Way.NEW_CLASS
    patch_workloads: bool = False
    leave_behind: bool = False
    old_nodes: OldNodes = OldNodes.KEEP
    patience: int = _PATIENCE

    @property
    def name(self) -> str:
        return f"{_short(self.old)}-to-{_short(self.new)}"


def _short(build: Build) -> str:
    return build.release.short_name if build.release else str(build.number)


def read_asked(spec: Mapping[str, Any]) -> Asked:
    """From the form of the resource; builds in any of their names."""
    old, new = (parse_build(str(spec.get(key, ""))).base for key in ("from", "to"))
    if not old < new:
        raise InvalidInput(
            f"{new.describe()} is not newer than {old.describe()}.",
            "Images never run on an older Windows, so an upgrade goes upwards only.",
        )
    return Asked(
        old,
        new,
        Way(spec.get("way", Way.NEW_CLASS)),
        bool(spec.get("patchWorkloads", False)),
        bool(spec.get("leaveBehind", False)),
        OldNodes(spec.get("oldNodes", OldNodes.KEEP)),
        int(spec.get("patienceSeconds", _PATIENCE)),
    )


def write_asked(asked: Asked) -> dict[str, Any]:
    return {
        "from": _short(asked.old),
        "to": _short(asked.new),
        "way": str(asked.way),
        "patchWorkloads": asked.patch_workloads,
        "leaveBehind": asked.leave_behind,
        "oldNodes": str(asked.old_nodes),
        "patienceSeconds": asked.patience,
    }

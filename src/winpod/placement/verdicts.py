"""Results of placement as plain data: outcomes and the reasons for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from winpod.windows.builds import Build
from winpod.windows.isolation import Isolation
from winpod.windows.platforms import Manifest


class Cause(StrEnum):
    OS = "os"
    ARCHITECTURE = "architecture"
    BUILD = "build"
    HANDLER = "handler"
    ISOLATION = "isolation"
    RUNTIME_CLASS = "runtime-class"
    SELECTOR = "node-selector"
    AFFINITY = "node-affinity"
    NODE_NAME = "node-name"
    TAINT = "taint"
    CORDONED = "cordoned"
    RESOURCES = "resources"
    IMAGE = "image"


class Stage(StrEnum):
    ADMIT = "admit"
    SCHEDULE = "schedule"
    START = "start"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pod does not run on a node.

    `symptom` is the message the cluster would show, `subject` the object that prevents it.
    """

    cause: Cause
    stage: Stage
    message: str
    symptom: str = ""
    subject: str = ""
    temporary: bool = False


class Outcome(StrEnum):
    RUNS = "runs"
    FAILS = "fails"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a pod on nodes that are equivalent for it."""

    nodes: tuple[str, ...]
    outcome: Outcome
    handler: str = ""
    isolation: Isolation | None = None
    kernel: Build | None = None
    manifests: tuple[tuple[str, Manifest], ...] = ()
    reasons: tuple[Reason, ...] = ()


class Status(StrEnum):
    RUNS = "runs"
    MAY_FAIL = "may-fail"
    WAITS = "waits"
    UNKNOWN = "unknown"
    CANNOT_RUN = "cannot-run"
    NOT_WINDOWS = "not-windows"


@dataclass(frozen=True, slots=True)
class Placement:
    status: Status
    verdicts: tuple[Verdict, ...]
    refusals: tuple[Reason, ...] = ()
    node: str = ""
    """The preferred node: one of the image's exact build if there is one."""


def format_node_names(names: Sequence[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown

"""What placement answers: outcomes, and the reasons for them, as plain data."""

from __future__ import annotations

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
    """Why not, as a sentence.

    `symptom` is what the cluster would show, `about` the thing that stands in the way.
    """

    cause: Cause
    stage: Stage
    sentence: str
    symptom: str = ""
    about: str = ""
    temporary: bool = False


class Outcome(StrEnum):
    RUNS = "runs"
    FAILS = "fails"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the pod on these nodes, which are all alike to it."""

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
    """The node to choose: one whose build is the image's own, if there is one."""

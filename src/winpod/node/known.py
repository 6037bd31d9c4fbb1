"""What the engine knows of a pod beside what the runtime has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from winpod.node.health import Health
from winpod.node.phase import Told

_RESIZING = "PodResizeInProgress"
RESIZES = ("PodResizePending", _RESIZING)


@dataclass(frozen=True, slots=True)
class Why:
    """The word and the sentence for what keeps a container waiting, or ended a pod."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """`failure` is why the pod has failed, whatever its containers did. `is_over` says that nothing
    is started again.
    """

    start_time: datetime
    waiting: Mapping[str, Why] = field(default_factory=dict)
    health: Mapping[str, Health] = field(default_factory=dict)
    failure: Why | None = None
    is_over: bool = False
    conditions: tuple[Told, ...] = ()

    @property
    def is_resizing(self) -> bool:
        return any(condition.type == _RESIZING for condition in self.conditions)

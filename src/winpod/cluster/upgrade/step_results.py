"""What comes of looking at a step: what was noted before it, and how far it is. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Noted:
    """What is read before a step is begun.

    `before` is what undoing it takes, `ready` how many pods of the workloads that it touches are
    ready.
    """

    before: Mapping[str, Any] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is awaited, or, where it is done, what there is to say about it.

    `look_again`: something was changed just now, and is to be read again at once.
    """

    is_done: bool = False
    message: str = ""
    look_again: bool = False


DONE, LOOK = Progress(is_done=True), Progress(look_again=True)
GONE = Progress(is_done=True, message="it is gone")
ANOTHER = Progress(
    is_done=True, message="it is gone; another of its name was made since, and is left alone"
)
OF_OTHERS = Progress(is_done=True, message="somebody else has changed it since, and it stays so")

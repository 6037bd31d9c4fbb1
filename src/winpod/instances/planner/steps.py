"""Steps to the desired state: data that the executor runs and that prints as a sentence.

A step is done when the next observation of the instance no longer requires it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StepKind(StrEnum):
    ENABLE_FEATURE = "enable the feature"
    REBOOT = "restart the host"
    STOP_SERVICE = "stop the service"
    REMOVE_SERVICE = "remove the service"
    REMOVE_POD = "remove the pod"
    REMOVE_NETWORK = "remove the network"
    MAKE_DIRECTORY = "make the directory"
    REMOVE_DIRECTORY = "remove the directory"
    PUT_FILE = "put the file"
    REMOVE_FILE = "remove the file"
    CREATE_SERVICE = "create the service"
    CHANGE_SERVICE = "change the service"
    START_SERVICE = "start the service"
    PULL_IMAGE = "pull the image"


@dataclass(frozen=True, slots=True)
class Step:
    """`target` is a path, name, ID or image reference; a reboot has none."""

    kind: StepKind
    target: str
    expected: str
    found: str
    why: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.target}".rstrip()

    def __str__(self) -> str:
        return f"{self.title}: {self.why}"

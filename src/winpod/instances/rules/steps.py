"""Steps from what an instance is to what it should be: data, done by others, printed as sentences.

A step is done when the next reading of the instance no longer asks for it, and only then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Do(StrEnum):
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
    """`target` is a path, a name, an id or a reference; a restart has none."""

    do: Do
    target: str
    expected: str
    found: str
    why: str

    @property
    def title(self) -> str:
        return f"{self.do} {self.target}".rstrip()

    def __str__(self) -> str:
        return f"{self.title}: {self.why}"

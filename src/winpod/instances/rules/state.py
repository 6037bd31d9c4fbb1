"""What an instance is like: read in one go, never guessed, and plain data.

Only what was asked for is in it. Paths are spelled as the question spelled them, services are
found by their lower-case name, and what does not exist is not in a mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from winpod.windows.builds import Build

UNREADABLE = "a file that cannot be read"
"""In place of its hash: somebody has it open and shares it with nobody."""


class Start(StrEnum):
    AUTO = "auto"
    MANUAL = "manual"
    DISABLED = "disabled"


class Running(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    STARTING = "starting"
    STOPPING = "stopping"


class FeatureState(StrEnum):
    """`PENDING` is on after the next restart; `ABSENT` is not in this Windows at all."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    PENDING = "pending"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Service:
    """`restarts` are the delays of its restarts after failures, in milliseconds."""

    name: str
    command_line: str
    depends: tuple[str, ...] = ()
    start: Start = Start.AUTO
    state: Running = Running.RUNNING
    description: str = ""
    restarts: tuple[int, ...] = ()
    reset_seconds: int = 0

    def depends_on(self, *names: str) -> bool:
        wanted = {name.lower() for name in names}
        return any(name.lower() in wanted for name in self.depends)


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the Host Networking Service."""

    id: str
    name: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """`booted` is another text after each boot.

    `version` is what the version file says, nothing where it is not there. `empty` are those of
    the directories with nothing in them. `images` and `pods` are containerd's while it runs, the
    pods by their ids.
    """

    build: Build
    product: str
    hostname: str
    booted: str
    version: str = ""
    features: Mapping[str, FeatureState] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    networks: tuple[Network, ...] = ()
    free_bytes: int = 0
    images: frozenset[str] = frozenset()
    pods: frozenset[str] = frozenset()

    def service(self, name: str) -> Service | None:
        return self.services.get(name.lower())

    def runs(self, name: str) -> bool:
        service = self.service(name)
        return service is not None and service.state is Running.RUNNING

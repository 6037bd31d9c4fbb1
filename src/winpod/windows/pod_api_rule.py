"""The shape of one row of the Pod API table.

A row says what a field does to a pod on Windows under one condition. Conditions are pure functions
of the pod spec, the container around the field (empty at pod level) and the field's value. They
meet data as a person wrote it, so they take any shape and answer False where it is not theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from enum import StrEnum
from typing import Any

from winpod.windows.builds import Build

Spec = Mapping[str, Any]
Container = Mapping[str, Any]


class Behaviour(StrEnum):
    WORKS = "works"
    DIFFERS = "differs"
    IGNORED = "ignored"
    REJECTED = "rejected"
    FAILS = "fails"


class Topic(StrEnum):
    SECURITY = "Security"
    NAMESPACES = "Namespaces"
    USERS = "Users"
    VOLUMES = "Volumes"
    RESOURCES = "Resources"
    NETWORKING = "Networking"
    LIFECYCLE = "Probes and lifecycle"
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Condition:
    """When a row applies: in words for the reader, and as a test for the linter."""

    words: str
    holds: Callable[[Spec, Container, Any], bool]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What one field does on Windows, with `spec.os.name: windows` and without.

    `also` are further paths the row speaks for. A path with `[*]` after `containers` covers init
    and ephemeral containers too. `since_kubernetes` and `since_build` are where the behaviour
    begins; on anything older it is `before`. A difference is worth a note only where `notable`.
    `example_needs` names what a cluster must hold, or where else the example must be posted,
    before an API server can answer for it.
    """

    id: str
    field: str
    topic: Topic
    when: Condition
    os_stated: Behaviour
    os_unstated: Behaviour
    what: str
    instead: str
    example: Mapping[str, Any] = attribute(hash=False)
    also: tuple[str, ...] = ()
    since_kubernetes: tuple[int, int] | None = None
    since_build: Build | None = None
    before: Behaviour = Behaviour.IGNORED
    notable: bool = False
    example_needs: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field, *self.also)

    @property
    def since(self) -> str:
        """`Kubernetes 1.33`, `10.0.19041 (Windows Server 2004)`, both, or nothing."""
        parts = []
        if self.since_kubernetes:
            parts.append("Kubernetes {}.{}".format(*self.since_kubernetes))
        if self.since_build:
            parts.append(self.since_build.describe())
        return ", ".join(parts)

    def behaviour(self, *, os_stated: bool) -> Behaviour:
        return self.os_stated if os_stated else self.os_unstated

    def example_spec(self, *, os_stated: bool) -> dict[str, Any]:
        """The example as a whole pod spec; one that states an os itself keeps it."""
        if not os_stated or "os" in self.example:
            return dict(self.example)
        return {"os": {"name": "windows"}, **self.example}


def at(data: object, *keys: str) -> Any:
    """The value down a path of keys, or None wherever the path leaves the data."""
    for key in keys:
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def containers_of(spec: Spec) -> list[Container]:
    """Every container of the pod, of all three kinds, that has the shape of one."""
    lists = (spec.get(kind) for kind in ("containers", "initContainers", "ephemeralContainers"))
    return [
        c for found in lists if isinstance(found, list) for c in found if isinstance(c, Mapping)
    ]


def windows_option(spec: Spec, container: Container, name: str) -> Any:
    """A windowsOptions value as it takes effect: the container's own, else the pod's."""
    own = at(container, "securityContext", "windowsOptions", name)
    return at(spec, "securityContext", "windowsOptions", name) if own is None else own


def is_host_process(spec: Spec, container: Container) -> bool:
    return windows_option(spec, container, "hostProcess") is True


def any_host_process(spec: Spec) -> bool:
    return any(is_host_process(spec, container) for container in containers_of(spec))


def runs_as_non_root(spec: Spec, container: Container) -> bool:
    own = at(container, "securityContext", "runAsNonRoot")
    return (at(spec, "securityContext", "runAsNonRoot") if own is None else own) is True

"""Rows of the Pod API table.

A row describes what a field does on Windows under one condition. Conditions are pure functions of
the pod spec, the container of the field (empty at pod level) and the field's value. They receive
unvalidated user input, so they accept any type and return False for an unexpected one.
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
class RuleCondition:
    """When a row applies: a description for the reader and a predicate for the linter."""

    description: str
    predicate: Callable[[Spec, Container, Any], bool]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What one field does on Windows, with `spec.os.name: windows` and without.

    `also` lists further paths the row covers. A path with `[*]` after `containers` covers init
    and ephemeral containers too. `since_kubernetes` and `since_build` are the first versions with
    the behaviour; on older ones it is `before`. `winpod check` notes a difference only if it is
    `notable`. `example_needs` is what must exist in the cluster, or the subresource to post to,
    before an API server can validate the example.
    """

    id: str
    field: str
    topic: Topic
    when: RuleCondition
    os_stated: Behaviour
    os_unstated: Behaviour
    effect: str
    alternative: str
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
        """`Kubernetes 1.33`, `10.0.19041 (Windows Server 2004)`, both, or empty."""
        parts = []
        if self.since_kubernetes:
            parts.append("Kubernetes {}.{}".format(*self.since_kubernetes))
        if self.since_build:
            parts.append(self.since_build.describe())
        return ", ".join(parts)

    def behaviour(self, *, os_stated: bool) -> Behaviour:
        return self.os_stated if os_stated else self.os_unstated

    def example_spec(self, *, os_stated: bool) -> dict[str, Any]:
        """Return the example as a pod spec; an example that sets `os` keeps it."""
        if not os_stated or "os" in self.example:
            return dict(self.example)
        return {"os": {"name": "windows"}, **self.example}


def get_path(data: object, *keys: str) -> Any:
    """Return the value at a path of keys, or None if the path does not exist."""
    for key in keys:
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def containers_of(spec: Spec) -> list[Container]:
    """Return the containers of all three kinds, skipping malformed entries."""
    lists = (spec.get(kind) for kind in ("containers", "initContainers", "ephemeralContainers"))
    return [
        c for items in lists if isinstance(items, list) for c in items if isinstance(c, Mapping)
    ]


def windows_option(spec: Spec, container: Container, name: str) -> Any:
    """Return the effective windowsOptions value: the container's, else the pod's."""
    own = get_path(container, "securityContext", "windowsOptions", name)
    return get_path(spec, "securityContext", "windowsOptions", name) if own is None else own


def is_host_process(spec: Spec, container: Container) -> bool:
    return windows_option(spec, container, "hostProcess") is True


def any_host_process(spec: Spec) -> bool:
    return any(is_host_process(spec, container) for container in containers_of(spec))


def runs_as_non_root(spec: Spec, container: Container) -> bool:
    own = get_path(container, "securityContext", "runAsNonRoot")
    return (get_path(spec, "securityContext", "runAsNonRoot") if own is None else own) is True

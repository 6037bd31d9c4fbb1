"""The Pod API on Windows: a linter that walks a pod spec once against the table.

The paths of all rows are one tree, built at import; a pod costs what it contains, not what the
table holds. The spec is what a person wrote: a wrong shape is not matched and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from winpod.windows.builds import Build
from winpod.windows.pod_api_rule import (
    Behaviour,
    Condition,
    Container,
    FieldRule,
    Spec,
    Topic,
    at,
)
from winpod.windows.pod_api_table import FIELD_RULES
from winpod.windows.reading import Path, show_path

__all__ = [
    "FIELD_RULES",
    "Behaviour",
    "Condition",
    "FieldRule",
    "Finding",
    "Topic",
    "lint_pod",
]

Severity = Literal["error", "warning", "note"]

OS_FIELD_SINCE = (1, 24)

_SEVERITIES: Mapping[Behaviour, Severity] = {
    Behaviour.REJECTED: "error",
    Behaviour.FAILS: "error",
    Behaviour.IGNORED: "warning",
    Behaviour.DIFFERS: "note",
    Behaviour.WORKS: "note",
}

_VERBS: Mapping[Behaviour, str] = {
    Behaviour.REJECTED: "is rejected by the API server",
    Behaviour.FAILS: "cannot work on Windows",
    Behaviour.IGNORED: "is ignored on Windows",
    Behaviour.DIFFERS: "behaves differently on Windows",
    Behaviour.WORKS: "works on Windows",
}

_SPOKEN = frozenset({Behaviour.REJECTED, Behaviour.FAILS, Behaviour.IGNORED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that applies to one place of a pod spec."""

    rule: FieldRule
    path: Path
    behaviour: Behaviour
    sentence: str

    @property
    def severity(self) -> Severity:
        return _SEVERITIES[self.behaviour]


@dataclass(slots=True)
class _Node:
    rules: list[FieldRule] = field(default_factory=list)
    keys: dict[object, _Node] = field(default_factory=dict)
    prefixes: dict[str, _Node] = field(default_factory=dict)
    items: _Node | None = None
    is_container: bool = False

    def below(self, key: object) -> _Node | None:
        if (node := self.keys.get(key)) is None and self.prefixes and isinstance(key, str):
            return next((n for prefix, n in self.prefixes.items() if key.startswith(prefix)), None)
        return node


_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_NOT_IN_EPHEMERAL = frozenset(
    {
        "ports",
        "resources",
        "resizePolicy",
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
    }
)


def lint_pod(
    spec: Mapping[str, Any],
    *,
    builds: Collection[Build] = (),
    kubernetes: tuple[int, int] | None = None,
) -> tuple[Finding, ...]:
    """Every row of the table that a pod meant for Windows should act on.

    `builds` are those the pod may run on, `kubernetes` the cluster's version; unknown means new.
    """
    if not isinstance(spec, Mapping):
        return ()
    stated = at(spec, "os", "name") == "windows"
    if kubernetes is not None and kubernetes < OS_FIELD_SINCE:
        stated = False
    oldest = min((build.base for build in builds), default=None)
    found = []
    for rule, path in _matches(spec):
        lacking = _lacking(rule, oldest, kubernetes)
        behaviour = rule.before if lacking else rule.behaviour(os_stated=stated)
        if behaviour in _SPOKEN or (behaviour is Behaviour.DIFFERS and (rule.notable or lacking)):
            found.append(Finding(rule, path, behaviour, _sentence(rule, path, behaviour, lacking)))
    return tuple(found)


def _lacking(rule: FieldRule, oldest: Build | None, kubernetes: tuple[int, int] | None) -> str:
    """What the given cluster is too old for, or nothing."""
    if rule.since_build and oldest is not None and oldest < rule.since_build:
        return f"before {rule.since_build.describe()}"
    if rule.since_kubernetes and kubernetes is not None and kubernetes < rule.since_kubernetes:
        return "before Kubernetes {}.{}".format(*rule.since_kubernetes)
    return ""


def _can_speak(rule: FieldRule) -> bool:
    return (
        rule.notable
        or bool(rule.since_build or rule.since_kubernetes)
        or not _SPOKEN.isdisjoint((rule.os_stated, rule.os_unstated))
    )


def _sentence(rule: FieldRule, path: Path, behaviour: Behaviour, lacking: str) -> str:
    verb = f"{_VERBS[behaviour]} {lacking}" if lacking else _VERBS[behaviour]
    return f"{show_path(path)} {verb}. {rule.what}"


def _matches(spec: Spec) -> list[tuple[FieldRule, Path]]:
    found: list[tuple[FieldRule, Path]] = []

    def walk(node: _Node, value: Any, path: Path, container: Container) -> None:
        for rule in node.rules:
            if rule.when.holds(spec, container, value):
                found.append((rule, path))
        if isinstance(value, list):
            if node.items is not None:
                for index, child in enumerate(value):
                    walk(node.items, child, (*path, index), container)
        elif (node.keys or node.prefixes) and isinstance(value, Mapping):
            within = value if node.is_container else container
            for key, child in value.items():
                if (below := node.below(key)) is not None:
                    walk(below, child, (*path, key), within)

    walk(_TREE, spec, (), {})
    return found


def _segments(path: str) -> list[str]:
    """`spec.volumes[*].nfs` as `volumes`, `[*]`, `nfs`."""
    return [part for part in re.split(r"\.|(\[\*\])", path.removeprefix("spec")) if part]


def _spellings(path: str) -> Iterator[list[str]]:
    segments = _segments(path)
    if segments[:2] != ["containers", "[*]"]:
        yield segments
        return
    for kind in _CONTAINER_LISTS:
        if kind == "ephemeralContainers" and not _NOT_IN_EPHEMERAL.isdisjoint(segments[2:3]):
            continue
        yield [kind, *segments[1:]]


def _tree(rules: Collection[FieldRule]) -> _Node:
    root = _Node()
    for rule in rules:
        for path in rule.fields:
            for segments in _spellings(path):
                _leaf(root, segments).rules.append(rule)
    for kind in _CONTAINER_LISTS:
        _leaf(root, [kind, "[*]"]).is_container = True
    return root


def _leaf(node: _Node, segments: list[str]) -> _Node:
    for segment in segments:
        if segment == "[*]":
            node.items = node.items or _Node()
            node = node.items
        elif segment.endswith("*"):
            node = node.prefixes.setdefault(segment.removesuffix("*"), _Node())
        else:
            node = node.keys.setdefault(segment, _Node())
    return node


_TREE = _tree([rule for rule in FIELD_RULES if _can_speak(rule)])

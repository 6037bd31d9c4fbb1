"""Linter for the Pod API on Windows: walks a pod spec once against the table.

The paths of all rows form one tree, built at import, so the cost depends on the size of the pod and
not of the table. The spec is unvalidated user input: malformed parts are skipped and never raise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from winpod.field_reader import FieldPath, format_path
from winpod.windows.builds import Build
from winpod.windows.pod_api.rule import (
    Behaviour,
    Container,
    FieldRule,
    RuleCondition,
    Spec,
    Topic,
    get_path,
)
from winpod.windows.pod_api.table import FIELD_RULES

__all__ = [
    "FIELD_RULES",
    "Behaviour",
    "FieldRule",
    "Finding",
    "RuleCondition",
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

_REPORTED = frozenset({Behaviour.REJECTED, Behaviour.FAILS, Behaviour.IGNORED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that applies to one place of a pod spec."""

    rule: FieldRule
    path: FieldPath
    behaviour: Behaviour
    message: str

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

    def child(self, key: object) -> _Node | None:
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
    """Return a finding for every row of the table that a Windows pod should act on.

    `builds` are those the pod may run on, `kubernetes` the cluster's version; if unknown, the
    newest is assumed.
    """
    if not isinstance(spec, Mapping):
        return ()
    stated = get_path(spec, "os", "name") == "windows"
    if kubernetes is not None and kubernetes < OS_FIELD_SINCE:
        stated = False
    oldest = min((build.base for build in builds), default=None)
    findings = []
    for rule, path in _matches(spec):
        unsupported = _unsupported_before(rule, oldest, kubernetes)
        behaviour = rule.before if unsupported else rule.behaviour(os_stated=stated)
        if behaviour in _REPORTED or (
            behaviour is Behaviour.DIFFERS and (rule.notable or unsupported)
        ):
            findings.append(
                Finding(rule, path, behaviour, _message(rule, path, behaviour, unsupported))
            )
    return tuple(findings)


def _unsupported_before(
    rule: FieldRule, oldest: Build | None, kubernetes: tuple[int, int] | None
) -> str:
    """Return the version before which the row does not apply, if the cluster is older."""
    if rule.since_build and oldest is not None and oldest < rule.since_build:
        return f"before {rule.since_build.describe()}"
    if rule.since_kubernetes and kubernetes is not None and kubernetes < rule.since_kubernetes:
        return "before Kubernetes {}.{}".format(*rule.since_kubernetes)
    return ""


def _is_reportable(rule: FieldRule) -> bool:
    return (
        rule.notable
        or bool(rule.since_build or rule.since_kubernetes)
        or not _REPORTED.isdisjoint((rule.os_stated, rule.os_unstated))
    )


def _message(rule: FieldRule, path: FieldPath, behaviour: Behaviour, unsupported: str) -> str:
    verb = f"{_VERBS[behaviour]} {unsupported}" if unsupported else _VERBS[behaviour]
    return f"{format_path(path)} {verb}. {rule.effect}"


def _matches(spec: Spec) -> list[tuple[FieldRule, FieldPath]]:
    findings: list[tuple[FieldRule, FieldPath]] = []

    def walk(node: _Node, value: Any, path: FieldPath, container: Container) -> None:
        for rule in node.rules:
            if rule.when.predicate(spec, container, value):
                findings.append((rule, path))
        if isinstance(value, list):
            if node.items is not None:
                for index, child in enumerate(value):
                    walk(node.items, child, (*path, index), container)
        elif (node.keys or node.prefixes) and isinstance(value, Mapping):
            within = value if node.is_container else container
            for key, child in value.items():
                if (below := node.child(key)) is not None:
                    walk(below, child, (*path, key), within)

    walk(_TREE, spec, (), {})
    return findings


def _segments(path: str) -> list[str]:
    """`spec.volumes[*].nfs` as `volumes`, `[*]`, `nfs`."""
    return [part for part in re.split(r"\.|(\[\*\])", path.removeprefix("spec")) if part]


def _expand_path(path: str) -> Iterator[list[str]]:
    segments = _segments(path)
    if segments[:2] != ["containers", "[*]"]:
        yield segments
        return
    for kind in _CONTAINER_LISTS:
        if kind == "ephemeralContainers" and not _NOT_IN_EPHEMERAL.isdisjoint(segments[2:3]):
            continue
        yield [kind, *segments[1:]]


def _build_tree(rules: Collection[FieldRule]) -> _Node:
    root = _Node()
    for rule in rules:
        for path in rule.fields:
            for segments in _expand_path(path):
                _descend(root, segments).rules.append(rule)
    for kind in _CONTAINER_LISTS:
        _descend(root, [kind, "[*]"]).is_container = True
    return root


def _descend(node: _Node, segments: list[str]) -> _Node:
    for segment in segments:
        if segment == "[*]":
            node.items = node.items or _Node()
            node = node.items
        elif segment.endswith("*"):
            node = node.prefixes.setdefault(segment.removesuffix("*"), _Node())
        else:
            node = node.keys.setdefault(segment, _Node())
    return node


_TREE = _build_tree([rule for rule in FIELD_RULES if _is_reportable(rule)])

"""Reads pods, nodes and RuntimeClasses from manifest files, and locates fields by line.

Accepts multi-document YAML and JSON from files, directories or standard input. Objects of other
kinds are skipped. Lines are computed on demand, for the fields that a message refers to.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import yaml

from winpod.errors import InvalidInput
from winpod.field_reader import Field, FieldPath, InvalidField
from winpod.placement.model import Node, Pod, RuntimeClass
from winpod.placement.predicates import TERMINAL_PHASES

STDIN = "-"
_SUFFIXES = (".yaml", ".yml", ".json")


class _Loader(yaml.CSafeLoader):
    """YAML loader that, like Kubernetes, reads dates and a lone equals sign as strings."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp) for tag, regexp in resolvers if not tag.endswith((":timestamp", ":value"))
    ]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One document of a file, with the text to locate its fields."""

    file: str
    first_line: int
    text: str = field(repr=False)

    def line(self, path: FieldPath) -> int:
        """Return the line of the deepest part of the path that exists."""
        if not path:
            return self.first_line
        deepest = node = _compose(self.text)
        for part in path:
            child = _child(node, part)
            if child is None:
                break
            deepest, node = child
        return self.first_line + (deepest.start_mark.line if deepest else 0)


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@lru_cache(maxsize=4)
def _compose(text: str) -> yaml.Node | None:
    """Return the document's nodes; None for JSON that YAML cannot read, such as a very long key."""
    try:
        # JSON escapes surrogate pairs as two halves, which YAML does not accept as characters.
        node: yaml.Node | None = yaml.compose(_SURROGATE.sub("?", text), Loader=_Loader)
    except yaml.YAMLError:
        return None
    return node


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node where a member is written (its key, in a mapping) and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # the last of duplicate keys wins
            if key.value == part:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


@dataclass(frozen=True, slots=True)
class ObjectOrigin:
    """The document of an object, and its path there if it is an item of a list."""

    document: YamlDocument
    path: FieldPath = ()

    @property
    def file(self) -> str:
        return self.document.file

    def line(self, path: FieldPath = ()) -> int:
        return self.document.line((*self.path, *path))


class InvalidManifest(InvalidInput):
    """An invalid manifest, reported with file and line."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        super().__init__(f"{file}:{line}: {problem}")


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that creates pods, and its pod template."""

    kind: str
    namespace: str
    name: str
    pod: Pod
    spec: Mapping[str, Any] = field(repr=False)
    spec_path: FieldPath
    origin: ObjectOrigin
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(slots=True)
class Manifests:
    workloads: list[Workload] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    classes: list[RuntimeClass] = field(default_factory=list)
    secrets: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    skipped: int = 0

    def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        for secret_namespace, secret in self.secrets:
            if secret_namespace == namespace and secret["metadata"]["name"] == name:
                return secret
        return None


_TEMPLATE: FieldPath = ("spec", "template")
_WORKLOADS: dict[tuple[str, str], FieldPath] = {
    ("", "Pod"): (),
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", *_TEMPLATE),
}


def template_path(version: str, kind: str) -> FieldPath | None:
    """Return the path of the pod template, such as `spec.template`; None for other kinds."""
    return _WORKLOADS.get((version.rpartition("/")[0], kind))


_GROUPS = {kind: group for group, kind in _WORKLOADS if group} | {"RuntimeClass": "node.k8s.io"}
_WRONG_GROUPS = ("", "extensions")
"""Groups that these kinds never had, or were removed from."""


def read_manifests(sources: Iterable[str]) -> Manifests:
    """Read all sources, or raise the first error."""
    manifests = Manifests()
    for source in sources:
        for document, obj, is_listed in _documents(source):
            _add(manifests, ObjectOrigin(document), obj, is_listed)
    return manifests


def read_objects(sources: Iterable[str]) -> Iterator[tuple[ObjectOrigin, Any]]:
    """Yield every object of the sources, items of lists included, with its origin."""
    for source in sources:
        for document, obj, is_listed in _documents(source):
            if obj is not None and (is_listed or isinstance(obj, dict)):
                yield from _flatten(ObjectOrigin(document), obj)


def _flatten(origin: ObjectOrigin, obj: Any) -> Iterator[tuple[ObjectOrigin, Any]]:
    items = obj.get("items") if isinstance(obj, dict) else None
    if isinstance(items, list) and str(obj.get("kind", "")).endswith("List"):
        for index, item in enumerate(items):
            yield from _flatten(ObjectOrigin(origin.document, (*origin.path, "items", index)), item)
    else:
        yield origin, obj


def _documents(source: str) -> Iterator[tuple[YamlDocument, Any, bool]]:
    if source == STDIN:
        content = sys.stdin.buffer.read() if sys.stdin else b""
        yield from _parse("<stdin>", content, is_listed=True)
        return
    path = FilePath(source)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
        if not files:
            raise InvalidInput(f"{source} contains no .yaml, .yml or .json file.")
        for file in files:
            yield from _parse(str(file), _read(file), is_listed=False)
        return
    yield from _parse(source, _read(path), is_listed=True)


def _read(path: FilePath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}.") from error


def _parse(
    file: str, content: bytes, *, is_listed: bool
) -> Iterator[tuple[YamlDocument, Any, bool]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidManifest(file, line, "this is not UTF-8 text.") from error
    if text.lstrip().startswith("{"):
        try:
            objects = list(_parse_json(file, text))
        except (ValueError, RecursionError):
            pass  # a YAML flow mapping, or invalid: the YAML parser reports it with the line
        else:
            for document, obj in objects:
                yield document, obj, is_listed
            return
    yield from _parse_yaml(file, text, is_listed)


def _parse_json(file: str, text: str) -> Iterator[tuple[YamlDocument, Any]]:
    """Yield concatenated JSON objects, which kubectl accepts."""
    decoder = json.JSONDecoder()
    line, end = 1, 0
    while start := _NON_SPACE.search(text, end):
        line += text.count("\n", end, start.start())
        obj, end = decoder.raw_decode(text, start.start())
        yield YamlDocument(file, line, text[start.start() : end]), obj
        line += text.count("\n", start.start(), end)


_NON_SPACE = re.compile(r"\S")
_BRACKET = re.compile(r"[][{}]")
_MAX_DEPTH = 10_000


def _could_be_deep(text: str) -> bool:
    """Whether the text may be nested too deeply; each level takes a bracket or a column."""
    level = deepest = 0
    for bracket in _BRACKET.findall(text):
        level = level + 1 if bracket in "[{" else max(0, level - 1)
        deepest = max(deepest, level)
    return max(deepest, *map(len, text.split("\n"))) > _MAX_DEPTH


def _reject_deep(text: str) -> None:
    """Reject deep nesting. libyaml's composer is recursive and would overflow the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            problem = f"it is nested more than {_MAX_DEPTH} deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _parse_yaml(file: str, text: str, is_listed: bool) -> Iterator[tuple[YamlDocument, Any, bool]]:
    try:
        if _could_be_deep(text):
            _reject_deep(text)
        loader = _Loader(text)
        try:
            while loader.check_node() and (node := loader.get_node()):
                start, end = node.start_mark, node.end_mark
                obj = loader.construct_document(node)
                # Keep the text from the start of the line, so that columns and indents stay valid.
                begin = start.index - start.column
                yield YamlDocument(file, start.line + 1, text[begin : end.index]), obj, is_listed
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        problem = f"this is {_format_problem(text)}: {error.problem or error.context}."
        raise InvalidManifest(file, line, problem) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidManifest(file, 1, f"this is {_format_problem(text)}: {error}.") from error


def _format_problem(text: str) -> str:
    return "neither JSON nor YAML" if text.lstrip().startswith("{") else "not YAML"


def _add(manifests: Manifests, origin: ObjectOrigin, obj: Any, is_listed: bool) -> None:
    if obj is None:
        return
    if not is_listed and not isinstance(obj, dict):
        manifests.skipped += 1
        return
    try:
        _add_object(manifests, origin, Field(obj), is_listed)
    except InvalidField as error:
        raise InvalidManifest(origin.file, origin.line(error.path), str(error)) from error


def _add_object(manifests: Manifests, origin: ObjectOrigin, at: Field, is_listed: bool) -> None:
    kind = at.get("kind").text()
    if not kind:
        if is_listed:
            raise InvalidField((), 'is not a Kubernetes object: it has no "kind"')
        manifests.skipped += 1
        return
    version = at.get("apiVersion").text()
    group = version.rpartition("/")[0]
    if kind.endswith("List") and isinstance(at.value.get("items"), list):
        for item in at.get("items").items():
            listed = ObjectOrigin(origin.document, (*origin.path, *item.path))
            _add(manifests, listed, item.value, is_listed)
    elif (group, kind) in _WORKLOADS:
        manifests.workloads.append(_workload(origin, at, _WORKLOADS[group, kind]))
    elif (group, kind) == ("", "Node"):
        manifests.nodes.append(Node.from_object(at.value))
    elif (group, kind) == ("node.k8s.io", "RuntimeClass"):
        manifests.classes.append(RuntimeClass.from_object(at.value))
    elif (group, kind) == ("", "Secret"):
        at.get("metadata", "name").required_text()
        manifests.secrets.append((_namespace(at), at.value))
    elif group in _WRONG_GROUPS and kind in _GROUPS and (version or is_listed):
        raise InvalidField(
            ("apiVersion",), f'is "{version}", but a {kind} belongs to {_GROUPS[kind]}/v1'
        )
    else:
        manifests.skipped += 1


def _namespace(at: Field) -> str:
    return at.get("metadata", "namespace").text() or "default"


def _workload(origin: ObjectOrigin, at: Field, template_path: FieldPath) -> Workload:
    template = at
    for part in template_path:
        template = template.get(str(part))
    kind = at.get("kind").text()
    metadata = at.get("metadata")
    name = metadata.get("name").text() or metadata.get("generateName").text()
    name = name or metadata.get("name").required_text()
    pod = Pod.from_template(template.value, template_path, every_node=kind == "DaemonSet")
    spec = template.get("spec")
    ended = kind == "Pod" and at.get("status", "phase").text() in TERMINAL_PHASES
    return Workload(kind, _namespace(at), name, pod, spec.value, spec.path, origin, ended)

"""Pods, nodes and RuntimeClasses from manifest files, with the line each field stands on.

YAML of several documents and JSON, from files, directories or standard input. Objects of other
kinds pass through. Lines are found again only for the fields that something is said about.
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

from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Node, Pod, RuntimeClass
from winpod.windows.reading import At, InvalidField, Path
from winpod.windows.scheduling import ENDED_PHASES

STDIN = "-"
_SUFFIXES = (".yaml", ".yml", ".json")


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: a date is text, and so is a lone equals sign."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp) for tag, regexp in resolvers if not tag.endswith((":timestamp", ":value"))
    ]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a file: enough of it to find a field's line again."""

    file: str
    first_line: int
    text: str = field(repr=False)

    def line(self, path: Path) -> int:
        """The line of the deepest part of the path that the document has."""
        if not path:
            return self.first_line
        found = node = _compose(self.text)
        for part in path:
            child = _child(node, part)
            if child is None:
                break
            found, node = child
        return self.first_line + (found.start_mark.line if found else 0)


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@lru_cache(maxsize=4)
def _compose(text: str) -> yaml.Node | None:
    """The document's nodes; None for JSON that YAML cannot read, such as a very long key."""
    try:
        # JSON writes half of a surrogate pair at a time, which is no character to YAML.
        node: yaml.Node | None = yaml.compose(_SURROGATE.sub("?", text), Loader=_Loader)
    except yaml.YAMLError:
        return None
    return node


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Where a member is written (its key, in a mapping) and what it is."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # of a key that is written twice the last counts
            if key.value == part:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an object stands: its document, and its path there if it is an item of a list."""

    document: Document
    path: Path = ()

    @property
    def file(self) -> str:
        return self.document.file

    def line(self, path: Path = ()) -> int:
        return self.document.line((*self.path, *path))


class BadManifest(InvalidInput):
    """A mistake in a file, told with the file and the line."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        super().__init__(f"{file}:{line}: {problem}")


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that makes pods, and the pod it makes."""

    kind: str
    namespace: str
    name: str
    pod: Pod
    spec: Mapping[str, Any] = field(repr=False)
    spec_path: Path
    origin: Origin
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(slots=True)
class Manifests:
    workloads: list[Workload] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    classes: list[RuntimeClass] = field(default_factory=list)
    secrets: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    passed_over: int = 0

    def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        for where, secret in self.secrets:
            if where == namespace and secret["metadata"]["name"] == name:
                return secret
        return None


_TEMPLATE: Path = ("spec", "template")
_WORKLOADS: dict[tuple[str, str], Path] = {
    ("", "Pod"): (),
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", *_TEMPLATE),
}


def template_path(version: str, kind: str) -> Path | None:
    """Where the pod of an object stands, such as `spec.template`; None where it makes no pods."""
    return _WORKLOADS.get((version.rpartition("/")[0], kind))


_GROUPS = {kind: group for group, kind in _WORKLOADS if group} | {"RuntimeClass": "node.k8s.io"}
_GONE_GROUPS = ("", "extensions")
"""Groups that these kinds are not of, or not any more."""


def read_manifests(sources: Iterable[str]) -> Manifests:
    """Everything the files hold, or the first mistake in them as a sentence."""
    found = Manifests()
    for source in sources:
        for document, obj, is_listed in _documents(source):
            _add(found, Origin(document), obj, is_listed)
    return found


def read_objects(sources: Iterable[str]) -> Iterator[tuple[Origin, Any]]:
    """Every object of the files, those of lists too, and where it stands."""
    for source in sources:
        for document, obj, is_listed in _documents(source):
            if obj is not None and (is_listed or isinstance(obj, dict)):
                yield from _flattened(Origin(document), obj)


def _flattened(origin: Origin, obj: Any) -> Iterator[tuple[Origin, Any]]:
    items = obj.get("items") if isinstance(obj, dict) else None
    if isinstance(items, list) and str(obj.get("kind", "")).endswith("List"):
        for index, item in enumerate(items):
            yield from _flattened(Origin(origin.document, (*origin.path, "items", index)), item)
    else:
        yield origin, obj


def _documents(source: str) -> Iterator[tuple[Document, Any, bool]]:
    if source == STDIN:
        content = sys.stdin.buffer.read() if sys.stdin else b""
        yield from _parse("<stdin>", content, is_listed=True)
        return
    path = FilePath(source)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
        if not files:
            raise InvalidInput(f"{source} holds no .yaml, .yml or .json file.")
        for file in files:
            yield from _parse(str(file), _read(file), is_listed=False)
        return
    yield from _parse(source, _read(path), is_listed=True)


def _read(path: FilePath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}.") from error


def _parse(file: str, content: bytes, *, is_listed: bool) -> Iterator[tuple[Document, Any, bool]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadManifest(file, line, "this is not UTF-8 text.") from error
    if text.lstrip().startswith("{"):
        try:
            found = list(_parse_json(file, text))
        except (ValueError, RecursionError):
            pass  # a YAML flow mapping, or broken: the YAML reader tells which, with the line
        else:
            for document, obj in found:
                yield document, obj, is_listed
            return
    yield from _parse_yaml(file, text, is_listed)


def _parse_json(file: str, text: str) -> Iterator[tuple[Document, Any]]:
    """JSON objects one after another, as kubectl takes them."""
    decoder = json.JSONDecoder()
    line, end = 1, 0
    while start := _SOMETHING.search(text, end):
        line += text.count("\n", end, start.start())
        obj, end = decoder.raw_decode(text, start.start())
        yield Document(file, line, text[start.start() : end]), obj
        line += text.count("\n", start.start(), end)


_SOMETHING = re.compile(r"\S")
_BRACKET = re.compile(r"[][{}]")
_DEEPEST = 10_000


def _could_be_deep(text: str) -> bool:
    """A level of nesting takes a bracket, or a column."""
    level = deepest = 0
    for bracket in _BRACKET.findall(text):
        level = level + 1 if bracket in "[{" else max(0, level - 1)
        deepest = max(deepest, level)
    return max(deepest, *map(len, text.split("\n"))) > _DEEPEST


def _refuse_deep(text: str) -> None:
    """libyaml's composer calls itself for each level, and the process dies where its stack ends."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            problem = f"it is nested more than {_DEEPEST} deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _parse_yaml(file: str, text: str, is_listed: bool) -> Iterator[tuple[Document, Any, bool]]:
    try:
        if _could_be_deep(text):
            _refuse_deep(text)
        loader = _Loader(text)
        try:
            while loader.check_node() and (node := loader.get_node()):
                start, end = node.start_mark, node.end_mark
                obj = loader.construct_document(node)
                # The text from the start of the line, so that columns and block indents still hold.
                begin = start.index - start.column
                yield Document(file, start.line + 1, text[begin : end.index]), obj, is_listed
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        problem = f"this is {_neither(text)}: {error.problem or error.context}."
        raise BadManifest(file, line, problem) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadManifest(file, 1, f"this is {_neither(text)}: {error}.") from error


def _neither(text: str) -> str:
    return "neither JSON nor YAML" if text.lstrip().startswith("{") else "not YAML"


def _add(found: Manifests, origin: Origin, obj: Any, is_listed: bool) -> None:
    if obj is None:
        return
    if not is_listed and not isinstance(obj, dict):
        found.passed_over += 1
        return
    try:
        _add_object(found, origin, At(obj), is_listed)
    except InvalidField as error:
        raise BadManifest(origin.file, origin.line(error.path), str(error)) from error


def _add_object(found: Manifests, origin: Origin, at: At, is_listed: bool) -> None:
    kind = at.get("kind").text()
    if not kind:
        if is_listed:
            raise InvalidField((), 'is not a Kubernetes object: it has no "kind"')
        found.passed_over += 1
        return
    version = at.get("apiVersion").text()
    group = version.rpartition("/")[0]
    if kind.endswith("List") and isinstance(at.value.get("items"), list):
        for item in at.get("items").items():
            listed = Origin(origin.document, (*origin.path, *item.path))
            _add(found, listed, item.value, is_listed)
    elif (group, kind) in _WORKLOADS:
        found.workloads.append(_workload(origin, at, _WORKLOADS[group, kind]))
    elif (group, kind) == ("", "Node"):
        found.nodes.append(Node.from_object(at.value))
    elif (group, kind) == ("node.k8s.io", "RuntimeClass"):
        found.classes.append(RuntimeClass.from_object(at.value))
    elif (group, kind) == ("", "Secret"):
        at.get("metadata", "name").required_text()
        found.secrets.append((_namespace(at), at.value))
    elif group in _GONE_GROUPS and kind in _GROUPS and (version or is_listed):
        raise InvalidField(
            ("apiVersion",), f'is "{version}", and a {kind} is of {_GROUPS[kind]}/v1'
        )
    else:
        found.passed_over += 1


def _namespace(at: At) -> str:
    return at.get("metadata", "namespace").text() or "default"


def _workload(origin: Origin, at: At, template_path: Path) -> Workload:
    template = at
    for part in template_path:
        template = template.get(str(part))
    kind = at.get("kind").text()
    metadata = at.get("metadata")
    name = metadata.get("name").text() or metadata.get("generateName").text()
    name = name or metadata.get("name").required_text()
    pod = Pod.from_template(template.value, template_path, every_node=kind == "DaemonSet")
    spec = template.get("spec")
    ended = kind == "Pod" and at.get("status", "phase").text() in ENDED_PHASES
    return Workload(kind, _namespace(at), name, pod, spec.value, spec.path, origin, ended)

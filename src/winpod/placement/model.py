"""The Kubernetes objects that placement reads, as plain data.

Only the fields that decide where a Windows pod runs are kept. Each class is decoded from the API
object. All of them are hashable, so that results for equal objects can be cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from winpod.errors import InvalidInput
from winpod.field_reader import Field, FieldPath, InvalidField, Quantities, TextPairs
from winpod.labels import (
    ARCH_LABEL,
    ARCHITECTURE_ANNOTATION,
    BETA_ARCH_LABEL,
    BETA_OS_LABEL,
    BUILD_LABEL,
    DISK_PRESSURE_TAINT,
    MEMORY_PRESSURE_TAINT,
    NOT_READY_TAINT,
    OS_ANNOTATION,
    OS_LABEL,
    OS_VERSION_ANNOTATION,
    OSVERSION_LABEL,
    PID_PRESSURE_TAINT,
    UNREACHABLE_TAINT,
    UNSCHEDULABLE_TAINT,
)
from winpod.windows.builds import Build, parse_build, parse_version


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return (
            f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"
        )

    @property
    def blocks_scheduling(self) -> bool:
        return self.effect in ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Toleration:
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        if self.operator in ("Lt", "Gt"):
            if not _is_number(self.value) or not _is_number(taint.value):
                return False
            actual, bound = int(taint.value), int(self.value)
            return actual < bound if self.operator == "Lt" else actual > bound
        return bool(self.key) and self.value == taint.value

    def to_object(self) -> dict[str, str]:
        fields = {
            "key": self.key,
            "operator": self.operator,
            "value": self.value,
            "effect": self.effect,
        }
        return {name: value for name, value in fields.items() if value}


_NUMBER = re.compile(r"-?[0-9]{1,19}")


def _is_number(text: str) -> bool:
    """Whether the text is an integer in the form the API accepts (64 bits)."""
    return _NUMBER.fullmatch(text) is not None


def read_tolerations(field: Field) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=item.get("key").text(),
            operator=item.get("operator").one_of("Equal", "Exists", "Lt", "Gt") or "Equal",
            value=item.get("value").text(),
            effect=item.get("effect").one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
        )
        for item in field.items()
    )


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """One expression of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, value: str | None) -> bool:
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or not _is_number(value) or not self.values:
            return False
        bound = int(self.values[0])
        return int(value) > bound if self.operator == "Gt" else int(value) < bound

    def __str__(self) -> str:
        values = f" [{', '.join(self.values)}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"


_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def _requirement(field: Field) -> NodeSelectorRequirement:
    field.get("operator").required_text()
    operator = field.get("operator").one_of(*_OPERATORS)
    values = field.get("values").text_list()
    if operator in ("Gt", "Lt") and not (len(values) == 1 and _is_number(values[0])):
        raise InvalidField((*field.path, "values"), f"must be one whole number for {operator}")
    return NodeSelectorRequirement(field.get("key").required_text(), operator, values)


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """A node selector term: all expressions must match; an empty term matches no node."""

    labels: tuple[NodeSelectorRequirement, ...] = ()
    fields: tuple[NodeSelectorRequirement, ...] = ()

    def __str__(self) -> str:
        return " and ".join(str(r) for r in (*self.labels, *self.fields)) or "nothing"


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the scheduler and its runtime see it.

    `handlers` is None if the node does not report them, which is not the same as having none;
    `allocatable` is None if the node's size is unknown.
    """

    name: str
    labels: TextPairs = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Quantities | None = None
    allocated: Quantities = ()
    handlers: frozenset[str] | None = None
    runtime: str = ""
    kernel_version: str = ""
    reported_os: str = ""
    reported_architecture: str = ""

    def label(self, key: str) -> str | None:
        return next((value for name, value in self.labels if name == key), None)

    @property
    def os(self) -> str:
        """The OS from a label, else from nodeInfo, else inferred from the Windows build label."""
        stated = self.label(OS_LABEL) or self.label(BETA_OS_LABEL) or self.reported_os
        return stated or ("windows" if self.label(BUILD_LABEL) else "linux")

    @property
    def architecture(self) -> str:
        stated = self.label(ARCH_LABEL) or self.label(BETA_ARCH_LABEL)
        return stated or self.reported_architecture or "amd64"

    @property
    def build(self) -> Build | None:
        """The build from the kernel version, else from a label; None if neither is set."""
        stated = parse_version(self.kernel_version) or parse_version(self.label(BUILD_LABEL) or "")
        if stated is None and (name := self.label(OSVERSION_LABEL)):
            try:
                return parse_build(name).base
            except InvalidInput:
                return None
        return stated.base if stated else None

    @staticmethod
    def from_object(obj: Any) -> Node:
        field = Field(obj)
        status = field.get("status")
        info = status.get("nodeInfo")
        handlers = frozenset(h.get("name").text() for h in status.get("runtimeHandlers").items())
        size = status.get("allocatable") or status.get("capacity")
        return Node(
            name=field.get("metadata", "name").required_text(),
            labels=field.get("metadata", "labels").text_map(),
            taints=tuple(
                Taint(
                    item.get("key").required_text(),
                    item.get("value").text(),
                    item.get("effect").required_text(),
                )
                for item in field.get("spec", "taints").items()
            ),
            unschedulable=field.get("spec", "unschedulable").flag(),
            allocatable=size.quantities() if size else None,
            handlers=handlers - {""} or None,
            runtime=info.get("containerRuntimeVersion").text().partition(":")[0],
            kernel_version=info.get("kernelVersion").text(),
            reported_os=info.get("operatingSystem").text(),
            reported_architecture=info.get("architecture").text(),
        )


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    name: str
    handler: str
    node_selector: TextPairs = ()
    tolerations: tuple[Toleration, ...] = ()
    overhead: Quantities = ()

    @staticmethod
    def from_object(obj: Any) -> RuntimeClass:
        field = Field(obj)
        return RuntimeClass(
            name=field.get("metadata", "name").required_text(),
            handler=field.get("handler").required_text(),
            node_selector=field.get("scheduling", "nodeSelector").text_map(),
            tolerations=read_tolerations(field.get("scheduling", "tolerations")),
            overhead=field.get("overhead", "podFixed").quantities(),
        )


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    image: str
    path: FieldPath


@dataclass(frozen=True, slots=True)
class PlatformConstraint:
    """Platform constraints from a pod's annotations; they only narrow the choice of manifest."""

    os: str = ""
    architecture: str = ""
    os_version: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod without its name, so that pods of equal templates compare equal."""

    containers: tuple[Container, ...]
    os: str = ""
    node_selector: TextPairs = ()
    affinity: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: str = ""
    node_name: str = ""
    requests: Quantities = ()
    overhead: Quantities = ()
    host_process: bool = False
    is_daemon: bool = False
    pull_secrets: tuple[str, ...] = ()
    platform_constraint: PlatformConstraint = PlatformConstraint()

    @property
    def images(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.image for c in self.containers))

    @staticmethod
    def from_template(template: Any, path: FieldPath = (), *, every_node: bool = False) -> Pod:
        """Decode a Pod object, or the pod template of a workload, found at `path` in its object."""
        field = Field(template, path)
        spec = field.get("spec")
        if not spec:
            raise InvalidField(spec.path, "is required")
        containers = tuple(_containers(spec))
        if not any(spec.get("containers").items()):
            raise InvalidField((*spec.path, "containers"), "must have at least one container")
        return Pod(
            containers=containers,
            os=spec.get("os", "name").text(),
            node_selector=spec.get("nodeSelector").text_map(),
            affinity=_required_terms(spec),
            tolerations=read_tolerations(spec.get("tolerations")) + (_DAEMON if every_node else ()),
            runtime_class=spec.get("runtimeClassName").text(),
            node_name=spec.get("nodeName").text(),
            requests=_pod_requests(spec),
            overhead=spec.get("overhead").quantities(),
            host_process=_is_host_process(spec),
            is_daemon=every_node,
            pull_secrets=tuple(
                item.get("name").text() for item in spec.get("imagePullSecrets").items()
            ),
            platform_constraint=read_platform_constraint(field.get("metadata", "annotations")),
        )


_DAEMON = tuple(
    Toleration(key, "Exists", effect=effect)
    for key, effect in (
        (NOT_READY_TAINT, "NoExecute"),
        (UNREACHABLE_TAINT, "NoExecute"),
        (DISK_PRESSURE_TAINT, "NoSchedule"),
        (MEMORY_PRESSURE_TAINT, "NoSchedule"),
        (PID_PRESSURE_TAINT, "NoSchedule"),
        (UNSCHEDULABLE_TAINT, "NoSchedule"),
    )
)


def _containers(spec: Field) -> Iterable[Container]:
    for kind in ("initContainers", "containers"):
        for item in spec.get(kind).items():
            image = item.get("image")
            yield Container(item.get("name").text(), image.required_text(), image.path)


def _required_terms(spec: Field) -> tuple[NodeSelectorTerm, ...] | None:
    required = spec.get(
        "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return None
    return tuple(
        NodeSelectorTerm(
            tuple(_requirement(r) for r in term.get("matchExpressions").items()),
            tuple(_requirement(r) for r in term.get("matchFields").items()),
        )
        for term in required.get("nodeSelectorTerms").items()
    )


def _container_requests(container: Field) -> dict[str, Decimal]:
    """Return the requests as the scheduler counts them: a limit is the default request."""
    resources = container.get("resources")
    return dict(resources.get("limits").quantities()) | dict(resources.get("requests").quantities())


def _sum(left: dict[str, Decimal], right: dict[str, Decimal]) -> dict[str, Decimal]:
    return {key: left.get(key, Decimal(0)) + right.get(key, Decimal(0)) for key in left | right}


def _larger(left: dict[str, Decimal], right: dict[str, Decimal]) -> dict[str, Decimal]:
    return {key: max(left.get(key, Decimal(0)), right.get(key, Decimal(0))) for key in left | right}


def _pod_requests(spec: Field) -> Quantities:
    """Return the larger of what runs concurrently and what each init container needs in turn."""
    running: dict[str, Decimal] = {}
    starting: dict[str, Decimal] = {}
    for item in spec.get("initContainers").items():
        amounts = _container_requests(item)
        if item.get("restartPolicy").text() == "Always":
            running = _sum(running, amounts)
            starting = _larger(starting, running)
        else:
            starting = _larger(starting, _sum(running, amounts))
    for item in spec.get("containers").items():
        running = _sum(running, _container_requests(item))
    total = _larger(running, starting) | _container_requests(spec)
    return tuple(sorted(total.items()))


def _is_host_process(spec: Field) -> bool:
    holders = (spec, *spec.get("containers").items())
    return any(
        holder.get("securityContext", "windowsOptions", "hostProcess").flag() for holder in holders
    )


def read_platform_constraint(annotations: Field) -> PlatformConstraint:
    """Read the constraint annotations; winpod's take precedence over those of Kubernetes."""
    values = dict(annotations.text_map())
    version = values.get(OS_VERSION_ANNOTATION, "")
    if version:
        try:
            version = str(parse_build(version))
        except InvalidInput as error:
            raise InvalidField(
                (*annotations.path, OS_VERSION_ANNOTATION),
                f'is "{version}", which is not a Windows build',
            ) from error
    return PlatformConstraint(
        os=values.get(OS_ANNOTATION) or values.get(OS_LABEL, ""),
        architecture=values.get(ARCHITECTURE_ANNOTATION) or values.get(ARCH_LABEL, ""),
        os_version=version,
    )

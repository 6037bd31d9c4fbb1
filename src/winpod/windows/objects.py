"""The Kubernetes objects that placement reads, as plain data.

Only the fields that decide where a Windows pod runs are kept; each class is read from the API's own
form, and all of them are hashable, so that equal things are decided once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from winpod.windows.builds import Build, parse_build, parse_version
from winpod.windows.errors import InvalidInput
from winpod.windows.reading import Amounts, At, InvalidField, Pairs, Path

OS_LABEL = "kubernetes.io/os"
ARCH_LABEL = "kubernetes.io/arch"
BUILD_LABEL = "node.kubernetes.io/windows-build"
OSVERSION_LABEL = "beta.kubernetes.io/osversion"
HOSTNAME_LABEL = "kubernetes.io/hostname"


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
    def repels(self) -> bool:
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
            theirs, ours = int(taint.value), int(self.value)
            return theirs < ours if self.operator == "Lt" else theirs > ours
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
    """A whole number as the API takes it: 64 bits."""
    return _NUMBER.fullmatch(text) is not None


def read_tolerations(at: At) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=item.get("key").text(),
            operator=item.get("operator").one_of("Equal", "Exists", "Lt", "Gt") or "Equal",
            value=item.get("value").text(),
            effect=item.get("effect").one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
        )
        for item in at.items()
    )


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def accepts(self, value: str | None) -> bool:
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


def _requirement(at: At) -> Requirement:
    at.get("operator").required_text()
    operator = at.get("operator").one_of(*_OPERATORS)
    values = at.get("values").texts()
    if operator in ("Gt", "Lt") and not (len(values) == 1 and _is_number(values[0])):
        raise InvalidField((*at.path, "values"), f"must be one whole number for {operator}")
    return Requirement(at.get("key").required_text(), operator, values)


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """A node selector term: all of its expressions must hold; one that has none holds nowhere."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def __str__(self) -> str:
        return " and ".join(str(r) for r in (*self.labels, *self.fields)) or "nothing"


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the scheduler and its runtime see it.

    `handlers` is None where the node does not tell them, which is not the same as having none;
    `allocatable` is None where the node's size is not known.
    """

    name: str
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Amounts | None = None
    allocated: Amounts = ()
    handlers: frozenset[str] | None = None
    runtime: str = ""
    kernel_version: str = ""
    told_os: str = ""
    told_architecture: str = ""

    def label(self, key: str) -> str | None:
        return next((value for name, value in self.labels if name == key), None)

    @property
    def os(self) -> str:
        """What a label says; else what the kubelet told; else what the build gives away."""
        stated = self.label(OS_LABEL) or self.label("beta.kubernetes.io/os") or self.told_os
        return stated or ("windows" if self.label(BUILD_LABEL) else "linux")

    @property
    def architecture(self) -> str:
        stated = self.label(ARCH_LABEL) or self.label("beta.kubernetes.io/arch")
        return stated or self.told_architecture or "amd64"

    @property
    def build(self) -> Build | None:
        """What the kernel says; else what a label says; None where neither does."""
        stated = parse_version(self.kernel_version) or parse_version(self.label(BUILD_LABEL) or "")
        if stated is None and (name := self.label(OSVERSION_LABEL)):
            try:
                return parse_build(name).base
            except InvalidInput:
                return None
        return stated.base if stated else None

    @staticmethod
    def from_object(obj: Any) -> Node:
        at = At(obj)
        status = at.get("status")
        info = status.get("nodeInfo")
        handlers = frozenset(h.get("name").text() for h in status.get("runtimeHandlers").items())
        size = status.get("allocatable") or status.get("capacity")
        return Node(
            name=at.get("metadata", "name").required_text(),
            labels=at.get("metadata", "labels").pairs(),
            taints=tuple(
                Taint(
                    item.get("key").required_text(),
                    item.get("value").text(),
                    item.get("effect").required_text(),
                )
                for item in at.get("spec", "taints").items()
            ),
            unschedulable=at.get("spec", "unschedulable").flag(),
            allocatable=size.amounts() if size else None,
            handlers=handlers - {""} or None,
            runtime=info.get("containerRuntimeVersion").text().partition(":")[0],
            kernel_version=info.get("kernelVersion").text(),
            told_os=info.get("operatingSystem").text(),
            told_architecture=info.get("architecture").text(),
        )


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    name: str
    handler: str
    node_selector: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()
    overhead: Amounts = ()

    @staticmethod
    def from_object(obj: Any) -> RuntimeClass:
        at = At(obj)
        return RuntimeClass(
            name=at.get("metadata", "name").required_text(),
            handler=at.get("handler").required_text(),
            node_selector=at.get("scheduling", "nodeSelector").pairs(),
            tolerations=read_tolerations(at.get("scheduling", "tolerations")),
            overhead=at.get("overhead", "podFixed").amounts(),
        )


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    image: str
    path: Path


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What a pod's annotations insist on when a manifest is chosen; it never widens the choice."""

    os: str = ""
    architecture: str = ""
    os_version: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod without its name: equal templates are placed alike."""

    containers: tuple[Container, ...]
    os: str = ""
    node_selector: Pairs = ()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: str = ""
    node_name: str = ""
    requests: Amounts = ()
    overhead: Amounts = ()
    host_process: bool = False
    every_node: bool = False
    pull_secrets: tuple[str, ...] = ()
    narrowing: Narrowing = Narrowing()

    @property
    def images(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.image for c in self.containers))

    @staticmethod
    def from_template(template: Any, path: Path = (), *, every_node: bool = False) -> Pod:
        """From a Pod object, or from the template of a workload at `path` in its object."""
        at = At(template, path)
        spec = at.get("spec")
        if not spec:
            raise InvalidField(spec.path, "is required")
        containers = tuple(_containers(spec))
        if not any(spec.get("containers").items()):
            raise InvalidField((*spec.path, "containers"), "must have at least one container")
        return Pod(
            containers=containers,
            os=spec.get("os", "name").text(),
            node_selector=spec.get("nodeSelector").pairs(),
            affinity=_required_terms(spec),
            tolerations=read_tolerations(spec.get("tolerations")) + (_DAEMON if every_node else ()),
            runtime_class=spec.get("runtimeClassName").text(),
            node_name=spec.get("nodeName").text(),
            requests=_pod_requests(spec),
            overhead=spec.get("overhead").amounts(),
            host_process=_is_host_process(spec),
            every_node=every_node,
            pull_secrets=tuple(
                item.get("name").text() for item in spec.get("imagePullSecrets").items()
            ),
            narrowing=read_narrowing(at.get("metadata", "annotations")),
        )


_DAEMON = tuple(
    Toleration(f"node.kubernetes.io/{condition}", "Exists", effect=effect)
    for condition, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


def _containers(spec: At) -> Iterable[Container]:
    for kind in ("initContainers", "containers"):
        for item in spec.get(kind).items():
            image = item.get("image")
            yield Container(item.get("name").text(), image.required_text(), image.path)


def _required_terms(spec: At) -> tuple[NodeTerm, ...] | None:
    required = spec.get(
        "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return None
    return tuple(
        NodeTerm(
            tuple(_requirement(r) for r in term.get("matchExpressions").items()),
            tuple(_requirement(r) for r in term.get("matchFields").items()),
        )
        for term in required.get("nodeSelectorTerms").items()
    )


def _container_requests(container: At) -> dict[str, Decimal]:
    """What the scheduler counts: a limit stands for a request that is not written."""
    resources = container.get("resources")
    return dict(resources.get("limits").amounts()) | dict(resources.get("requests").amounts())


def _sum(one: dict[str, Decimal], other: dict[str, Decimal]) -> dict[str, Decimal]:
    return {key: one.get(key, Decimal(0)) + other.get(key, Decimal(0)) for key in one | other}


def _larger(one: dict[str, Decimal], other: dict[str, Decimal]) -> dict[str, Decimal]:
    return {key: max(one.get(key, Decimal(0)), other.get(key, Decimal(0))) for key in one | other}


def _pod_requests(spec: At) -> Amounts:
    """The larger of what runs together and what the init containers need in turn."""
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


def _is_host_process(spec: At) -> bool:
    holders = (spec, *spec.get("containers").items())
    return any(
        holder.get("securityContext", "windowsOptions", "hostProcess").flag() for holder in holders
    )


def read_narrowing(annotations: At) -> Narrowing:
    """What annotations insist on; those of winpod.dev go before those of kubernetes.io."""
    values = dict(annotations.pairs())
    version = values.get("winpod.dev/os-version", "")
    if version:
        try:
            version = str(parse_build(version))
        except InvalidInput as error:
            raise InvalidField(
                (*annotations.path, "winpod.dev/os-version"),
                f'is "{version}", which is not a Windows build',
            ) from error
    return Narrowing(
        os=values.get("winpod.dev/os") or values.get("kubernetes.io/os", ""),
        architecture=values.get("winpod.dev/architecture") or values.get("kubernetes.io/arch", ""),
        os_version=version,
    )

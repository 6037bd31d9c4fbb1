"""What a pod's own words mean: its containers by kind, its restart rules, its grace, its class."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeVar, cast

from lightkube.models import core_v1 as v1

from winpod.node.requests import metadata_of, spec_of
from winpod.windows.quantities import parse_quantity

ENDED = ("Succeeded", "Failed")
DEFAULT_GRACE = 30
RESTARTING_ALL = "RestartingAllContainers"
"""The reason of an end that another container's end has brought about."""
CRITICAL_PRIORITY = 2_000_000_000
SOURCE = "kubernetes.io/config.source"
"""The annotation of a pod that comes from a manifest on the node."""


_Object = TypeVar("_Object")


def with_fields(obj: _Object, **fields: Any) -> _Object:
    """A copy of an API object that has other fields; what lies deeper is shared."""
    made = copy.copy(obj)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def uid_of(pod: v1.Pod) -> str:
    return metadata_of(pod).uid or ""


def show(pod: v1.Pod) -> str:
    """As events and statuses write a pod: `web_shop(6e7f...)`."""
    metadata = metadata_of(pod)
    return f"{metadata.name}_{metadata.namespace}({metadata.uid})"


def init_containers(pod: v1.Pod) -> list[v1.Container]:
    return spec_of(pod).initContainers or []


def regular_containers(pod: v1.Pod) -> list[v1.Container]:
    return spec_of(pod).containers


def ephemeral_containers(pod: v1.Pod) -> list[v1.Container]:
    return [_as_container(one) for one in spec_of(pod).ephemeralContainers or ()]


def _as_container(one: v1.EphemeralContainer) -> v1.Container:
    fields = one.to_dict()
    fields.pop("targetContainerName", None)
    return cast(v1.Container, v1.Container.from_dict(fields))


def all_containers(pod: v1.Pod) -> Iterator[v1.Container]:
    yield from init_containers(pod)
    yield from regular_containers(pod)
    yield from ephemeral_containers(pod)


def field_path(pod: v1.Pod, name: str) -> str:
    """The part of the spec that an event about a container names."""
    for field, containers in (
        ("initContainers", init_containers(pod)),
        ("ephemeralContainers", ephemeral_containers(pod)),
    ):
        if any(container.name == name for container in containers):
            return f"spec.{field}{{{name}}}"
    return f"spec.containers{{{name}}}"


def is_sidecar(container: v1.Container) -> bool:
    """Of an init container: it goes on beside those after it. Callers ask of init containers."""
    return container.restartPolicy == "Always"


def sidecars(pod: v1.Pod) -> list[v1.Container]:
    return [container for container in init_containers(pod) if is_sidecar(container)]


def is_deleted(pod: v1.Pod) -> bool:
    return metadata_of(pod).deletionTimestamp is not None


def restarts(container: v1.Container, pod: v1.Pod, exit_code: int) -> bool:
    """Whether a container that ended so is started again: its own rules, its policy, the pod's."""
    if action := _rule(container, exit_code):
        return action in ("Restart", "RestartAllContainers")
    match container.restartPolicy or spec_of(pod).restartPolicy or "Always":
        case "Never":
            return False
        case "OnFailure":
            return exit_code != 0
    return True


def restarts_all(container: v1.Container, exit_code: int) -> bool:
    """Whether all containers of the pod are started again when this one has ended so."""
    return _rule(container, exit_code) == "RestartAllContainers"


def _rule(container: v1.Container, exit_code: int) -> str:
    for rule in container.restartPolicyRules or ():
        if rule.exitCodes and _holds(rule.exitCodes, exit_code):
            return rule.action
    return ""


def _holds(rule: v1.ContainerRestartRuleOnExitCodes, exit_code: int) -> bool:
    return (exit_code in (rule.values or ())) == (rule.operator == "In")


def restarts_when_killed(container: v1.Container, pod: v1.Pod) -> bool:
    """Whether a running container that has to be ended is started again."""
    return (container.restartPolicy or spec_of(pod).restartPolicy or "Always") != "Never"


def grace_seconds(pod: v1.Pod) -> int:
    metadata = metadata_of(pod)
    for stated in (metadata.deletionGracePeriodSeconds, spec_of(pod).terminationGracePeriodSeconds):
        if stated is not None:
            return stated
    return DEFAULT_GRACE


def priority_of(pod: v1.Pod) -> int:
    return spec_of(pod).priority or 0


def is_critical(pod: v1.Pod) -> bool:
    """Others make room for it, and it makes none: the system's by its priority, or the node's."""
    return priority_of(pod) >= CRITICAL_PRIORITY or is_static(pod)


def is_static(pod: v1.Pod) -> bool:
    """The node's own, from a manifest. What comes from an API server has dashes in its uid, so no
    annotation makes it one."""
    source = (metadata_of(pod).annotations or {}).get(SOURCE)
    return source == "file" and bool(uid_of(pod)) and "-" not in uid_of(pod)


def condition(status: v1.PodStatus | None, kind: str) -> v1.PodCondition | None:
    conditions = (status.conditions if status else None) or ()
    return next((c for c in conditions if c.type == kind), None)


def qos_class(pod: v1.Pod) -> str:
    """Guaranteed where every container's CPU and memory are limited to what they request."""
    resources = [c.resources or v1.ResourceRequirements() for c in _counted(pod)]
    asked = [_amounts(one.requests) for one in resources]
    limits = [_amounts(one.limits) for one in resources]
    if not any(asked) and not any(limits):
        return "BestEffort"
    for request, limit in zip(asked, limits, strict=True):
        if set(limit) != {"cpu", "memory"} or limit | request != limit:
            return "Burstable"
    return "Guaranteed"


def _counted(pod: v1.Pod) -> Iterator[v1.Container]:
    yield from init_containers(pod)
    yield from regular_containers(pod)


def _amounts(listed: dict[str, str] | None) -> dict[str, object]:
    amounts = {name: parse_quantity(str(text)) for name, text in (listed or {}).items()}
    return {name: amount for name, amount in amounts.items() if amount and name in _CLASSED}


_CLASSED = ("cpu", "memory")


def whole_seconds(time: datetime) -> datetime:
    """The API keeps no parts of a second."""
    return time.replace(microsecond=0)

"""Helpers for pod objects: containers by type, restart rules, grace period, priority and QoS."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.labels import CONFIG_SOURCE_ANNOTATION
from winpod.quantities import parse_quantity

DEFAULT_GRACE = 30
RESTARTING_ALL = "RestartingAllContainers"
"""Reason of containers that were removed because another container's exit restarts the pod."""
CRITICAL_PRIORITY = 2_000_000_000


_Object = TypeVar("_Object")


def with_fields(obj: _Object, **fields: Any) -> _Object:
    """Return a shallow copy of an API object with other fields."""
    copied = copy.copy(obj)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def uid_of(pod: v1.Pod) -> str:
    return metadata_of(pod).uid or ""


def format_pod(pod: v1.Pod) -> str:
    """Format a pod as events and statuses do: `web_shop(6e7f...)`."""
    metadata = metadata_of(pod)
    return f"{metadata.name}_{metadata.namespace}({metadata.uid})"


def pod_log_fields(pod: v1.Pod) -> dict[str, str]:
    """Return the fields of log records about a pod."""
    metadata = metadata_of(pod)
    return {"pod": f"{metadata.namespace}/{metadata.name}", "pod_uid": metadata.uid or ""}


def init_containers(pod: v1.Pod) -> list[v1.Container]:
    return spec_of(pod).initContainers or []


def regular_containers(pod: v1.Pod) -> list[v1.Container]:
    return spec_of(pod).containers


def ephemeral_containers(pod: v1.Pod) -> list[v1.Container]:
    return [_as_container(container) for container in spec_of(pod).ephemeralContainers or ()]


def _as_container(container: v1.EphemeralContainer) -> v1.Container:
    fields = container.to_dict()
    fields.pop("targetContainerName", None)
    return v1.Container.from_dict(fields)


def all_containers(pod: v1.Pod) -> Iterator[v1.Container]:
    yield from init_containers(pod)
    yield from regular_containers(pod)
    yield from ephemeral_containers(pod)


def field_path(pod: v1.Pod, name: str) -> str:
    """Return the field path of a container for an event."""
    for field, containers in (
        ("initContainers", init_containers(pod)),
        ("ephemeralContainers", ephemeral_containers(pod)),
    ):
        if any(container.name == name for container in containers):
            return f"spec.{field}{{{name}}}"
    return f"spec.containers{{{name}}}"


def is_sidecar(container: v1.Container) -> bool:
    """Whether an init container is restartable. Only meaningful for init containers."""
    return container.restartPolicy == "Always"


def sidecars(pod: v1.Pod) -> list[v1.Container]:
    return [container for container in init_containers(pod) if is_sidecar(container)]


def is_deleted(pod: v1.Pod) -> bool:
    return metadata_of(pod).deletionTimestamp is not None


def should_restart(container: v1.Container, pod: v1.Pod, exit_code: int) -> bool:
    """Whether a container that exited with this code is restarted.

    Its own rules take precedence over its policy, and that over the pod's policy.
    """
    if action := _rule(container, exit_code):
        return action in ("Restart", "RestartAllContainers")
    match container.restartPolicy or spec_of(pod).restartPolicy or "Always":
        case "Never":
            return False
        case "OnFailure":
            return exit_code != 0
    return True


def should_restart_all(container: v1.Container, exit_code: int) -> bool:
    """Whether this exit restarts all containers of the pod."""
    return _rule(container, exit_code) == "RestartAllContainers"


def _rule(container: v1.Container, exit_code: int) -> str:
    for rule in container.restartPolicyRules or ():
        if rule.exitCodes and _matches(rule.exitCodes, exit_code):
            return rule.action
    return ""


def _matches(rule: v1.ContainerRestartRuleOnExitCodes, exit_code: int) -> bool:
    return (exit_code in (rule.values or ())) == (rule.operator == "In")


def should_restart_after_kill(container: v1.Container, pod: v1.Pod) -> bool:
    """Whether a running container that is killed is restarted."""
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
    """Whether the pod is critical, by priority or as a static pod.

    Critical pods preempt others and are not evicted.
    """
    return priority_of(pod) >= CRITICAL_PRIORITY or is_static(pod)


def is_static(pod: v1.Pod) -> bool:
    """Whether the pod comes from a manifest on the node.

    UIDs of the API server contain dashes, so the annotation alone cannot make a pod static.
    """
    source = (metadata_of(pod).annotations or {}).get(CONFIG_SOURCE_ANNOTATION)
    return source == "file" and bool(uid_of(pod)) and "-" not in uid_of(pod)


def condition(status: v1.PodStatus | None, kind: str) -> v1.PodCondition | None:
    conditions = (status.conditions if status else None) or ()
    return next((c for c in conditions if c.type == kind), None)


def qos_class(pod: v1.Pod) -> str:
    """Return the QoS class; Guaranteed if all limits of CPU and memory equal the requests."""
    resources = [c.resources or v1.ResourceRequirements() for c in _counted(pod)]
    requests = [_amounts(r.requests) for r in resources]
    limits = [_amounts(r.limits) for r in resources]
    if not any(requests) and not any(limits):
        return "BestEffort"
    for request, limit in zip(requests, limits, strict=True):
        if set(limit) != {"cpu", "memory"} or limit | request != limit:
            return "Burstable"
    return "Guaranteed"


def _counted(pod: v1.Pod) -> Iterator[v1.Container]:
    yield from init_containers(pod)
    yield from regular_containers(pod)


def _amounts(listed: dict[str, str] | None) -> dict[str, object]:
    amounts = {name: parse_quantity(str(text)) for name, text in (listed or {}).items()}
    return {name: amount for name, amount in amounts.items() if amount and name in _QOS_RESOURCES}


_QOS_RESOURCES = ("cpu", "memory")


def metadata_of(pod: v1.Pod) -> ObjectMeta:
    if pod.metadata is None:
        raise ConfigError("the pod has no metadata.")
    return pod.metadata


def spec_of(pod: v1.Pod) -> v1.PodSpec:
    if pod.spec is None:
        raise ConfigError("the pod has no spec.")
    return pod.spec


class ConfigError(WinpodError):
    """A container cannot be configured; reported with reason CreateContainerConfigError."""

    code = "FAILED_PRECONDITION"

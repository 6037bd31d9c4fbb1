"""The status of a pod, from the runtime's state, the kubelet's state and the previous status.

The previous status fills in what the runtime has forgotten: a container that is missing has
terminated, and a terminal phase never changes. Also sums up the resources of a pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from ipaddress import ip_address
from typing import Any, Literal

from winpod.clock import truncate_to_seconds
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    ephemeral_containers,
    init_containers,
    metadata_of,
    qos_class,
    regular_containers,
    spec_of,
)
from winpod.kubelet.pod_actions import needs_sandbox
from winpod.kubelet.runtime_status import RuntimePod
from winpod.kubelet.status.container_status import (
    LOST_AT_TERMINATION,
    ContainerStatuses,
    truncate_messages,
)
from winpod.kubelet.status.patch import KUBELET_CONDITIONS
from winpod.kubelet.status.phase import (
    RESIZE_CONDITIONS,
    PodCondition,
    PodState,
    StatusReason,
    conditions_of,
    has_initialized,
    phase_of,
)
from winpod.kubelet.status.restart_all import is_restarting_all, restarting_condition
from winpod.placement import model
from winpod.placement.predicates import TERMINAL_PHASES

_Kind = Literal["requests", "limits"]
_RESIZED = ("cpu", "memory")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def pod_requests(pod: v1.Pod) -> dict[str, str]:
    """Return the pod's total requests, overhead included."""
    return _amounts(pod, "requests")


def pod_resources(pod: v1.Pod) -> v1.ResourceRequirements:
    """Return the pod's total requests and limits of the resources that can be resized."""
    requests, limits = _amounts(pod, "requests"), _amounts(pod, "limits")
    return v1.ResourceRequirements(
        requests={name: requests[name] for name in _RESIZED if name in requests} or None,
        limits={name: limits[name] for name in _RESIZED if name in limits} or None,
    )


def _amounts(pod: v1.Pod, kind: _Kind) -> dict[str, str]:
    """Return the totals; empty if the pod states none, or none that can be parsed."""
    spec = spec_of(pod)
    every = [spec.resources, *(c.resources for c in (*init_containers(pod), *spec.containers))]
    if not any(_stated(resources, kind) for resources in every):
        return {}
    try:
        summed = model.Pod.from_template(_template(pod, kind))
    except InvalidInput:
        return {}
    total = dict(summed.requests)
    for name, amount in summed.overhead:
        if kind == "requests" or total.get(name):
            total[name] = total.get(name, Decimal(0)) + amount
    return {name: _quantity(name, amount) for name, amount in total.items()}


def _stated(resources: v1.ResourceRequirements | None, kind: _Kind) -> dict[str, str]:
    return (getattr(resources, kind) if resources else None) or {}


def _template(pod: v1.Pod, kind: _Kind) -> dict[str, Any]:
    """Return the pod as placement reads it, with `kind` amounts in place of the requests."""
    spec = spec_of(pod)

    def reduced(container: v1.Container) -> dict[str, Any]:
        return {
            "name": container.name,
            "image": container.image or "none",
            "restartPolicy": container.restartPolicy or "",
            "resources": {"requests": _stated(container.resources, kind)},
        }

    return {
        "spec": {
            "initContainers": [reduced(container) for container in init_containers(pod)],
            "containers": [reduced(container) for container in regular_containers(pod)],
            "resources": {"requests": _stated(spec.resources, kind)},
            "overhead": spec.overhead or {},
        }
    }


def _quantity(name: str, amount: Decimal) -> str:
    """Format an amount exactly, in the API server's canonical form."""
    if amount != int(amount):
        return f"{int((amount * 1000).to_integral_value('ROUND_CEILING'))}m"
    number, unit = int(amount), ""
    if name in ("memory", "ephemeral-storage"):
        for larger in _BINARY:
            if not number or number % 1024:
                break
            number, unit = number // 1024, larger
    return f"{number}{unit}"


_SET_AT_TERMINATION = "DisruptionTarget"


def generate_status(
    pod: v1.Pod,
    runtime_pod: RuntimePod,
    pod_state: PodState,
    before: v1.PodStatus | None,
    host_ip: str,
    now: datetime,
) -> v1.PodStatus:
    before = before or pod.status or v1.PodStatus()
    containers = ContainerStatuses(
        pod, runtime_pod, pod_state, is_restarting_all=is_restarting_all(pod, runtime_pod, before)
    )
    init = containers.build(init_containers(pod), before.initContainerStatuses)
    regular = containers.build(regular_containers(pod), before.containerStatuses)
    debugging = containers.build(ephemeral_containers(pod), before.ephemeralContainerStatuses)
    if pod_state.is_finished and not runtime_pod.running_containers():
        _terminate_all(pod, init, regular)
    truncate_messages([*init, *regular, *debugging])
    statuses = {status.name: status for status in (*init, *regular)}
    phase, reason = _phase(pod, runtime_pod, statuses, pod_state, before)
    ips = _sorted(runtime_pod.ips, host_ip) or (
        [host_ip] if spec_of(pod).hostNetwork and host_ip else []
    )
    allocated, resources = _amounts_status(pod, pod_state, before)
    return v1.PodStatus(
        phase=phase,
        reason=reason.reason or None,
        message=reason.message or None,
        conditions=_conditions(pod, runtime_pod, statuses, phase, pod_state, before, now),
        hostIP=host_ip or None,
        hostIPs=[v1.HostIP(ip=host_ip)] if host_ip else None,
        podIP=ips[0] if ips else None,
        podIPs=[v1.PodIP(ip=ip) for ip in ips] or None,
        startTime=truncate_to_seconds(pod_state.start_time),
        initContainerStatuses=init or None,
        containerStatuses=_by_name(regular),
        ephemeralContainerStatuses=_by_name(debugging) or None,
        qosClass=(pod.status and pod.status.qosClass) or qos_class(pod),
        observedGeneration=metadata_of(pod).generation,
        allocatedResources=allocated,
        resources=resources,
    )


def rejected_status(pod: v1.Pod, failure: StatusReason, now: datetime) -> v1.PodStatus:
    """Return the status of a pod that failed admission."""
    return v1.PodStatus(
        phase="Failed",
        reason=failure.reason,
        message=f"Pod was rejected: {failure.message}",
        startTime=truncate_to_seconds(now),
        qosClass=(pod.status and pod.status.qosClass) or qos_class(pod),
        conditions=_foreign_conditions(pod) or None,
        observedGeneration=metadata_of(pod).generation,
    )


def _by_name(statuses: Sequence[v1.ContainerStatus]) -> list[v1.ContainerStatus]:
    return sorted(statuses, key=lambda status: status.name)


def _foreign_conditions(pod: v1.Pod) -> list[v1.PodCondition]:
    return [
        c for c in (pod.status and pod.status.conditions) or () if c.type not in KUBELET_CONDITIONS
    ]


def _sorted(ips: Sequence[str], host_ip: str) -> list[str]:
    """Return one address of each family, the node's own family first."""
    first = ip_address(host_ip).version if host_ip else 4
    by_version = {address.version: str(address) for address in map(ip_address, reversed(ips))}
    return [
        by_version[version] for version in sorted(by_version, key=lambda version: version != first)
    ]


def _amounts_status(
    pod: v1.Pod, pod_state: PodState, before: v1.PodStatus
) -> tuple[dict[str, str] | None, v1.ResourceRequirements]:
    """Return the allocated and the actual resources; they differ while a resize is in progress."""
    is_resized = any(
        c.type in RESIZE_CONDITIONS for c in (*pod_state.conditions, *(before.conditions or ()))
    )
    is_reported = before.observedGeneration == metadata_of(pod).generation and not is_resized
    if is_reported and before.resources is not None:
        return before.allocatedResources, before.resources
    resources = pod_resources(pod)
    if pod_state.is_resizing and before.resources is not None:
        resources = before.resources
    return pod_requests(pod) or None, resources


def _terminate_all(
    pod: v1.Pod, init: Sequence[v1.ContainerStatus], regular: Sequence[v1.ContainerStatus]
) -> None:
    """Terminate the status of every container of a finished pod, observed or not."""
    started = [
        number
        for number, status in enumerate(init, 1)
        if not (status.state and status.state.waiting) or (status.lastState or _NONE).terminated
    ]
    lost = list(init[: max(started, default=1)])
    if has_initialized(pod, {status.name: status for status in (*init, *regular)}):
        lost += regular
    for status in lost:
        if not (status.state and status.state.terminated):
            status.state = LOST_AT_TERMINATION


_NONE = v1.ContainerState()


def _phase(
    pod: v1.Pod,
    runtime_pod: RuntimePod,
    statuses: Mapping[str, v1.ContainerStatus],
    pod_state: PodState,
    before: v1.PodStatus,
) -> tuple[str, StatusReason]:
    """Return the phase. A terminal phase stays; none is terminal while a container runs."""
    kept = StatusReason(before.reason or "", before.message or "")
    stated = (pod.status and pod.status.phase) or ""
    for phase in (stated, before.phase or ""):
        if phase in TERMINAL_PHASES:
            return phase, kept
    has_run = runtime_pod.newest_sandbox is not None and any(
        container.name in {c.name for c in regular_containers(pod)}
        for container in runtime_pod.newest_sandbox.containers
    )
    phase, reason = (
        phase_of(pod, statuses, is_finished=pod_state.is_finished, has_run=has_run),
        StatusReason(""),
    )
    if pod_state.is_finished and phase not in TERMINAL_PHASES:
        phase = "Failed"
    if pod_state.failure:
        phase, reason = "Failed", pod_state.failure
    if phase in TERMINAL_PHASES and runtime_pod.running_containers():
        return before.phase or "Pending", kept
    return phase, kept if phase == before.phase else reason


def _conditions(
    pod: v1.Pod,
    runtime_pod: RuntimePod,
    statuses: Mapping[str, v1.ContainerStatus],
    phase: str,
    pod_state: PodState,
    before: v1.PodStatus,
    now: datetime,
) -> list[v1.PodCondition]:
    """Return the conditions. Foreign ones stay; DisruptionTarget is set once the pod terminated."""
    others = _foreign_conditions(pod)
    own = [
        c for c in pod_state.conditions if c.type != _SET_AT_TERMINATION or phase in TERMINAL_PHASES
    ]
    derived = conditions_of(
        pod,
        statuses,
        phase,
        has_sandbox=not needs_sandbox(pod, runtime_pod),
        others=others,
        before=before.conditions or (),
    )
    kubelet_conditions = (*own, *derived, *restarting_condition(pod, runtime_pod, before, phase))
    dated = [_dated(condition, pod, before, now) for condition in kubelet_conditions]
    added = {condition.type for condition in dated}
    return [*(c for c in others if c.type not in added), *dated]


def _dated(
    condition: PodCondition, pod: v1.Pod, before: v1.PodStatus, now: datetime
) -> v1.PodCondition:
    status = "True" if condition.status else "False"
    old = next((c for c in before.conditions or () if c.type == condition.type), None)
    changed = old is None or old.status != status or old.lastTransitionTime is None
    return v1.PodCondition(
        type=condition.type,
        status=status,
        reason=condition.reason or None,
        message=condition.message or None,
        lastTransitionTime=truncate_to_seconds(now)
        if changed or not old
        else old.lastTransitionTime,
        observedGeneration=metadata_of(pod).generation,
    )

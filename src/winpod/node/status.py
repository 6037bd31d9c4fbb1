"""A pod's status to the letter: from what the runtime has, what is known, and what was said.

What was said before counts where the runtime has forgotten: a container that is gone has ended, and
a pod that is over stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from ipaddress import ip_address

from lightkube.models import core_v1 as v1

from winpod.node.container_states import LOST_AT_THE_END, shorten_messages
from winpod.node.container_statuses import ContainerStatuses
from winpod.node.decide import needs_sandbox
from winpod.node.known import RESIZES, Known, Why
from winpod.node.phase import Told, conditions_of, has_initialized, phase_of
from winpod.node.pod_amounts import pod_requests, pod_resources
from winpod.node.pods import (
    ENDED,
    ephemeral_containers,
    init_containers,
    qos_class,
    regular_containers,
    whole_seconds,
)
from winpod.node.requests import metadata_of, spec_of
from winpod.node.restart_all import is_restarting_all, restarting
from winpod.node.seen import PodSeen
from winpod.node.status_patch import OURS

_AT_THE_END = "DisruptionTarget"


def make_status(
    pod: v1.Pod,
    seen: PodSeen,
    known: Known,
    before: v1.PodStatus | None,
    host_ip: str,
    now: datetime,
) -> v1.PodStatus:
    before = before or pod.status or v1.PodStatus()
    containers = ContainerStatuses(
        pod, seen, known, is_restarting_all=is_restarting_all(pod, seen, before)
    )
    init = containers.of(init_containers(pod), before.initContainerStatuses)
    regular = containers.of(regular_containers(pod), before.containerStatuses)
    debugging = containers.of(ephemeral_containers(pod), before.ephemeralContainerStatuses)
    if known.is_over and not seen.running():
        _end_all(pod, init, regular)
    shorten_messages([*init, *regular, *debugging])
    statuses = {status.name: status for status in (*init, *regular)}
    phase, why = _phase(pod, seen, statuses, known, before)
    ips = _sorted(seen.ips, host_ip) or ([host_ip] if spec_of(pod).hostNetwork and host_ip else [])
    allocated, resources = _amounts(pod, known, before)
    return v1.PodStatus(
        phase=phase,
        reason=why.reason or None,
        message=why.message or None,
        conditions=_conditions(pod, seen, statuses, phase, known, before, now),
        hostIP=host_ip or None,
        hostIPs=[v1.HostIP(ip=host_ip)] if host_ip else None,
        podIP=ips[0] if ips else None,
        podIPs=[v1.PodIP(ip=ip) for ip in ips] or None,
        startTime=whole_seconds(known.start_time),
        initContainerStatuses=init or None,
        containerStatuses=_by_name(regular),
        ephemeralContainerStatuses=_by_name(debugging) or None,
        qosClass=(pod.status and pod.status.qosClass) or qos_class(pod),
        observedGeneration=metadata_of(pod).generation,
        allocatedResources=allocated,
        resources=resources,
    )


def rejected(pod: v1.Pod, why: Why, now: datetime) -> v1.PodStatus:
    """The status of a pod that the node does not take."""
    return v1.PodStatus(
        phase="Failed",
        reason=why.reason,
        message=f"Pod was rejected: {why.message}",
        startTime=whole_seconds(now),
        qosClass=(pod.status and pod.status.qosClass) or qos_class(pod),
        conditions=_of_others(pod) or None,
        observedGeneration=metadata_of(pod).generation,
    )


def _by_name(statuses: Sequence[v1.ContainerStatus]) -> list[v1.ContainerStatus]:
    return sorted(statuses, key=lambda status: status.name)


def _of_others(pod: v1.Pod) -> list[v1.PodCondition]:
    return [c for c in (pod.status and pod.status.conditions) or () if c.type not in OURS]


def _sorted(ips: Sequence[str], host_ip: str) -> list[str]:
    """One of each family, the node's own family first."""
    first = ip_address(host_ip).version if host_ip else 4
    found = {address.version: str(address) for address in map(ip_address, reversed(ips))}
    return [found[version] for version in sorted(found, key=lambda one: one != first)]


def _amounts(
    pod: v1.Pod, known: Known, before: v1.PodStatus
) -> tuple[dict[str, str] | None, v1.ResourceRequirements]:
    """What the pod was given, and what it has, which is less or more while it is resized."""
    is_resized = any(c.type in RESIZES for c in (*known.conditions, *(before.conditions or ())))
    is_told = before.observedGeneration == metadata_of(pod).generation and not is_resized
    if is_told and before.resources is not None:
        return before.allocatedResources, before.resources
    resources = pod_resources(pod)
    if known.is_resizing and before.resources is not None:
        resources = before.resources
    return pod_requests(pod) or None, resources


def _end_all(
    pod: v1.Pod, init: Sequence[v1.ContainerStatus], regular: Sequence[v1.ContainerStatus]
) -> None:
    """Every container of a pod that is over has ended, whether or not somebody saw it."""
    begun = [
        number
        for number, status in enumerate(init, 1)
        if not (status.state and status.state.waiting) or (status.lastState or _NONE).terminated
    ]
    lost = list(init[: max(begun, default=1)])
    if has_initialized(pod, {status.name: status for status in (*init, *regular)}):
        lost += regular
    for status in lost:
        if not (status.state and status.state.terminated):
            status.state = LOST_AT_THE_END


_NONE = v1.ContainerState()


def _phase(
    pod: v1.Pod,
    seen: PodSeen,
    statuses: Mapping[str, v1.ContainerStatus],
    known: Known,
    before: v1.PodStatus,
) -> tuple[str, Why]:
    """A pod that is over stays so; none is while a container still runs."""
    kept = Why(before.reason or "", before.message or "")
    stated = (pod.status and pod.status.phase) or ""
    for phase in (stated, before.phase or ""):
        if phase in ENDED:
            return phase, kept
    has_run = seen.newest is not None and any(
        container.name in {c.name for c in regular_containers(pod)}
        for container in seen.newest.containers
    )
    phase, why = phase_of(pod, statuses, is_over=known.is_over, has_run=has_run), Why("")
    if known.is_over and phase not in ENDED:
        phase = "Failed"
    if known.failure:
        phase, why = "Failed", known.failure
    if phase in ENDED and seen.running():
        return before.phase or "Pending", kept
    return phase, kept if phase == before.phase else why


def _conditions(
    pod: v1.Pod,
    seen: PodSeen,
    statuses: Mapping[str, v1.ContainerStatus],
    phase: str,
    known: Known,
    before: v1.PodStatus,
    now: datetime,
) -> list[v1.PodCondition]:
    """What others said stays; that a pod is disrupted is said when it has ended."""
    others = _of_others(pod)
    own = [c for c in known.conditions if c.type != _AT_THE_END or phase in ENDED]
    found = conditions_of(
        pod,
        statuses,
        phase,
        has_sandbox=not needs_sandbox(pod, seen),
        others=others,
        before=before.conditions or (),
    )
    every = (*own, *found, *restarting(pod, seen, before, phase))
    ours = [_dated(one, pod, before, now) for one in every]
    added = {condition.type for condition in ours}
    return [*(c for c in others if c.type not in added), *ours]


def _dated(told: Told, pod: v1.Pod, before: v1.PodStatus, now: datetime) -> v1.PodCondition:
    status = "True" if told.holds else "False"
    old = next((c for c in before.conditions or () if c.type == told.type), None)
    changed = old is None or old.status != status or old.lastTransitionTime is None
    return v1.PodCondition(
        type=told.type,
        status=status,
        reason=told.reason or None,
        message=told.message or None,
        lastTransitionTime=whole_seconds(now) if changed or not old else old.lastTransitionTime,
        observedGeneration=metadata_of(pod).generation,
    )

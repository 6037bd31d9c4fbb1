"""New resources for a pod that runs: whether the node has room for them, and what it says.

A kubelet on Windows refuses to resize in place; here it is done, because the runtime can. Until the
node takes the new resources, the pod has those it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lightkube.models import core_v1 as v1

from winpod.node.admission import Taken, refusal
from winpod.node.facts import NodeFacts
from winpod.node.phase import Told
from winpod.node.pods import with_fields
from winpod.node.requests import spec_of


@dataclass(frozen=True, slots=True)
class Allocation:
    """The pod with the resources that the node has given it, and why it has no others."""

    pod: v1.Pod
    pending: Told | None = None


def allocate(pod: v1.Pod, given: v1.Pod, others: Iterable[Taken], facts: NodeFacts) -> Allocation:
    if not is_resized(pod, given):
        return Allocation(pod)
    if why := refusal(pod, (), facts, None):
        return Allocation(
            _with_resources(pod, _by_name(given)), _pending("Infeasible", why.message)
        )
    if why := refusal(pod, others, facts, None):
        return Allocation(_with_resources(pod, _by_name(given)), _pending("Deferred", why.message))
    return Allocation(pod)


def as_given(pod: v1.Pod) -> v1.Pod:
    """The pod as an earlier process has given it its resources, read from its status."""
    told = (pod.status and pod.status.containerStatuses) or ()
    return _with_resources(pod, {one.name: one.resources for one in told if one.resources})


def is_resized(pod: v1.Pod, given: v1.Pod) -> bool:
    return _by_name(pod) != _by_name(given)


_Resources = Mapping[str, v1.ResourceRequirements | None]


def _by_name(pod: v1.Pod) -> _Resources:
    return {
        container.name: container.resources or v1.ResourceRequirements()
        for container in spec_of(pod).containers
    }


def _with_resources(pod: v1.Pod, given: _Resources) -> v1.Pod:
    containers = [
        with_fields(container, resources=given.get(container.name, container.resources))
        for container in spec_of(pod).containers
    ]
    return with_fields(pod, spec=with_fields(spec_of(pod), containers=containers))


def _pending(reason: str, message: str) -> Told:
    return Told("PodResizePending", True, reason, message)

"""What a pod asks for as a whole: what its containers need together, and its overhead."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

from lightkube.models import core_v1 as v1

from winpod.node.pods import init_containers, regular_containers
from winpod.node.requests import spec_of
from winpod.windows import objects
from winpod.windows.errors import InvalidInput

_Kind = Literal["requests", "limits"]
_RESIZED = ("cpu", "memory")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def pod_requests(pod: v1.Pod) -> dict[str, str]:
    return _amounts(pod, "requests")


def pod_resources(pod: v1.Pod) -> v1.ResourceRequirements:
    """Of what can be resized."""
    requests, limits = _amounts(pod, "requests"), _amounts(pod, "limits")
    return v1.ResourceRequirements(
        requests={name: requests[name] for name in _RESIZED if name in requests} or None,
        limits={name: limits[name] for name in _RESIZED if name in limits} or None,
    )


def _amounts(pod: v1.Pod, kind: _Kind) -> dict[str, str]:
    """Nothing where the pod says nothing, or nothing that can be read."""
    spec = spec_of(pod)
    every = [spec.resources, *(c.resources for c in (*init_containers(pod), *spec.containers))]
    if not any(_stated(resources, kind) for resources in every):
        return {}
    try:
        found = objects.Pod.from_template(_template(pod, kind))
    except InvalidInput:
        return {}
    total = dict(found.requests)
    for name, amount in found.overhead:
        if kind == "requests" or total.get(name):
            total[name] = total.get(name, Decimal(0)) + amount
    return {name: _quantity(name, amount) for name, amount in total.items()}


def _stated(resources: v1.ResourceRequirements | None, kind: _Kind) -> dict[str, str]:
    return (getattr(resources, kind) if resources else None) or {}


def _template(pod: v1.Pod, kind: _Kind) -> dict[str, Any]:
    """As placement reads pods, with these amounts for those that are summed up."""
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
    """Exact, and as the API server would write it."""
    if amount != int(amount):
        return f"{int((amount * 1000).to_integral_value('ROUND_CEILING'))}m"
    number, unit = int(amount), ""
    if name in ("memory", "ephemeral-storage"):
        for larger in _BINARY:
            if not number or number % 1024:
                break
            number, unit = number // 1024, larger
    return f"{number}{unit}"

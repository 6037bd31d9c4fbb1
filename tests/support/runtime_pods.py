"""Builders for runtime pods."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.known_objects import read
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import all_containers
from winpod.kubelet.cri_convert import container_hash
from winpod.kubelet.runtime_status import (
    ContainerState,
    RuntimeContainer,
    RuntimePod,
    RuntimeSandbox,
    to_runtime_pod,
)

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def pod_of(*containers: dict[str, Any], **spec: Any) -> v1.Pod:
    named = [{"image": "app:1", **container} for container in containers or ({"name": "app"},)]
    for key in ("initContainers", "ephemeralContainers"):
        spec[key] = [{"image": "app:1", **container} for container in spec.get(key, ())]
    metadata = {"name": "web", "namespace": "shop", "uid": "uid-1", "generation": 3}
    return read(v1.Pod, {"metadata": metadata, "spec": {"containers": named, **spec}})


def container(name: str, state: str = "running", age: float = 10, **more: Any) -> RuntimeContainer:
    created = NOW - timedelta(seconds=age)
    return RuntimeContainer(
        id=more.pop("id", f"{name}-{age:g}"),
        name=name,
        state=ContainerState(state),
        created_at=created,
        started_at=None if state == "created" else created,
        finished_at=created + timedelta(seconds=1) if state == "exited" else None,
        **more,
    )


def sandbox(*containers: RuntimeContainer, attempt: int = 0, **more: Any) -> RuntimeSandbox:
    ready = more.pop("is_ready", True)
    ips = more.pop("ips", ("10.1.0.7",) if ready else ())
    oldest_first = tuple(sorted(containers, key=lambda one: one.created_at))
    return RuntimeSandbox(
        f"sandbox-{attempt}", attempt, ready, NOW, ips=ips, containers=oldest_first, **more
    )


def runtime_pod(*containers: RuntimeContainer, **more: Any) -> RuntimePod:
    """Return a runtime pod with one sandbox with these containers."""
    return to_runtime_pod([sandbox(*containers, **more)])


def hash_of(pod: v1.Pod, name: str) -> str:
    return next(container_hash(one) for one in all_containers(pod) if one.name == name)

"""What a runtime could have of a pod, in a few words."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lightkube.models import core_v1 as v1

from tests.node.known_objects import read
from winpod.node.pods import all_containers
from winpod.node.requests import container_hash
from winpod.node.seen import ContainerSeen, PodSeen, SandboxSeen, State, pod_seen

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def pod_of(*containers: dict[str, Any], **spec: Any) -> v1.Pod:
    named = [{"image": "app:1", **container} for container in containers or ({"name": "app"},)]
    for key in ("initContainers", "ephemeralContainers"):
        spec[key] = [{"image": "app:1", **container} for container in spec.get(key, ())]
    metadata = {"name": "web", "namespace": "shop", "uid": "uid-1", "generation": 3}
    return read(v1.Pod, {"metadata": metadata, "spec": {"containers": named, **spec}})


def container(name: str, state: str = "running", age: float = 10, **more: Any) -> ContainerSeen:
    created = NOW - timedelta(seconds=age)
    return ContainerSeen(
        id=more.pop("id", f"{name}-{age:g}"),
        name=name,
        state=State(state),
        created_at=created,
        started_at=None if state == "created" else created,
        finished_at=created + timedelta(seconds=1) if state == "exited" else None,
        **more,
    )


def sandbox(*containers: ContainerSeen, attempt: int = 0, **more: Any) -> SandboxSeen:
    ready = more.pop("is_ready", True)
    ips = more.pop("ips", ("10.1.0.7",) if ready else ())
    oldest_first = tuple(sorted(containers, key=lambda one: one.created_at))
    return SandboxSeen(
        f"sandbox-{attempt}", attempt, ready, NOW, ips=ips, containers=oldest_first, **more
    )


def seen(*containers: ContainerSeen, **more: Any) -> PodSeen:
    """One sandbox with these containers."""
    return pod_seen([sandbox(*containers, **more)])


def hash_of(pod: v1.Pod, name: str) -> str:
    return next(container_hash(one) for one in all_containers(pod) if one.name == name)

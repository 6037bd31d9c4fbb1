"""In-memory API objects for a node without an API server."""

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.objects import ApiStruct
from winpod.kubelet.node_config import NodeConfig
from winpod.windows.builds import parse_build


@dataclass
class KnownObjects:
    config_maps: dict[str, v1.ConfigMap] = field(default_factory=dict)
    secrets: dict[str, v1.Secret] = field(default_factory=dict)
    claims: dict[str, v1.PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, v1.PersistentVolume] = field(default_factory=dict)
    all_services: dict[str, list[v1.Service]] = field(default_factory=dict)

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        return self.config_maps.get(f"{namespace}/{name}")

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return self.secrets.get(f"{namespace}/{name}")

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None:
        return self.claims.get(f"{namespace}/{name}")

    async def volume(self, name: str) -> v1.PersistentVolume | None:
        return self.volumes.get(name)

    async def services(self, namespace: str) -> list[v1.Service]:
        return self.all_services.get(namespace, [])

    async def token(
        self, namespace: str, service_account: str, audience: str, seconds: int, pod: v1.Pod
    ) -> str:
        name = pod.metadata.name if pod.metadata else ""
        return f"token of {namespace}/{service_account} for {audience} in {name} for {seconds}"

    async def runtime_handler(self, runtime_class: str) -> str | None:
        return runtime_class

    async def node(self) -> v1.Node | None:
        return None


_T = TypeVar("_T", bound=ApiStruct)


def read(kind: type[_T], data: dict[str, Any]) -> _T:
    """Decode an API object from its JSON data."""
    return kind.from_dict(data)


def pod_of(spec: dict[str, Any], **metadata: Any) -> v1.Pod:
    """Return a minimal pod as the API server returns it."""
    known = {"name": "web", "namespace": "shop", "uid": "uid-1", **metadata}
    spec = {"containers": [{"name": "app", "image": "app:1"}], **spec}
    return read(v1.Pod, {"metadata": known, "spec": spec})


def encoded(**data: str) -> dict[str, str]:
    return {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}


def node_config_in(root: Path, **more: Any) -> NodeConfig:
    return NodeConfig(
        name="win-1",
        build=parse_build("2022"),
        root=root,
        cpus=4,
        memory_bytes=8 << 30,
        disk_bytes=100 << 30,
        internal_ip="10.0.0.9",
        cluster_dns=("10.96.0.10",),
        log_root=root / "logs",
        **more,
    )

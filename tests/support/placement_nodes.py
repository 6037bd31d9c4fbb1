"""One-line builders of nodes, pods and images for placement tests."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from winpod.field_reader import Quantities
from winpod.placement.model import (
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    RuntimeClass,
    Taint,
    Toleration,
)
from winpod.quantities import parse_quantity
from winpod.windows.builds import parse_build
from winpod.windows.handlers import BUILTIN_HANDLERS, HYPERVISOR_HANDLER, PROCESS_HANDLER
from winpod.windows.platforms import Image, Manifest, Platform

CONTAINERD = frozenset((PROCESS_HANDLER.name, HYPERVISOR_HANDLER.name))
WINPOD = frozenset(BUILTIN_HANDLERS.named)
OS_TAINT = Taint("os", "windows", "NoSchedule")
NAMED_B = NodeSelectorTerm((), (NodeSelectorRequirement("metadata.name", "In", ("b",)),))
"""Select the node named b by its field."""


def amounts(**texts: str) -> Quantities:
    return tuple(sorted((k, parse_quantity(v) or Decimal(0)) for k, v in texts.items()))


def node(name: str, build: str = "2022", **more: Any) -> Node:
    labels = {
        "kubernetes.io/os": "windows",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/windows-build": str(parse_build(build)),
        **more.pop("labels", {}),
    }
    defaults: dict[str, Any] = {"runtime": "winpod", "handlers": WINPOD}
    return Node(name, tuple(sorted(labels.items())), **(defaults | more))


def linux_node(name: str) -> Node:
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return Node(name, tuple(labels.items()), runtime="containerd")


def image(*versions: str, os: str = "windows", arch: str = "amd64", index: bool = True) -> Image:
    manifests = tuple(
        Manifest(f"sha256:{v or os}", Platform(os, arch, os_version=v), 1) for v in versions
    )
    return Image("app", "sha256:app", manifests, is_index=index)


def linux_image() -> Image:
    return image("", os="linux")


def pod(*images: str, **more: Any) -> Pod:
    containers = [{"name": f"c{i}", "image": text} for i, text in enumerate(images or ("app",))]
    spec: dict[str, Any] = {"containers": containers, **more.pop("spec", {})}
    read = Pod.from_template({"spec": spec})
    return replace(read, **more)


def runtime_class(name: str, handler: str, build: str = "", **more: Any) -> RuntimeClass:
    selector = {"kubernetes.io/os": "windows"}
    if build:
        selector["node.kubernetes.io/windows-build"] = str(parse_build(build))
    return RuntimeClass(name, handler, tuple(sorted(selector.items())), **more)


def tolerate_os() -> tuple[Toleration, ...]:
    return (Toleration("os", "Equal", "windows", "NoSchedule"),)

"""Nodes, RuntimeClasses and pods for admission reviews."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from winpod.images.lookup import ImageLookupResult
from winpod.operator.admission.class_selection import SelectionContext
from winpod.operator.admission.review import (
    ReviewDecision,
    mutate_pod,
    review_pod,
)
from winpod.operator.settings import OperatorSettings
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node, RuntimeClass, Taint, Toleration
from winpod.quantities import parse_quantity
from winpod.windows.builds import parse_build
from winpod.windows.platforms import Image, Manifest, Platform

BUILD = "node.kubernetes.io/windows-build"
OS, ARCH = "kubernetes.io/os", "kubernetes.io/arch"
B2019, B2022, B2025 = "10.0.17763", "10.0.20348", "10.0.26100"
PROCESS, HYPERVISOR = "runhcs-wcow-process", "runhcs-wcow-hypervisor"
TAINT = Taint("os", "windows")
TOLERATION = Toleration("os", "Equal", "windows", "NoSchedule")
DEFAULT = OperatorSettings()


def labels(build: str) -> tuple[tuple[str, str], ...]:
    return ((ARCH, "amd64"), (OS, "windows"), (BUILD, build))


def windows_node(name: str, build: str, *more: str, **fields: Any) -> Node:
    """Return a Windows node; `more` are handlers in addition to process isolation."""
    node = Node(
        name,
        labels(build),
        (TAINT,),
        handlers=frozenset((PROCESS, *more)),
        runtime="winpod",
        kernel_version=f"{build}.1",
    )
    return replace(node, **fields)


LINUX = Node("linux", ((ARCH, "amd64"), (OS, "linux")), runtime="containerd")
GUESTS = (HYPERVISOR, f"{HYPERVISOR}-17763")
NODES = (LINUX, windows_node("win-2019", B2019), windows_node("win-2022", B2022, *GUESTS))


def runtime_class(name: str, build: str, handler: str = PROCESS, **more: Any) -> RuntimeClass:
    return RuntimeClass(name, handler, labels(build), (TOLERATION,), **more)


C2019 = runtime_class("windows-2019", B2019)
C2022 = runtime_class("windows-2022", B2022)
C2025 = runtime_class("windows-2025", B2025)
OVERHEAD = (("memory", parse_quantity("200Mi") or 0),)
GUEST_2019 = runtime_class("windows-2019-hyperv", B2022, f"{HYPERVISOR}-17763", overhead=OVERHEAD)
CLASSES = (C2019, C2022, GUEST_2019)


def image(*platforms: str) -> ImageLookupResult:
    """Return an image with one manifest per platform: `2019`, `linux` or `windows/arm64 2022`."""
    manifests = []
    for text in platforms:
        system, _, build = text.rpartition(" ")
        if text == "linux":
            system, build = "linux/amd64", ""
        os, architecture = (system or "windows/amd64").split("/")
        version = f"{parse_build(build)}.1" if build else ""
        platform = Platform(os, architecture, os_version=version)
        manifests.append(Manifest(f"sha256:{text}", platform, 0))
    return ImageLookupResult(Image("app:1", "sha256:1", tuple(manifests)))


def pod(*images: str, metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "image": text} for i, text in enumerate(images or ("app:1",))]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **(metadata or {})},
        "spec": {"containers": containers, **spec},
    }


@dataclass(frozen=True)
class PatchedDecision(ReviewDecision):
    """Decision with its patches."""

    patches: tuple[Mapping[str, Any], ...] = ()


def decided(
    obj: Mapping[str, Any],
    found: ImageLookupResult | Mapping[str, ImageLookupResult],
    *,
    nodes: tuple[Node, ...] = NODES,
    classes: tuple[RuntimeClass, ...] = CLASSES,
    settings: OperatorSettings = DEFAULT,
    retiring: Mapping[str, str] | None = None,
) -> PatchedDecision:
    lookups = found if isinstance(found, Mapping) else {"app:1": found}
    question = (obj, SelectionContext(Cluster(nodes, classes), settings, retiring or {}), lookups)
    decision = review_pod(*question)
    return PatchedDecision(
        decision.outcome, decision.warnings, decision.refusal, mutate_pod(*question)
    )


def patched(decided: PatchedDecision) -> dict[str, Any]:
    return {patch["path"]: patch["value"] for patch in decided.patches}

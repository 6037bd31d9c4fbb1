"""Nodes and workloads of clusters to upgrade."""

from typing import Any

from winpod.operator.upgrade.moves import (
    UpgradeWorkload,
    WorkloadPod,
)
from winpod.operator.upgrade.spec import (
    UpgradeSpec,
)
from winpod.placement.model import Node, Pod
from winpod.windows.builds import parse_build
from winpod.windows.platforms import Image, Manifest, Platform

B2019, B2022, B2025 = "10.0.17763", "10.0.20348", "10.0.26100"
PROCESS, GUEST_2019 = "runhcs-wcow-process", "runhcs-wcow-hypervisor-17763"
BUILD = "node.kubernetes.io/windows-build"


def labels(build: str) -> dict[str, str]:
    return {"kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", BUILD: build}


def node(name: str, build: str, *handlers: str, runtime: str = "winpod", **more: Any) -> Node:
    return Node(
        name,
        tuple(sorted((labels(build) | more.pop("labels", {})).items())),
        handlers=frozenset((PROCESS, *handlers)),
        runtime=runtime,
        **more,
    )


def image(*builds: str) -> Image:
    manifests = tuple(
        Manifest(f"sha256:{b}", Platform("windows", "amd64", os_version=f"{b}.1"), 1)
        for b in builds
    )
    return Image("example.test/app:1", "sha256:0", manifests)


OLD_ONLY, BOTH, NEW_ONLY = image(B2019), image(B2019, B2022), image(B2022)
WIN_2019, WIN_2022 = node("old", B2019), node("new", B2022)
UPGRADE = UpgradeSpec(parse_build("2019"), parse_build("2022"), patch_workloads=True)


def workload(
    found: Image | None, *, kind: str = "Deployment", on: str = "old", **spec: Any
) -> UpgradeWorkload:
    spec["containers"] = [{"name": "main", "image": "app"}]
    return UpgradeWorkload(
        kind,
        "shop",
        "web",
        Pod.from_template({"spec": spec}, every_node=kind == "DaemonSet"),
        (WorkloadPod("web-1", "1", on, is_ready=True),),
        1,
        {"app": found} if found else {},
    )


OF_WINDOWS: dict[str, Any] = {"nodeSelector": {"kubernetes.io/os": "windows"}}

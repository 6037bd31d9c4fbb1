"""Programs on an instance: install directory, services that use them, and which are required."""

from __future__ import annotations

from dataclasses import dataclass

from winpod.instances import paths
from winpod.instances.planner.state import CONTAINERD, KUBELET

KUBE_PROXY = "kube-proxy"
HYBRID_OVERLAY = "hybrid-overlay-node"
CSI_PROXY = "csi-proxy"
EXPORTER = "windows_exporter"


@dataclass(frozen=True, slots=True)
class PayloadProgram:
    """A program of the payload.

    `used_by` are the services that hold its file open, or would run two versions at once. A program
    used by pods is also held by pods that a drain leaves, those of DaemonSets.
    """

    name: str
    directory: str
    used_by: tuple[str, ...]
    is_required: bool = False
    used_by_pods: bool = False

    @property
    def path(self) -> str:
        return rf"{self.directory}\{self.name}"


_TABLE = (
    PayloadProgram("containerd.exe", paths.BIN, (CONTAINERD,), is_required=True),
    PayloadProgram(
        "containerd-shim-runhcs-v1.exe",
        paths.BIN,
        (CONTAINERD,),
        is_required=True,
        used_by_pods=True,
    ),
    PayloadProgram("crictl.exe", paths.BIN, (), is_required=True),
    PayloadProgram("ctr.exe", paths.BIN, ()),
    PayloadProgram("kubelet.exe", paths.BIN, (KUBELET,), is_required=True),
    PayloadProgram("kube-log-runner.exe", paths.BIN, (KUBELET, KUBE_PROXY), is_required=True),
    PayloadProgram("kube-proxy.exe", paths.BIN, (KUBE_PROXY,)),
    PayloadProgram("hybrid-overlay-node.exe", paths.BIN, (HYBRID_OVERLAY,)),
    PayloadProgram("csi-proxy.exe", paths.BIN, (CSI_PROXY,)),
    PayloadProgram("windows_exporter.exe", paths.BIN, (EXPORTER,)),
    PayloadProgram("win-overlay.exe", paths.CNI_BIN, (KUBELET,)),
    PayloadProgram("win-bridge.exe", paths.CNI_BIN, (KUBELET,)),
    PayloadProgram("sdnoverlay.exe", paths.CNI_BIN, (KUBELET,)),
    PayloadProgram("sdnbridge.exe", paths.CNI_BIN, (KUBELET,)),
    PayloadProgram("host-local.exe", paths.CNI_BIN, (KUBELET,)),
)
PROGRAMS = {program.name: program for program in _TABLE}
REQUIRED = tuple(program.name for program in _TABLE if program.is_required)

"""The programs that go to an instance: where each belongs, who uses it, and which must be there."""

from __future__ import annotations

from dataclasses import dataclass

from winpod.instances import paths
from winpod.instances.rules.stopping import CONTAINERD, KUBELET

KUBE_PROXY = "kube-proxy"
HYBRID_OVERLAY = "hybrid-overlay-node"
CSI_PROXY = "csi-proxy"
EXPORTER = "windows_exporter"


@dataclass(frozen=True, slots=True)
class Program:
    """`used_by` are the services that keep its file, or would run two versions at once.

    What is used by pods is kept by those that a drain leaves, too: those of DaemonSets.
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
    Program("containerd.exe", paths.BIN, (CONTAINERD,), is_required=True),
    Program(
        "containerd-shim-runhcs-v1.exe",
        paths.BIN,
        (CONTAINERD,),
        is_required=True,
        used_by_pods=True,
    ),
    Program("crictl.exe", paths.BIN, (), is_required=True),
    Program("ctr.exe", paths.BIN, ()),
    Program("kubelet.exe", paths.BIN, (KUBELET,), is_required=True),
    Program("kube-log-runner.exe", paths.BIN, (KUBELET, KUBE_PROXY), is_required=True),
    Program("kube-proxy.exe", paths.BIN, (KUBE_PROXY,)),
    Program("hybrid-overlay-node.exe", paths.BIN, (HYBRID_OVERLAY,)),
    Program("csi-proxy.exe", paths.BIN, (CSI_PROXY,)),
    Program("windows_exporter.exe", paths.BIN, (EXPORTER,)),
    Program("win-overlay.exe", paths.CNI_BIN, (KUBELET,)),
    Program("win-bridge.exe", paths.CNI_BIN, (KUBELET,)),
    Program("sdnoverlay.exe", paths.CNI_BIN, (KUBELET,)),
    Program("sdnbridge.exe", paths.CNI_BIN, (KUBELET,)),
    Program("host-local.exe", paths.CNI_BIN, (KUBELET,)),
)
PROGRAMS = {program.name: program for program in _TABLE}
REQUIRED = tuple(program.name for program in _TABLE if program.is_required)

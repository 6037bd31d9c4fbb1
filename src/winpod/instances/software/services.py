"""The services of an instance, in the order they start in.

containerd is first, and the kubelet depends on it and on nothing else. What has no use for the
kubelet does not wait for it.
"""

from __future__ import annotations

from winpod.cluster.instance_settings import InstanceSettings, NetworkKind
from winpod.instances import paths
from winpod.instances.rules.desired import WantedService
from winpod.instances.rules.stopping import CONTAINERD, KUBELET
from winpod.instances.software.containerd_config import containerd_command
from winpod.instances.software.joining import Joining
from winpod.instances.software.kubelet_config import kubelet_command
from winpod.instances.software.network_config import hybrid_overlay_command, kube_proxy_command
from winpod.instances.software.payload import Payload
from winpod.instances.software.programs import CSI_PROXY, EXPORTER, HYBRID_OVERLAY, KUBE_PROXY
from winpod.windows.command_line import join

_COLLECTORS = "cpu,cpu_info,container,logical_disk,memory,net,os,service,system"


def wanted_services(
    settings: InstanceSettings, payload: Payload, joining: Joining
) -> tuple[WantedService, ...]:
    """kube-proxy comes with the node's range of addresses, which it cannot do without."""
    network, rotates = settings.network, payload.rotates_logs
    services = [
        _service(CONTAINERD, containerd_command(), "Runs the containers of this node."),
        _service(
            KUBELET,
            kubelet_command(settings, joining, rotates=rotates),
            "Runs the pods that the cluster gives to this node.",
            CONTAINERD,
        ),
    ]
    if payload.has(f"{EXPORTER}.exe"):
        services.append(_service(EXPORTER, _exporter(), "Serves this node's metrics."))
    if payload.has(f"{CSI_PROXY}.exe"):
        services.append(_service(CSI_PROXY, _csi_proxy(), "Handles disks for storage drivers."))
    if network.hybrid_overlay:
        overlay = hybrid_overlay_command(network, joining)
        about = "Joins this node's pods to the cluster's network."
        services.append(_service(HYBRID_OVERLAY, overlay, about, KUBELET))
    if network.kind is not NetworkKind.NONE and joining.subnet:
        above = (HYBRID_OVERLAY,) if network.hybrid_overlay else ()
        about = "Leads to the cluster's services from this node."
        proxy = kube_proxy_command(rotates=rotates)
        services.append(_service(KUBE_PROXY, proxy, about, *above))
    return tuple(services)


def _exporter() -> tuple[str, ...]:
    return (rf"{paths.BIN}\{EXPORTER}.exe", f"--collectors.enabled={_COLLECTORS}")


def _csi_proxy() -> tuple[str, ...]:
    log = rf"-log_file={paths.CSI_PROXY_LOGS}\csi-proxy.log"
    return (rf"{paths.BIN}\{CSI_PROXY}.exe", "-windows-service", log, "-logtostderr=false")


def _service(name: str, command: tuple[str, ...], description: str, *depends: str) -> WantedService:
    return WantedService(name, join(command), depends, description)
